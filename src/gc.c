/*
 * gc.c
 *		Collects records that have expired: one bounded sweep.
 *
 * A begin checks expiry itself, so late collection does no harm.  It uses no
 * index, as every insert would have to pay for one.  Instead a sweep goes
 * round the pages of the store like the hand of a clock, from where the last
 * committed sweep stopped.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lockdefs.h"
#include "utils/timestamp.h"

#include "catalog.h"
#include "compat.h"
#include "gc.h"
#include "lock.h"
#include "stats.h"
#include "store.h"
#include "sweep.h"

/* pages of one statement: 1 MB */
#define CHUNK_PAGES 128

/* Only one sweep runs at a time; other callers do not wait for it. */
static bool
is_only_sweep(void)
{
	LOCKTAG		tag = lock_tag(0, LOCK_CLASS_SWEEP);

	return lock_acquire_now(&tag);
}

/* The hand has come to the end of the store: one round is complete. */
static void
finish_sweep(SweepPosition *hand, Sweep *progress)
{
	TimestampTz now = GetCurrentTimestamp();

	hand->next_page = 0;
	progress->finished++;
	stats_count(COUNT_SWEEPS);
	stats_set(COUNT_LAST_SWEEP_AT, now);
	/* somebody may have set the clock back */
	stats_set(COUNT_LAST_SWEEP_MICROSECONDS, Max(now - hand->began_at, 0));
}

/* Collects from the pages of one statement; returns how many pages are done. */
static BlockNumber
sweep_chunk(const Catalog *catalog, SweepPosition *hand, Sweep *progress,
			BlockNumber max_pages, int64 max_rows, TimestampTz now)
{
	BlockNumber start = hand->next_page;
	BlockNumber end = start + Min(Min(CHUNK_PAGES, max_pages), progress->pages - start);
	BlockNumber last;
	int64		removed = store_sweep_pages(catalog, start, end, now, max_rows, &last);

	progress->removed += removed;
	/* a page that may have more expired rows is visited again */
	hand->next_page = removed < max_rows ? end : last;
	progress->seen += hand->next_page - start;
	return hand->next_page - start;
}

/*
 * Goes on from the hand over at most max_pages pages, once round the store at
 * most, until max_rows rows are removed.
 */
static void
turn_hand(const Catalog *catalog, SweepPosition *hand, Sweep *progress)
{
	TimestampTz now = GetCurrentTimestamp();
	BlockNumber pages = Min(progress->pages, progress->max_pages);
	int64		wanted = progress->removed + progress->max_rows;

	while (pages > 0 && progress->removed < wanted &&
		   (progress->goes_round || progress->finished == 0))
	{
		CHECK_FOR_INTERRUPTS();
		/* the store may have become smaller */
		if (hand->next_page >= progress->pages)
			finish_sweep(hand, progress);
		if (hand->next_page == 0)
			hand->began_at = GetCurrentTimestamp();
		pages -= sweep_chunk(catalog, hand, progress, pages, wanted - progress->removed, now);
		if (hand->next_page >= progress->pages)
			finish_sweep(hand, progress);
	}
}

/*
 * Estimates how many expired rows are left in this round, from the pages that
 * were seen.
 */
static int64
backlog(const SweepPosition *hand, const Sweep *progress)
{
	BlockNumber ahead = progress->pages - Max(hand->next_page, progress->seen);

	if (progress->seen >= progress->pages || (progress->finished > 0 && hand->next_page == 0))
		return 0;
	return (int64) ((double) progress->removed / Max(progress->seen, 1) * ahead);
}

/*
 * Removes expired records.  A row that another session has locked is passed
 * over; the next sweep meets it again.
 */
void
gc_sweep(const Catalog *catalog, Sweep *progress)
{
	SweepPosition hand;
	int64		removed = progress->removed;

	progress->pages = store_pages(catalog);
	if (!is_only_sweep())
		return;
	hand = sweep_position(catalog);
	if (progress->pages == 0)
	{
		hand.began_at = GetCurrentTimestamp();
		finish_sweep(&hand, progress);
	}
	turn_hand(catalog, &hand, progress);
	sweep_remember_position(catalog, &hand);
	stats_add(COUNT_COLLECTED_ROWS, progress->removed - removed);
	stats_set(COUNT_BACKLOG_ROWS, backlog(&hand, progress));
}
