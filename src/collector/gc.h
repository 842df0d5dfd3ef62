/*
 * gc.h
 *		Collects records that have expired.
 */
#ifndef IDEM_GC_H
#define IDEM_GC_H

#include "postgres.h"

#include "storage/block.h"

#include "schema/catalog.h"

/* pages of one call of idem_gc: 64 MB */
#define GC_PAGES 8192

/* the limits of a call, and the sums of its work */
typedef struct Sweep
{
	int64		max_rows;
	BlockNumber max_pages;
	bool		goes_round;		/* on to the first page after the last one */
	int			max_rotations;	/* tables of the ring to empty, at most */
	int			rotated;		/* tables of the ring that were emptied */
	int64		removed;
	BlockNumber seen;			/* pages that were read */
	int			finished;		/* how often the sweep reached the end of the store */
	BlockNumber pages;			/* of the store */
} Sweep;

extern void gc_sweep(const Catalog *catalog, Sweep *sweep);
extern bool gc_is_alone(void);
extern void gc_rotate(const Catalog *catalog, Sweep *sweep);

#endif							/* IDEM_GC_H */
