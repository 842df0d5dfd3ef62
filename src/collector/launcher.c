/*
 * launcher.c
 *		The collector's launcher: visits one database after the other.
 *
 * The launcher is connected to no database.  Every idempotency.gc_interval it
 * starts one short-lived worker for each database, one after the other, as
 * autoprewarm does.
 *
 * The owner of one database cannot stop collection in the others.  So the
 * launcher waits for no worker for longer than a visit may last: then it ends
 * the worker, and visits that database again later and later.  Rotating a
 * ring of tables may last longer, and is followed by a pause of its length.  After each
 * visit that was longer than usual, the other databases come first.  A worker
 * that does not react is abandoned.  While the launcher waits it hears of new
 * settings, of a shutdown, and of the postmaster's death.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "utils/memutils.h"

#include "base/compat.h"
#include "base/idempotency.h"
#include "base/settings.h"
#include "collector/databases.h"
#include "collector/launcher.h"
#include "collector/visit.h"
#include "shared/stats.h"
#include "shared/wait.h"

/* if the launcher dies, the postmaster starts it again after that */
#define LAUNCHER_RESTART_SECONDS 10
/* a database whose worker failed is left alone for up to 2^6 intervals */
#define BACKOFF_DOUBLINGS 6

/*
 * How much longer than a visit a worker may live: it needs time to start and
 * to finish its last step.  DROP DATABASE waits 5 seconds for it, so both
 * together are less than that.
 */
#define GRACE_MICROSECONDS INT64CONST(2000000)
/* how long a rotation of the ring may last, which reads a whole table of it */
#define ROTATION_MICROSECONDS INT64CONST(300000000)
/* how often the launcher looks whether somebody wants the database meanwhile */
#define LOOK_MICROSECONDS INT64CONST(1000000)
/* how long a visit usually lasts at most */
#define STAY_MICROSECONDS (VISIT_MICROSECONDS + GRACE_MICROSECONDS)
/* how long a terminated worker has to react */
#define REACTION_MICROSECONDS INT64CONST(1000000)

static MemoryContext launcher_context;
static MemoryContext round_context; /* emptied after each round */
static bool settings_are_new = true;

PGDLLEXPORT void idempotency_launcher_main(Datum arg);

static void
launcher_nap(int64 microseconds)
{
	if (visit_nap(microseconds, wait_event_launcher()))
		settings_are_new = true;
}

/* Once, not in every round. */
static void
warn_of_missing_slots(void)
{
	static bool complained = false;

	if (!complained)
		ereport(LOG,
				(errmsg("idempotency collector: no background worker is free"),
				 errhint("Raise max_worker_processes.")));
	complained = true;
}

static BackgroundWorkerHandle *
start_worker(const Visit *visit)
{
	BackgroundWorker worker = {0};
	BackgroundWorkerHandle *handle;

	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	worker.bgw_notify_pid = MyProcPid;
	strlcpy(worker.bgw_library_name, EXTENSION_NAME, BGW_MAXLEN);
	strlcpy(worker.bgw_function_name, "idempotency_worker_main", BGW_MAXLEN);
	strlcpy(worker.bgw_name, "idempotency collector", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "idempotency collector", BGW_MAXLEN);
	StaticAssertStmt(sizeof(Visit) <= BGW_EXTRALEN, "a visit must fit into bgw_extra");
	memcpy(worker.bgw_extra, visit, sizeof(Visit));
	return RegisterDynamicBackgroundWorker(&worker, &handle) ? handle : NULL;
}

/* Waits for the worker's end; false when it takes longer, or at a shutdown. */
static bool
ends_within(BackgroundWorkerHandle *handle, int64 microseconds)
{
	Deadline	deadline = deadline_after(microseconds);
	pid_t		pid;

	while (GetBackgroundWorkerPid(handle, &pid) != BGWH_STOPPED)
	{
		int64		left = deadline_left(&deadline);

		if (left <= 0 || ShutdownRequestPending)
			return false;
		launcher_nap(left);
	}
	return true;
}

