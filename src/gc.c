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

#include "miscadmin.h"
#include "storage/lockdefs.h"
#include "utils/timestamp.h"

#include "catalog.h"
#include "compat.h"
#include "gc.h"
#include "lock.h"
#include "marks.h"
#include "stats.h"
#include "store.h"
#include "wait.h"

/* pages of one statement: 1 MB */
#define CHUNK_PAGES 128

/* Only one sweep at a time; another caller need not wait for it. */
static bool
is_only_sweep(void)
{
	LOCKTAG		tag = lock_tag(0, LOCK_CLASS_SWEEP);

	return lock_acquire_now(&tag);
}

/*
 * Goes on from hand over at most max_pages pages, once round at most, until
 * max_rows rows are removed.  Moves the hand and counts what it did.
 */
static void
turn_hand(const Catalog *catalog, BlockNumber *hand, Sweep *sweep)
{
	TimestampTz now = GetCurrentTimestamp();
	BlockNumber pages = sweep->pages;
	BlockNumber budget = Min(pages, sweep->max_pages);
	BlockNumber seen = 0;
	int64		removed = 0;

	while (seen < budget && removed < sweep->max_rows)
	{
		BlockNumber start = *hand < pages ? *hand : 0;
		BlockNumber end = start + Min(Min(CHUNK_PAGES, budget - seen), pages - start);
		int64		wanted = sweep->max_rows - removed;
		BlockNumber last;
		int64		got;

		CHECK_FOR_INTERRUPTS();
		got = store_sweep_pages(catalog, start, end, now, wanted, &last);
		removed += got;
		/* a page that may have had more than was wanted is not done with */
		*hand = got < wanted ? end : last;
		seen += *hand - start;
	}
	sweep->removed += removed;
	sweep->seen += seen;
	stats_add(COUNT_COLLECTED_ROWS, removed);
}

/* The pages ahead of the hand are taken to be like those that were seen. */
static int64
backlog(const Sweep *sweep, BlockNumber hand)
{
	if (sweep->seen >= sweep->pages || hand >= sweep->pages)
		return 0;
	return (int64) ((double) sweep->removed / Max(sweep->seen, 1) * (sweep->pages - hand));
}

static void
count_sweep(const Sweep *sweep, BlockNumber hand, const Deadline *start)
{
	stats_count(COUNT_SWEEPS);
	stats_set(COUNT_LAST_SWEEP_AT, GetCurrentTimestamp());
	stats_set(COUNT_LAST_SWEEP_MICROSECONDS, -deadline_left(start));
	stats_set(COUNT_BACKLOG_ROWS, backlog(sweep, hand));
}

/*
 * Removes expired records.  Whatever somebody else has locked is passed over
 * and met again on the next turn.
 */
void
gc_sweep(const Catalog *catalog, Sweep *sweep)
{
	Deadline	start = deadline_after(0);
	BlockNumber hand;

	sweep->pages = store_pages(catalog);
	if (!is_only_sweep())
		return;
	hand = marks_sweep_position(catalog);
	turn_hand(catalog, &hand, sweep);
	marks_remember_sweep(catalog, hand);
	count_sweep(sweep, hand, &start);
}
