/*
 * sweep_position.h
 *		The position of the sweep over the store.
 */
#ifndef IDEM_SWEEP_POSITION_H
#define IDEM_SWEEP_POSITION_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "storage/block.h"

#include "schema/catalog.h"

typedef struct SweepPosition
{
	BlockNumber next_page;
	TimestampTz began_at;		/* when it was at the first page */
	TimestampTz swept_at;		/* when collection last ran */
} SweepPosition;

extern SweepPosition sweep_position(const Catalog *catalog);
extern void sweep_remember_position(const Catalog *catalog, const SweepPosition *position);

#endif							/* IDEM_SWEEP_POSITION_H */
