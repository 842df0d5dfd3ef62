/*
 * gc.c
 *		Collects records that have expired: one bounded sweep.
 *
 * A begin checks expiry itself, so late collection does no harm.  It uses no
 * index, as every insert would have to pay for one.  Instead a sweep goes
 * round the pages of the store in order, from the position where the last committed
 * sweep stopped.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_subscription.h"
#include "commands/dbcommands.h"
#include "miscadmin.h"
#include "storage/lockdefs.h"
#include "utils/lsyscache.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "collector/gc.h"
#include "collector/rotation.h"
#include "schema/catalog.h"
#include "schema/store_tables.h"
#include "shared/advisory_lock.h"
#include "shared/stats.h"
#include "store/bulk.h"
#include "store/store_kind.h"
#include "store/sweep_position.h"

/* Only one sweep runs at a time; other callers do not wait for it. */
static bool
is_only_sweep(void)
{
	LOCKTAG		tag = lock_tag(0, LOCK_CLASS_SWEEP);

	return lock_acquire_now(&tag);
}

/* The sweep has reached the end of the store: one round is complete. */
static void
finish_sweep(SweepPosition *position, Sweep *progress)
{
	TimestampTz now = GetCurrentTimestamp();

	position->next_page = 0;
	progress->finished++;
	stats_count(COUNT_SWEEPS);
	stats_set(COUNT_LAST_SWEEP_AT, now);
	/* somebody may have set the clock back */
	stats_set(COUNT_LAST_SWEEP_MICROSECONDS, Max(now - position->began_at, 0));
}

/* what each step of a walk needs */
typedef struct SweepStep
{
	const Catalog *catalog;
	Oid			table;			/* of the store, that is swept */
	TimestampTz now;
} SweepStep;

static int64
sweep_step(void *state, ItemPointer from, ItemPointer end, int64 max_rows)
{
	const SweepStep *step = state;

	return bulk_sweep(step->catalog, step->table, from, end, step->now, max_rows);
}

/*
 * How many pages a sweep visits: their numbers go on from one table to the next.  A
 * store that comes from a publisher is collected there.  An expired row that was
 * removed here would be missed when the publisher updates it: its key is used again.
 */
static BlockNumber
swept_pages(const Catalog *catalog)
{
	BlockNumber pages = 0;

	if (catalog->store_kind != STORE_DISTRIBUTED &&
		OidIsValid(store_table_subscription(catalog->tables[TABLE_STORE], catalog->store_owner)))
		return 0;
	for (int i = 0; i < kind_swept_tables(catalog); i++)
		pages += bulk_pages(kind_swept_table(catalog, i));
	return pages;
}

/* The table with that page, and the page where it begins. */
static Oid
table_at(const Catalog *catalog, BlockNumber page, BlockNumber *first)
{
	int			number = 0;
	BlockNumber pages = bulk_pages(kind_swept_table(catalog, 0));

	for (*first = 0; page >= *first + pages && number + 1 < kind_swept_tables(catalog); number++)
	{
		*first += pages;
		pages = bulk_pages(kind_swept_table(catalog, number + 1));
	}
	return kind_swept_table(catalog, number);
}

/* Collects from so many pages, of one table at most, until so many rows are removed. */
static void
sweep_range(SweepStep *step, SweepPosition *position, Sweep *progress,
			BlockNumber pages, int64 max_rows)
{
	Walk		walk = {sweep_step, step};
	BlockNumber start = position->next_page;
	BlockNumber first;
	ItemPointerData from;
	ItemPointerData to;

	step->table = table_at(step->catalog, start, &first);
	if (kind_swept_tables(step->catalog) > 1)
		pages = Min(pages, Max(first + bulk_pages(step->table), start + 1) - start);
	ItemPointerSet(&from, start - first, 0);
	ItemPointerSet(&to, start - first + pages, 0);
	/* a shard that is being moved is left for another time */
	if (kind_hold_table(step->catalog, step->table))
		progress->removed += bulk_walk(&walk, &from, to, max_rows);
	else
		from = to;
	position->next_page = first + ItemPointerGetBlockNumberNoCheck(&from);
	progress->seen += position->next_page - start;
}