static void
end_worker(const Database *database, BackgroundWorkerHandle *handle)
{
	visit_cancel(database->oid);
	TerminateBackgroundWorker(handle);
	if (ShutdownRequestPending)
		return;
	if (ends_within(handle, REACTION_MICROSECONDS))
		ereport(LOG,
				(errmsg("idempotency collector: the worker in database \"%s\" took too long and was ended",
						database->name),
				 errhint("Look for triggers on the store that wait, and for transactions that hold locks.")));
	else if (!ShutdownRequestPending)
		ereport(LOG,
				(errmsg("idempotency collector: the worker in database \"%s\" does not react; collection goes on without it",
						database->name)));
}

/*
 * Waits until the worker has rotated the ring, but not while somebody drops or copies the
 * database, and no longer than it may last; false when the worker must end.
 */
static bool
rotation_may_end(const Database *database, BackgroundWorkerHandle *handle)
{
	Deadline	deadline = deadline_after(ROTATION_MICROSECONDS);

	while (visit_is_long(database->oid))
	{
		if (ShutdownRequestPending || deadline_left(&deadline) <= 0 || database_is_locked(database->oid))
			return false;
		(void) ends_within(handle, LOOK_MICROSECONDS);
	}
	return true;
}

/*
 * Waits for a worker as long as it may stay; false when it must end.  A worker that
 * rotates the ring has more time, and then as much again as others for the rest of its
 * visit.
 */
static bool
ends_in_time(const Database *database, BackgroundWorkerHandle *handle, bool may_take_long)
{
	return ends_within(handle, STAY_MICROSECONDS) ||
		(may_take_long && visit_is_long(database->oid) &&
		 rotation_may_end(database, handle) && ends_within(handle, STAY_MICROSECONDS));
}

/* Starts the worker of a database and waits for its end; false: it could not start. */
static bool
run_worker(Database *database, const Visit *visit, bool may_take_long)
{
	BackgroundWorkerHandle *handle = start_worker(visit);

	if (handle == NULL)
	{
		warn_of_missing_slots();
		return false;
	}
	if (ends_in_time(database, handle, may_take_long))
		database->cancelled = 0;
	else
	{
		database->cancelled++;
		end_worker(database, handle);
	}
	pfree(handle);
	return true;
}

/* The pause before the next visit of a database whose worker has failed so often. */
static int64
pause_after_failures(int failures)
{
	return ((int64) setting_gc_interval << Min(failures, BACKOFF_DOUBLINGS)) * USECS_PER_SEC;
}

/*
 * The pause after a visit.  After one that took longer than usual the database is left
 * alone for as long, so that it takes no more than half of the launcher's time; and for
 * twice as long each time that its visit was cancelled.
 */
static int64
pause_after_visit(const Database *database, int64 lasted)
{
	int64		pause = database->is_slow ? lasted << Min(database->cancelled, BACKOFF_DOUBLINGS) : 0;

	return database->failures > 0 ? Max(pause, pause_after_failures(database->failures)) : pause;
}

static void
visit_one(Database *database, bool may_take_long)
{
	Deadline	started = deadline_after(0);
	VisitResult result = VISIT_FAILED;
	Visit		visit;
	int64		lasted;

	if (visit_is_possible(database->oid))
	{
		visit = visit_announce(database->oid);
		if (!run_worker(database, &visit, may_take_long))
			return;
		result = visit_result();
	}
	lasted = -deadline_left(&started);
	database->is_slow = lasted > STAY_MICROSECONDS;
	database->failures = result == VISIT_FAILED ? database->failures + 1 : 0;
	database->has_more = result == VISIT_MORE;
	database->pause = deadline_after(pause_after_visit(database, lasted));
}

static bool
is_to_be_visited(const Database *database)
{
	return database->may_visit && database_is_wanted(database) &&
		!ShutdownRequestPending && setting_gc_enabled;
}

/*
 * Called after each visit that took longer than usual: visits all databases whose
 * visits are quick.  So a database waits for one slow visit, and not for all of them.
 */
static void
visit_quick_ones(List *databases)
{
	ListCell   *cell;

	foreach(cell, databases)
	{
		Database   *database = lfirst(cell);

		if (!database->is_slow && deadline_left(&database->pause) <= 0 && is_to_be_visited(database))
			visit_one(database, false);
	}
}

