/*
 * marks.h
 *		How far streams and the sweep have come.
 */
#ifndef IDEM_MARKS_H
#define IDEM_MARKS_H

#include "postgres.h"

#include "storage/block.h"

#include "catalog.h"
#include "idempotency.h"

extern bool marks_advance(const Catalog *catalog, const OperationName *stream, int64 seq);
extern BlockNumber marks_sweep_position(const Catalog *catalog);
extern void marks_remember_sweep(const Catalog *catalog, BlockNumber position);

#endif							/* IDEM_MARKS_H */
