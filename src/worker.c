/*
 * worker.c
 *		The background collector: a launcher, and a worker per database in turn.
 *
 * The launcher is connected to no database.  Every idempotency.gc_interval it
 * starts one short-lived worker for each database, one after the other, as
 * autoprewarm does.  A worker leaves at once where the extension is not
 * installed, and after VISIT_MILLISECONDS at the latest, so that nothing keeps
 * a database from being dropped or copied.  It never catches an error: it
 * exits, and its database is visited again later and later.
 *
 * Sweeps pace themselves with the cost figures of vacuum and sleep between
 * transactions, so that they hold no lock while they sleep.
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/varlena.h"

#include "catalog.h"
#include "compat.h"
#include "gc.h"
#include "idempotency.h"
#include "settings.h"
#include "shared.h"
#include "wait.h"
#include "worker.h"

/* how long one worker stays in a database */
#define VISIT_MILLISECONDS 2000
/* a postmaster that lost its launcher starts it again after that */
#define LAUNCHER_RESTART_SECONDS 10
/* a database whose worker failed is left alone for up to 2^6 intervals */
#define BACKOFF_DOUBLINGS 6

/*
 * Vacuum's costs, at two and a half times the rate of autovacuum's defaults: a
 * row costs about as much as a whole page does there.
 */
#define COST_LIMIT 500
#define COST_DELAY_MICROSECONDS 2000

/*
 * Pages of one transaction: 128 kB.  A commit flushes the WAL of everybody, so
 * whoever commits next waits for what a larger step would have written.
 */
#define STEP_PAGES 16

typedef enum WorkerResult
{
	RESULT_FAILED,				/* unless it says otherwise */
	RESULT_DONE,
	RESULT_MORE					/* there is a backlog: come again soon */
} WorkerResult;

typedef struct Database
{
	Oid			oid;
	char		name[NAMEDATALEN];
	int			failures;		/* in a row */
	TimestampTz not_before;		/* the time of the next visit */
	bool		present;		/* in the list of this round */
} Database;

static List *databases = NIL;	/* of Database, in the launcher's own context */
static MemoryContext launcher_context;

PGDLLEXPORT void idempotency_launcher_main(Datum arg);
PGDLLEXPORT void idempotency_worker_main(Datum arg);

/* Sleeps, but wakes for the postmaster's death, signals and settings. */
static void
nap(int64 microseconds, uint32 wait_event)
{
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 (microseconds + 999) / 1000, wait_event);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
	}
}

/* ---- launcher ---- */

/* Does idempotency.gc_databases name it? */
static bool
is_wanted(const char *name)
{
	char	   *list = pstrdup(setting_gc_databases);
	List	   *names;
	ListCell   *cell;
	bool		wanted = false;

	if (strcmp(setting_gc_databases, "*") == 0)
		return true;
	if (SplitIdentifierString(list, ',', &names))
	{
		foreach(cell, names)
			wanted = wanted || strcmp((char *) lfirst(cell), name) == 0;
	}
	pfree(list);
	return wanted;
}

static Database *
find_database(Oid oid)
{
	ListCell   *cell;

	foreach(cell, databases)
	{
		Database   *database = lfirst(cell);

		if (database->oid == oid)
			return database;
	}
	return NULL;
}

static void
note_database(Form_pg_database form)
{
	Database   *database = find_database(form->oid);
	MemoryContext caller;

	if (database == NULL)
	{
		caller = MemoryContextSwitchTo(launcher_context);
		database = palloc0(sizeof(Database));
		database->oid = form->oid;
		databases = lappend(databases, database);
		MemoryContextSwitchTo(caller);
	}
	strlcpy(database->name, NameStr(form->datname), NAMEDATALEN);
	database->present = true;
}

