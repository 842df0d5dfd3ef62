/*
 * stats.c
 *		Counts events, if the library is preloaded.
 *
 * A database claims a slot of shared memory at its first count.  It loses the
 * slot when it is dropped, and when it has dropped the extension.  Then another
 * database may claim the slot.  Calls are counted, like pg_stat_user_tables
 * counts rows: whether or not their transaction committed.
 *
 * A session remembers the slot of its database, and counts without a lock.  A
 * count must not get into the slot of another database.  So:
 *
 *	- Each slot has one word.  The upper half is the database that owns the slot.
 *	  The lower half is the number of sessions that are inside: they are adding
 *	  to its counts at this moment.
 *	- A session that counts enters the slot: it adds one to the word, and learns
 *	  by that who owned the slot.  If its own database did, it adds to the count.
 *	  In any case it leaves the slot: it subtracts one from the word.
 *	- The owner of a slot changes under the lock only.  So no database has two
 *	  slots.
 *	- A slot loses its owner by compare and exchange of the whole word.  That
 *	  succeeds only while no session is inside.  A session that enters later
 *	  learns that the slot has no owner.  All counts are zero before the lock is
 *	  released, so the next owner begins with zeros.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lwlock.h"

#include "base/compat.h"
#include "base/fault.h"
#include "shared/stats.h"

/* the word of a slot */
#define OWNER(word) ((Oid) ((word) >> 32))
#define OWNED_BY(database) ((uint64) (database) << 32)

static DatabaseCounters *mine = NULL;

/* how many slots had been given back when this session found none free */
static uint32 found_none_at;
static bool found_none = false;

static bool
enter_slot(DatabaseCounters *slot)
{
	return OWNER(pg_atomic_fetch_add_u64(&slot->word, 1)) == MyDatabaseId;
}

static void
leave_slot(DatabaseCounters *slot)
{
	pg_atomic_fetch_sub_u64(&slot->word, 1);
}

/* The caller holds the lock. */
static DatabaseCounters *
slot_of(Oid database)
{
	for (int i = 0; i < COUNTED_DATABASES; i++)
	{
		DatabaseCounters *slot = &shared->databases[i];

		if (OWNER(pg_atomic_read_u64(&slot->word)) == database)
			return slot;
	}
	return NULL;
}

/* If every slot is taken, further databases are not counted. */
static DatabaseCounters *
claim_slot(void)
{
	uint32		given_back = pg_atomic_read_u32(&shared->given_back);
	DatabaseCounters *slot;

	if (found_none && found_none_at == given_back)
		return NULL;
	LWLockAcquire(shared_lock, LW_EXCLUSIVE);
	slot = slot_of(MyDatabaseId);
	if (slot == NULL)
	{
		slot = slot_of(InvalidOid);
		if (slot != NULL)
			pg_atomic_fetch_add_u64(&slot->word, OWNED_BY(MyDatabaseId));
	}
	LWLockRelease(shared_lock);
	found_none = slot == NULL;
	found_none_at = given_back;
	return slot;
}

/* Enters the slot of this database; NULL: the database is not counted. */
static DatabaseCounters *
enter_mine(void)
{
	while (shared != NULL)
	{
		if (mine == NULL)
			mine = claim_slot();
		if (mine == NULL || enter_slot(mine))
			return mine;
		leave_slot(mine);
		mine = NULL;
	}
	return NULL;
}

/* Nothing between entering and leaving can fail. */
void
stats_add(Counter counter, int64 amount)
{
	DatabaseCounters *slot = enter_mine();

	if (slot == NULL)
		return;
	pg_atomic_fetch_add_u64(&slot->counts[counter], amount);
	leave_slot(slot);
}

/* Counts a begin by its outcome. */
void
stats_count_begin(Outcome outcome, bool taken_over)
{
	static const Counter counters[OUTCOME_LABELS] = {
		[OUTCOME_ACQUIRED] = COUNT_ACQUIRED,
		[OUTCOME_IN_PROGRESS] = COUNT_IN_PROGRESS,
		[OUTCOME_COMPLETED] = COUNT_REPLAYED_COMPLETED,
		[OUTCOME_FAILED] = COUNT_REPLAYED_FAILED,
		[OUTCOME_MISMATCH] = COUNT_MISMATCHES
	};

	stats_count(counters[outcome]);
	if (taken_over)
		stats_count(COUNT_TAKEN_OVER);
}

void
stats_set(Counter counter, int64 value)
{
	DatabaseCounters *slot = enter_mine();

	if (slot == NULL)
		return;
	FAULT_POINT("count-entered");
	pg_atomic_write_u64(&slot->counts[counter], value);
	leave_slot(slot);
}

static void
clear_slot(DatabaseCounters *slot)
{
	for (int counter = 0; counter < COUNTERS; counter++)
		pg_atomic_write_u64(&slot->counts[counter], 0);
}

/* Of this database. */
void
stats_reset(void)
{
	for (int counter = 0; counter < COUNTERS; counter++)
		stats_set((Counter) counter, 0);
}

/* A database that has counted nothing yet has zeros from now on. */
void
stats_show_this_database(void)
{
	stats_add(COUNT_ACQUIRED, 0);
}

/* The figures in a slot; false if no database owns it. */
bool
stats_read(int slot, Figures *figures)
{
	DatabaseCounters *read = &shared->databases[slot];

	LWLockAcquire(shared_lock, LW_SHARED);
	figures->database = OWNER(pg_atomic_read_u64(&read->word));
	for (int counter = 0; counter < COUNTERS; counter++)
		figures->counts[counter] = (int64) pg_atomic_read_u64(&read->counts[counter]);
	LWLockRelease(shared_lock);
	return OidIsValid(figures->database);
}

/*
 * Frees the slot of a database that is dropped, or that has dropped the
 * extension.  While a session is inside, that fails, and the caller tries
 * again later.
 */
void
stats_give_back(Oid database)
{
	uint64		alone = OWNED_BY(database);
	DatabaseCounters *slot;

	LWLockAcquire(shared_lock, LW_EXCLUSIVE);
	slot = slot_of(database);
	if (slot != NULL && pg_atomic_compare_exchange_u64(&slot->word, &alone, OWNED_BY(InvalidOid)))
	{
		clear_slot(slot);
		pg_atomic_fetch_add_u32(&shared->given_back, 1);
	}
	LWLockRelease(shared_lock);
}