/* One worker for each database in turn. */
static void
visit_all(List *databases)
{
	ListCell   *cell;

	foreach(cell, databases)
	{
		Database   *database = lfirst(cell);

		if (ShutdownRequestPending || !setting_gc_enabled)
			break;
		if (!is_to_be_visited(database))
		{
			database->has_more = false;
			continue;
		}
		if (deadline_left(&database->pause) > 0)
			continue;
		visit_one(database, true);
		if (database->is_slow)
			visit_quick_ones(databases);
	}
}

/* Which databases have a slot for their counts. */
static List *
counted_databases(void)
{
	List	   *counted = NIL;
	Figures		figures;

	for (int i = 0; i < COUNTED_DATABASES; i++)
	{
		if (stats_read(i, &figures))
			counted = lappend_oid(counted, figures.database);
	}
	return counted;
}

/*
 * Some databases that had counts before the launcher read the list are gone by
 * now.  A database that was created since then cannot be among them.
 */
static void
give_back_slots(List *counted)
{
	ListCell   *cell;

	foreach(cell, counted)
	{
		if (!database_exists(lfirst_oid(cell)))
			stats_give_back(lfirst_oid(cell));
	}
}

/*
 * How long to sleep after a round.  If a database has a backlog: until its pause is
 * over, and a second at least, to read new settings.
 */
static int64
pause_after_round(List *databases)
{
	int64		pause = (int64) setting_gc_interval * USECS_PER_SEC;
	ListCell   *cell;

	foreach(cell, databases)
	{
		const Database *database = lfirst(cell);

		if (database->has_more && setting_gc_enabled)
			pause = Min(pause, Max(deadline_left(&database->pause), USECS_PER_SEC));
	}
	return pause;
}

/* One round; returns the microseconds until the next one. */
static int64
go_round(void)
{
	List	   *counted;
	List	   *databases;

	MemoryContextSwitchTo(round_context);
	counted = counted_databases();
	databases = databases_read(launcher_context);
	MemoryContextSwitchTo(round_context);
	give_back_slots(counted);
	if (settings_are_new)
		databases_warn_of_unknown_names();
	settings_are_new = false;
	visit_all(databases);
	MemoryContextSwitchTo(launcher_context);
	MemoryContextReset(round_context);
	return pause_after_round(databases);
}

void
idempotency_launcher_main(Datum arg)
{
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	pgstat_report_appname("idempotency launcher");
	launcher_context = AllocSetContextCreate(TopMemoryContext, "idempotency launcher",
											 ALLOCSET_DEFAULT_SIZES);
	round_context = AllocSetContextCreate(launcher_context, "idempotency launcher round",
										  ALLOCSET_DEFAULT_SIZES);
	for (;;)
	{
		int64		pause;

		pgstat_report_activity(STATE_IDLE, NULL);
		pause = go_round();
		/* if the signal came during the round, its latch has been reset already */
		if (!ShutdownRequestPending)
			launcher_nap(pause);
		/* with 0 the postmaster would never start the launcher again */
		if (ShutdownRequestPending)
			proc_exit(1);
	}
}

void
launcher_register(void)
{
	BackgroundWorker launcher = {0};

	if (!process_shared_preload_libraries_in_progress)
		return;

	/*
	 * pg_upgrade reads the next transaction id before it starts the server.
	 * Rows that the collector wrote then would have ids that are used again.
	 */
	if (IsBinaryUpgrade)
		return;
	launcher.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	launcher.bgw_start_time = BgWorkerStart_RecoveryFinished;
	launcher.bgw_restart_time = LAUNCHER_RESTART_SECONDS;
	strlcpy(launcher.bgw_library_name, EXTENSION_NAME, BGW_MAXLEN);
	strlcpy(launcher.bgw_function_name, "idempotency_launcher_main", BGW_MAXLEN);
	strlcpy(launcher.bgw_name, "idempotency launcher", BGW_MAXLEN);
	strlcpy(launcher.bgw_type, "idempotency launcher", BGW_MAXLEN);
	RegisterBackgroundWorker(&launcher);
}