/*
 * Goes on from the position over at most max_pages pages, once round the store at
 * most, until max_rows rows are removed.
 */
static void
sweep_from_position(const Catalog *catalog, SweepPosition *position, Sweep *progress)
{
	SweepStep	step = {.catalog = catalog,.now = GetCurrentTimestamp()};
	BlockNumber last_seen = progress->seen + Min(progress->pages, progress->max_pages);
	int64		wanted = progress->removed + progress->max_rows;

	while (progress->seen < last_seen && progress->removed < wanted &&
		   (progress->goes_round || progress->finished == 0))
	{
		/* the store may have become smaller */
		if (position->next_page >= progress->pages)
			finish_sweep(position, progress);
		if (position->next_page == 0)
			position->began_at = GetCurrentTimestamp();
		sweep_range(&step, position, progress,
					Min(last_seen - progress->seen, progress->pages - position->next_page),
					wanted - progress->removed);
		if (position->next_page >= progress->pages)
			finish_sweep(position, progress);
	}
}

/*
 * Estimates how many expired rows are left in this round, from the pages that
 * it has read.
 */
static int64
estimate_backlog(const SweepPosition *position, const Sweep *progress)
{
	BlockNumber ahead = progress->pages - Max(position->next_page, progress->seen);

	if (progress->seen >= progress->pages || (progress->finished > 0 && position->next_page == 0))
		return 0;
	return (int64) ((double) progress->removed / Max(progress->seen, 1) * ahead);
}

/*
 * Collection that is left to a publisher looks like collection with nothing to do, also
 * when the subscription is forgotten.  So the first sweep of a day says it in the log.
 */
static void
log_who_collects(const Catalog *catalog, TimestampTz swept_at)
{
	if (catalog->store_kind == STORE_DISTRIBUTED || swept_at / USECS_PER_DAY == GetCurrentTimestamp() / USECS_PER_DAY)
		return;
	for (int i = 0; i < store_tables_count(); i++)
	{
		Oid			table = store_tables_get(i)->oid;
		char	   *subscription = get_subscription_name(store_table_subscription(table, catalog->store_owner), true);

		if (subscription == NULL)
			continue;
		ereport(LOG,
				(errmsg("collection of expired records in database \"%s\" is left to a publisher",
						get_database_name(MyDatabaseId)),
				 errdetail("Subscription \"%s\" fills the store.", subscription),
				 errhint("Drop the subscription when it is no longer needed: until then nothing is removed here.")));
		return;
	}
}

/*
 * Removes expired records.  A row that another session has locked is passed
 * over; the next sweep tries again.  The tables of a ring are not swept, but emptied.
 */
void
gc_sweep(const Catalog *catalog, Sweep *progress)
{
	SweepPosition position;
	int64		removed = progress->removed;

	progress->pages = swept_pages(catalog);
	if (!is_only_sweep())
		return;
	position = sweep_position(catalog);
	log_who_collects(catalog, position.swept_at);
	if (progress->pages == 0)
	{
		position.began_at = GetCurrentTimestamp();
		finish_sweep(&position, progress);
	}
	sweep_from_position(catalog, &position, progress);
	sweep_remember_position(catalog, &position);
	stats_set(COUNT_BACKLOG_ROWS, estimate_backlog(&position, progress));
	stats_add(COUNT_COLLECTED_ROWS, progress->removed - removed);
}

/*
 * Is the transaction for collection alone, and has it done nothing yet?  In another one
 * the locks of an emptied table would last, and a ring that it has made itself is
 * not known to others.  A snapshot that is kept may not show all rows.
 */
bool
gc_is_alone(void)
{
	return !IsTransactionBlock() && !IsSubTransaction() && !IsolationUsesXactSnapshot() &&
		!TransactionIdIsValid(GetTopTransactionIdIfAny());
}

/* Rotates the ring.  A sweep in the same transaction comes first: a rotation keeps its locks until COMMIT. */
void
gc_rotate(const Catalog *catalog, Sweep *progress)
{
	int64		removed;

	if (catalog->store_kind != STORE_RING || !is_only_sweep())
		return;
	removed = rotate_ring(catalog, progress->max_rotations, &progress->rotated);
	progress->removed += removed;
	stats_add(COUNT_COLLECTED_ROWS, removed);
}
