/*
 * walk.h
 *		Walks over the store in the order of its pages.
 */
#ifndef IDEM_WALK_H
#define IDEM_WALK_H

#include "postgres.h"

#include "storage/itemptr.h"

/* what is done on the way */
typedef struct Walk
{
	/*
	 * Does so many rows from a position to before another, and moves the first
	 * one on: to the other one, or to where it has more to do.  Returns how many.
	 */
	int64		(*step) (void *state, ItemPointer from, ItemPointer end, int64 max_rows);
	void	   *state;
} Walk;

extern int64 walk_rows(const Walk *walk, ItemPointer from, ItemPointerData to, int64 max_rows);

#endif							/* IDEM_WALK_H */
