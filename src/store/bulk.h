/*
 * bulk.h
 *		What is done to many records of one table of the store: walks over its
 *		pages, and the statements of their steps.
 */
#ifndef IDEM_BULK_H
#define IDEM_BULK_H

#include "postgres.h"

#include "storage/block.h"
#include "storage/itemptr.h"

#include "base/idempotency.h"
#include "schema/catalog.h"

/* what is in a table */
typedef struct Content
{
	int64		rows;
	int64		fence;			/* the greatest */
	TimestampTz needed_until;	/* when all of it has expired, leases too */
} Content;

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

extern BlockNumber bulk_pages(Oid table);
extern int64 bulk_walk(const Walk *walk, ItemPointer from, ItemPointerData to, int64 max_rows);
extern int64 bulk_sweep(const Catalog *catalog, Oid table, ItemPointer from, ItemPointer end,
						TimestampTz now, int64 max_rows);
extern int64 bulk_find_unsealed(const Catalog *catalog, Oid table, ItemPointer from, ItemPointer end,
								text *key, int64 max_rows, Record **records);
extern Content bulk_content(const Catalog *catalog, Oid table);

#endif							/* IDEM_BULK_H */
