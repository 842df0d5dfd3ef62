/*
 * gc.c
 *		Collects records that have expired: one bounded sweep.
 *
 * A begin checks expiry itself, so collection may be late without harm and
 * needs no index, which every insert would have to pay for.  Instead a hand
 * goes round the store's pages as on a clock, from where the last sweep that
 * committed stopped.
 */
#include "postgres.h"

#include "access/table.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lockdefs.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "catalog.h"
#include "compat.h"
#include "gc.h"
#include "lock.h"
#include "stats.h"
#include "store.h"
#include "wait.h"

/* pages of one statement, and of one sweep: 1 MB and 64 MB */
#define CHUNK_PAGES 128
#define SWEEP_PAGES 8192

static BlockNumber
pages_of_store(const Catalog *catalog)
{
	Relation	store = table_open(catalog->store, NoLock);
	BlockNumber pages;

	if (!RELKIND_HAS_STORAGE(store->rd_rel->relkind))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("a partitioned store is not collected"),
				 errhint("Detach and drop old partitions, or delete expired rows.")));
	pages = RelationGetNumberOfBlocks(store);
	table_close(store, NoLock);
	return pages;
}

/* Only one sweep at a time; another caller need not wait for it. */
static bool
is_only_sweep(void)
{
	LOCKTAG		tag = lock_tag(0, LOCK_CLASS_SWEEP);

	return lock_acquire_now(&tag);
}

/*
 * Goes on from hand over at most SWEEP_PAGES pages, once round at most, until
 * so many rows are removed.  Moves the hand and returns how many pages it saw.
 */
static BlockNumber
turn_hand(const Catalog *catalog, BlockNumber *hand, BlockNumber pages,
		  int64 max_rows, int64 *removed)
{
	TimestampTz now = GetCurrentTimestamp();
	BlockNumber budget = Min(pages, SWEEP_PAGES);
	BlockNumber seen = 0;

	while (seen < budget && *removed < max_rows)
	{
		BlockNumber start = *hand < pages ? *hand : 0;
		BlockNumber end = start + Min(Min(CHUNK_PAGES, budget - seen), pages - start);
		int64		wanted = max_rows - *removed;
		BlockNumber last;
		int64		got;

		CHECK_FOR_INTERRUPTS();
		got = store_sweep_pages(catalog, start, end, now, wanted, &last);
		*removed += got;
		/* a page that may have had more than was wanted is not done with */
		*hand = got < wanted ? end : last;
		seen += *hand - start;
	}
	return seen;
}

/*
 * Where a sweep stopped because it had removed enough, the pages ahead are
 * taken to be like those that it saw.
 */
static void
count_sweep(int64 max_rows, int64 removed, BlockNumber seen, BlockNumber ahead,
			const Deadline *start)
{
	stats_count(COUNT_SWEEPS);
	stats_add(COUNT_COLLECTED_ROWS, removed);
	stats_set(COUNT_LAST_SWEEP_AT, GetCurrentTimestamp());
	stats_set(COUNT_LAST_SWEEP_MICROSECONDS, -deadline_left(start));
	stats_set(COUNT_BACKLOG_ROWS,
			  removed < max_rows ? 0 : (int64) ((double) removed / Max(seen, 1) * ahead));
}

/*
 * Removes up to max_rows expired records and returns how many.  Whatever
 * somebody else has locked is passed over and met again on the next turn.
 */
static int64
sweep(const Catalog *catalog, int64 max_rows)
{
	Deadline	start = deadline_after(0);
	BlockNumber pages = pages_of_store(catalog);
	BlockNumber hand;
	BlockNumber seen;
	int64		removed = 0;

	if (!is_only_sweep())
		return 0;
	hand = store_sweep_position(catalog);
	seen = turn_hand(catalog, &hand, pages, max_rows, &removed);
	store_sweep_remember(catalog, hand);
	count_sweep(max_rows, removed, seen, pages - Min(hand, pages), &start);
	return removed;
}

int64
gc_sweep(int64 max_rows)
{
	return sweep(catalog_open(RowExclusiveLock), max_rows);
}

int64
gc_sweep_if_free(int64 max_rows)
{
	const Catalog *catalog = catalog_open_if_free(RowExclusiveLock);

	return catalog ? sweep(catalog, max_rows) : 0;
}