/* What there is to visit now; databases that are gone are forgotten. */
static void
read_databases(void)
{
	Relation	catalog;
	TableScanDesc scan;
	HeapTuple	tuple;
	ListCell   *cell;

	foreach(cell, databases)
		((Database *) lfirst(cell))->present = false;

	StartTransactionCommand();
	(void) GetTransactionSnapshot();
	catalog = table_open(DatabaseRelationId, AccessShareLock);
	scan = table_beginscan_catalog(catalog, 0, NULL);
	while (HeapTupleIsValid(tuple = heap_getnext(scan, ForwardScanDirection)))
	{
		Form_pg_database form = (Form_pg_database) GETSTRUCT(tuple);

		if (form->datallowconn && !form->datistemplate &&
			form->datconnlimit != DATCONNLIMIT_INVALID_DB &&
			is_wanted(NameStr(form->datname)))
			note_database(form);
	}
	table_endscan(scan);
	table_close(catalog, AccessShareLock);
	CommitTransactionCommand();

	foreach(cell, databases)
	{
		Database   *database = lfirst(cell);

		if (!database->present)
		{
			databases = foreach_delete_current(databases, cell);
			pfree(database);
		}
	}
}

/* Once, not in every round. */
static void
complain_of_slots(void)
{
	static bool complained = false;

	if (!complained)
		ereport(LOG,
				(errmsg("idempotency collector: no background worker is free"),
				 errhint("Raise max_worker_processes.")));
	complained = true;
}

/* Starts the worker of a database and waits for its end; false: no free slot. */
static bool
run_worker(const Database *database)
{
	BackgroundWorker worker = {0};
	BackgroundWorkerHandle *handle;
	pid_t		pid;

	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	worker.bgw_main_arg = ObjectIdGetDatum(database->oid);
	worker.bgw_notify_pid = MyProcPid;
	strlcpy(worker.bgw_library_name, EXTENSION_NAME, BGW_MAXLEN);
	strlcpy(worker.bgw_function_name, "idempotency_worker_main", BGW_MAXLEN);
	strlcpy(worker.bgw_name, "idempotency collector", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "idempotency collector", BGW_MAXLEN);

	pg_atomic_write_u32(&shared->worker_result, RESULT_FAILED);
	if (!RegisterDynamicBackgroundWorker(&worker, &handle))
	{
		complain_of_slots();
		return false;
	}
	(void) WaitForBackgroundWorkerStartup(handle, &pid);
	(void) WaitForBackgroundWorkerShutdown(handle);
	pfree(handle);
	return true;
}

/* How long to leave a database alone whose worker has failed that often. */
static int64
backoff(int failures)
{
	return ((int64) setting_gc_interval << Min(failures, BACKOFF_DOUBLINGS)) * USECS_PER_SEC;
}

/* Visits a database; true when there is more to do than one visit could. */
static bool
visit(Database *database)
{
	WorkerResult result;

	if (database->not_before > GetCurrentTimestamp() || !run_worker(database))
		return false;
	result = (WorkerResult) pg_atomic_read_u32(&shared->worker_result);
	database->failures = result == RESULT_FAILED ? database->failures + 1 : 0;
	if (database->failures > 0)
		database->not_before = GetCurrentTimestamp() + backoff(database->failures);
	return result == RESULT_MORE;
}

/* One worker for each database in turn; true when some have a backlog. */
static bool
visit_all(void)
{
	ListCell   *cell;
	bool		more = false;

	read_databases();
	foreach(cell, databases)
	{
		if (ShutdownRequestPending)
			break;
		more = visit(lfirst(cell)) || more;
	}
	return more;
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
	for (;;)
	{
		bool		more = false;

		pgstat_report_activity(STATE_IDLE, NULL);
		if (setting_gc_enabled)
			more = visit_all();
		/* with a backlog just long enough to hear of new settings */
		nap(more ? 1000 : (int64) setting_gc_interval * USECS_PER_SEC, wait_event_launcher());
		/* not zero: whoever ended only the launcher gets it back */
		if (ShutdownRequestPending)
			proc_exit(1);
	}
}

/* ---- worker ---- */

