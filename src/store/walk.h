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
	 * Handles up to max_rows rows from one position to before another.  Sets *from to
	 * where the next step begins: to *end, or to what is left.  Returns how many.
	 */
	int64		(*step) (void *state, ItemPointer from, ItemPointer end, int64 max_rows);
	void	   *state;
} Walk;

extern int64 walk_rows(const Walk *walk, ItemPointer from, ItemPointerData to, int64 max_rows);

#endif							/* IDEM_WALK_H */
