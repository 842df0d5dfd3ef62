/*
 * gc.h
 *		Collects records that have expired.
 */
#ifndef IDEM_GC_H
#define IDEM_GC_H

#include "postgres.h"

extern int64 gc_sweep(int64 max_rows);
extern int64 gc_sweep_if_free(int64 max_rows);

#endif							/* IDEM_GC_H */
