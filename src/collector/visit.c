/*
 * visit.c
 *		The data that the launcher and its workers exchange in shared memory.
 *
 * The launcher ends a worker that stays too long.  A worker that does not
 * react even then is abandoned, and may live longer than its launcher.  So a
 * worker itself enters its database into a list of visitors, and leaves the
 * list when its process ends, whatever the reason.  So no database has two
 * visits at a time, and there is nothing to clean up.
 *
 * The result of a visit is one word with the visit's number in it.  A worker
 * writes it by comparing and exchanging, so an abandoned worker cannot
 * write the result of a later visit.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/guc.h"

#include "collector/visit.h"
#include "shared/shared.h"

/* a visitor: the database, whether the launcher has cancelled the visit, and whether the visit takes long */
#define NOBODY UINT64CONST(0)
#define CANCELLED (UINT64CONST(1) << 32)
#define TAKES_LONG (UINT64CONST(1) << 33)

static pg_atomic_uint64 *me = NULL;

static Oid
database_of(uint64 visitor)
{
	return (Oid) (visitor & PG_UINT32_MAX);
}

static uint64
result_word(uint32 number, VisitResult result)
{
	return ((uint64) number << 32) | result;
}

/* A new visit: results of the last one no longer count. */
Visit
visit_announce(Oid database)
{
	uint32		last = (uint32) (pg_atomic_read_u64(&shared->visit_result) >> 32);
	Visit		visit = {.database = database,.number = last + 1};

	pg_atomic_write_u64(&shared->visit_result, result_word(visit.number, VISIT_FAILED));
	return visit;
}

/* Of the newest visit. */
VisitResult
visit_result(void)
{
	return (VisitResult) (pg_atomic_read_u64(&shared->visit_result) & PG_UINT32_MAX);
}

void
visit_report(const Visit *visit, VisitResult result)
{
	uint64		expected = result_word(visit->number, VISIT_FAILED);

	(void) pg_atomic_compare_exchange_u64(&shared->visit_result, &expected,
										  result_word(visit->number, result));
}

/* Is another process visiting the database? */
static bool
is_visited(Oid database)
{
	for (int i = 0; i < VISITORS; i++)
	{
		if (&shared->visitors[i] != me &&
			database_of(pg_atomic_read_u64(&shared->visitors[i])) == database)
			return true;
	}
	return false;
}

/*
 * May a worker be started?  Not while the database still has an abandoned one.
 */
bool
visit_is_possible(Oid database)
{
	return !is_visited(database);
}

/* Lets the worker know that the launcher ends it. */
void
visit_cancel(Oid database)
{
	for (int i = 0; i < VISITORS; i++)
	{
		uint64		visitor = pg_atomic_read_u64(&shared->visitors[i]);

		while (database_of(visitor) == database &&
			   !pg_atomic_compare_exchange_u64(&shared->visitors[i], &visitor, visitor | CANCELLED))
			;
	}
}

bool
visit_is_cancelled(void)
{
	return me != NULL && (pg_atomic_read_u64(me) & CANCELLED);
}

/* A worker says that its next step may last longer than a visit, or that it is over. */
void
visit_takes_long(bool takes_long)
{
	if (takes_long)
		(void) pg_atomic_fetch_or_u64(me, TAKES_LONG);
	else
		(void) pg_atomic_fetch_and_u64(me, ~TAKES_LONG);
}

bool
visit_is_long(Oid database)
{
	for (int i = 0; i < VISITORS; i++)
	{
		uint64		visitor = pg_atomic_read_u64(&shared->visitors[i]);

		if (database_of(visitor) == database)
			return (visitor & TAKES_LONG) != 0;
	}
	return false;
}

static void
leave_visit(int code, Datum arg)
{
	pg_atomic_write_u64(me, NOBODY);
}

static pg_atomic_uint64 *
enter_visit(Oid database)
{
	for (int i = 0; i < VISITORS; i++)
	{
		uint64		nobody = NOBODY;

		if (pg_atomic_compare_exchange_u64(&shared->visitors[i], &nobody, database))
			return &shared->visitors[i];
	}
	return NULL;
}

/*
 * Enters the list; false when there is no room, or when the database has a
 * visitor already.  Two that come at once see each other, and both leave.
 */
bool
visit_begin(const Visit *visit)
{
	me = enter_visit(visit->database);
	if (me == NULL)
		return false;
	on_shmem_exit(leave_visit, (Datum) 0);
	return !is_visited(visit->database);
}

/*
 * Sleeps, but wakes for the postmaster's death, signals and settings; true
 * when it has read new ones.
 */
bool
visit_nap(int64 microseconds, uint32 wait_event)
{
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 (microseconds + 999) / 1000, wait_event);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
	if (!ConfigReloadPending)
		return false;
	ConfigReloadPending = false;
	ProcessConfigFile(PGC_SIGHUP);
	return true;
}