/*
 * One short transaction: whoever meets a row that it removes waits for it.
 *
 * A worker starts as a superuser.  What the owner has put onto the store must
 * not run with more rights than the owner has, and must not get at them: so
 * the worker is the owner, as in a function with SECURITY DEFINER, until after
 * COMMIT, which fires deferred triggers.
 */
static void
sweep_once(Sweep *sweep)
{
	const Catalog *catalog;
	Oid			user;
	int			context;

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	pgstat_report_activity(STATE_RUNNING, "collecting expired operations");
	GetUserIdAndSecContext(&user, &context);
	catalog = catalog_open_if_free(RowExclusiveLock);
	if (catalog != NULL)
	{
		SetUserIdAndSecContext(catalog->store_owner, context | SECURITY_LOCAL_USERID_CHANGE);
		gc_sweep(catalog, sweep);
	}
	PopActiveSnapshot();
	CommitTransactionCommand();
	SetUserIdAndSecContext(user, context);
	pgstat_report_stat(false);
	pgstat_report_activity(STATE_IDLE, NULL);
}

/* Sleeps for what the pages touched have cost. */
static void
pay(void)
{
	nap((int64) VacuumCostBalance * COST_DELAY_MICROSECONDS / COST_LIMIT, wait_event_collector());
	VacuumCostBalance = 0;
}

/*
 * Sweeps as many pages as one idem_gc() would, in small steps; false when the
 * visit is over before.  Rows that come as fast as gc_batch_size allows are a
 * backlog.
 */
static bool
sweep_round(const Deadline *deadline, bool *has_backlog)
{
	Sweep		sweep = {.max_pages = STEP_PAGES};

	do
	{
		Sweep		before = sweep;

		sweep.max_rows = setting_gc_batch_size;
		sweep_once(&sweep);
		*has_backlog = sweep.removed >= setting_gc_batch_size;
		/* there is no store, or somebody else sweeps it */
		if (sweep.seen == before.seen && sweep.removed == before.removed)
			return true;
		pay();
		if (!setting_gc_enabled || deadline_left(deadline) <= 0)
			return false;
	} while (sweep.seen < Min(sweep.pages, GC_PAGES));
	return true;
}

static WorkerResult
sweep_for_a_while(void)
{
	Deadline	deadline = deadline_after(VISIT_MILLISECONDS * INT64CONST(1000));
	bool		has_backlog = false;

	VacuumCostActive = true;
	while (setting_gc_enabled && sweep_round(&deadline, &has_backlog) && has_backlog)
		;
	return has_backlog ? RESULT_MORE : RESULT_DONE;
}

/* What a database or the superuser sets for its sessions, as autovacuum does. */
static void
ignore_settings_of_database(void)
{
	static const char *const settings[][2] = {
		{"default_transaction_isolation", "read committed"},
		{"default_transaction_read_only", "off"},
		{"enable_tidscan", "on"},
		{"lock_timeout", "0"},
		{"plan_cache_mode", "auto"},
		{"role", "none"},
		{"session_replication_role", "origin"},
		{"synchronous_commit", "off"},
		{"transaction_timeout", "0"}	/* since 17 */
	};

	for (int i = 0; i < lengthof(settings); i++)
		if (GetConfigOption(settings[i][0], true, false) != NULL)
			SetConfigOption(settings[i][0], settings[i][1], PGC_SUSET, PGC_S_OVERRIDE);
}

void
idempotency_worker_main(Datum arg)
{
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnectionByOid(DatumGetObjectId(arg), InvalidOid, 0);
	pgstat_report_appname("idempotency collector");
	ignore_settings_of_database();
	pg_atomic_write_u32(&shared->worker_result, sweep_for_a_while());
	proc_exit(0);
}

/* ---- */

void
worker_register(void)
{
	BackgroundWorker launcher = {0};

	if (!process_shared_preload_libraries_in_progress)
		return;

	/*
	 * pg_upgrade has noted the next transaction id before it starts a server:
	 * what takes one there would be lost, and so would the rows it wrote.
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
