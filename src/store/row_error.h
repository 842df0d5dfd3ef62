/*
 * row_error.h
 *		What the errors of writing a row become.
 */
#ifndef IDEM_ROW_ERROR_H
#define IDEM_ROW_ERROR_H

#include "postgres.h"

#include "base/compat.h"

pg_noreturn extern void row_error_lost_race(void);
pg_noreturn extern void row_error_changed(void);
pg_noreturn extern void row_error_suppressed(void);
pg_noreturn extern void row_error_rethrow(MemoryContext context);

#endif							/* IDEM_ROW_ERROR_H */
