/*
 * walk.c
 *		Walks over the store in the order of its pages, as a sweep and
 *		idem_reseal do: a bounded piece at a time, so that no statement holds
 *		many rows.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "store/walk.h"

/* pages of one statement: 1 MB */
#define CHUNK_PAGES 128

/*
 * Walks from one position to before another, until so many rows are done.  Sets *from to
 * where the next walk begins.
 */
int64
walk_rows(const Walk *walk, ItemPointer from, ItemPointerData to, int64 max_rows)
{
	int64		done = 0;

	while (ItemPointerCompare(from, &to) < 0 && done < max_rows)
	{
		BlockNumber page = ItemPointerGetBlockNumberNoCheck(from);
		ItemPointerData end = to;

		CHECK_FOR_INTERRUPTS();
		if (ItemPointerGetBlockNumberNoCheck(&to) - page >= CHUNK_PAGES)
			ItemPointerSet(&end, page + CHUNK_PAGES, 0);
		done += walk->step(walk->state, from, &end, max_rows - done);
	}
	return done;
}
