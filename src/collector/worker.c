/*
 * worker.c
 *		The collector's worker: one visit to one database.
 *
 * A worker leaves at once where the extension is not installed, and after
 * VISIT_MICROSECONDS at the latest, so that nothing keeps a database from
 * being dropped or copied.  It never catches an error: it exits, and the
 * launcher visits its database again later and later.
 *
 * Sweeps pace themselves with the cost figures of vacuum and sleep between
 * transactions, so that they hold no lock while they sleep.
 *
 * A database's owner chooses its settings, but they do not apply to the
 * worker: it uses those of the server.
 */
#include "postgres.h"

#include "access/xact.h"
#include "commands/dbcommands.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/guc_tables.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "base/compat.h"
#include "base/idempotency.h"
#include "base/settings.h"
#include "collector/databases.h"
#include "collector/gc.h"
#include "collector/visit.h"
#include "schema/catalog.h"
#include "schema/table_owner.h"
#include "shared/stats.h"
#include "shared/wait.h"

/*
 * Vacuum's costs, at two and a half times the rate of autovacuum's defaults: a
 * row costs about as much as a whole page does there.
 */
#define COST_LIMIT 500
#ifndef COST_DELAY_MICROSECONDS
#define COST_DELAY_MICROSECONDS 2000
#endif

/*
 * Pages of one transaction: 128 kB.  A commit flushes the WAL of all sessions,
 * so after a larger step the next commit of any session would wait longer.
 */
#define STEP_PAGES 16

static emit_log_hook_type previous_log_hook = NULL;

PGDLLEXPORT void idempotency_worker_main(Datum arg);

/* ---- what a message says ---- */

static char *name_of_database = NULL;

/* While an error is reported, catalogs cannot be read. */
static void
remember_name_of_database(void)
{
	char	   *name;

	if (name_of_database != NULL)
		return;
	name = get_database_name(MyDatabaseId);
	if (name != NULL)
		name_of_database = MemoryContextStrdup(TopMemoryContext, name);
}

/* By default the server's log does not show in which database a worker is. */
static void
add_database_to_context(void *arg)
{
	if (name_of_database != NULL)
		errcontext("idempotency collector in database \"%s\"", name_of_database);
}

/* ---- what it does ---- */

/* what one transaction is for */
typedef void (*Work) (const Catalog *catalog, Sweep *sweep);

/*
 * Does the work in a transaction, unless the store is not there, or is locked.
 *
 * A worker starts as a superuser.  The owner's code on the store must not run
 * with more rights than the owner has.  So the worker is the owner until after
 * COMMIT, which fires deferred triggers.
 */
static void
work_once(Work work, Sweep *sweep)
{
	const Catalog *catalog;
	Caller		caller;

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	remember_name_of_database();
	pgstat_report_activity(STATE_RUNNING, "collecting expired operations");
	catalog = catalog_open_if_free(RowExclusiveLock);
	if (catalog != NULL)
	{
		caller = table_owner_enter_transaction(catalog->store_owner);
		work(catalog, sweep);
	}
	else if (!OidIsValid(get_extension_oid(EXTENSION_NAME, true)))
		stats_give_back(MyDatabaseId);
	PopActiveSnapshot();
	CommitTransactionCommand();
	if (catalog != NULL)
		table_owner_leave(&caller);
	pgstat_report_stat(false);
	pgstat_report_activity(STATE_IDLE, NULL);
}

/* Sleeps as long as the cost of the pages asks for, but not beyond the visit. */
static void
nap_for_cost(const Deadline *deadline)
{
	int64		cost = (int64) VacuumCostBalance * COST_DELAY_MICROSECONDS / COST_LIMIT;

	(void) visit_nap(Min(cost, Max(deadline_left(deadline), 0)), wait_event_collector());
	VacuumCostBalance = 0;
}

/* The launcher has to know when a visit will last longer. */
static void
rotate(const Catalog *catalog, Sweep *sweep)
{
	visit_takes_long(catalog->store_kind == STORE_RING);
	gc_rotate(catalog, sweep);
}

/*
 * Rotates the ring: each table in a transaction of its own, so that its locks are
 * short, and one with rows a visit, as it is read to its end; true if there was one.
 */
static bool
rotate_for_a_while(void)
{
	Deadline	deadline = deadline_after(VISIT_MICROSECONDS);
	Sweep		sweep = {0};

	do
	{
		sweep.max_rotations = 1;
		sweep.rotated = 0;
		work_once(rotate, &sweep);
	} while (sweep.rotated > 0 && sweep.removed == 0 && setting_gc_enabled &&
			 deadline_left(&deadline) > 0);
	visit_takes_long(false);
	return sweep.removed > 0;
}

/*
 * Sweeps on to the end of the store, but no more pages than one idem_gc()
 * would, in small steps, as a session that needs a row which is being removed
 * waits for the transaction; false if the visit is over before.  If gc_batch_size
 * rows or more were removed, there is a backlog.
 */
static bool
sweep_on(const Deadline *deadline, bool *has_backlog)
{
	Sweep		sweep = {.max_pages = STEP_PAGES};

	do
	{
		Sweep		before = sweep;

		sweep.max_rows = setting_gc_batch_size;
		work_once(gc_sweep, &sweep);
		*has_backlog = sweep.removed >= setting_gc_batch_size;
		/* there is no store, or another session sweeps it */
		if (sweep.seen == before.seen && sweep.removed == before.removed)
			return true;
		nap_for_cost(deadline);
		if (!setting_gc_enabled || deadline_left(deadline) <= 0)
			return false;
	} while (sweep.finished == 0 && sweep.seen < GC_PAGES);
	return true;
}

static VisitResult
sweep_for_a_while(void)
{
	bool		emptied_one = setting_gc_enabled && rotate_for_a_while();
	Deadline	deadline = deadline_after(VISIT_MICROSECONDS);
	bool		has_backlog = false;

	VacuumCostActive = true;
	while (setting_gc_enabled && sweep_on(&deadline, &has_backlog) && has_backlog)
		;
	return has_backlog || emptied_one ? VISIT_MORE : VISIT_DONE;
}

/* ---- how it starts ---- */

/*
 * Planner settings stay as the server has them: these values have priority
 * over those of the database.
 */
static void
keep_planner_settings(void)
{
	int			count;
	struct config_generic **settings = all_settings(&count);

	for (int i = 0; i < count; i++)
	{
		struct config_generic *setting = settings[i];

		if ((setting->flags & GUC_EXPLAIN) != 0 &&
			(setting->context == PGC_USERSET || setting->context == PGC_SUSET))
			SetConfigOption(setting->name, GetConfigOption(setting->name, false, false),
							PGC_SUSET, PGC_S_OVERRIDE);
	}
}

/*
 * Overrides settings of the database and of the superuser, as autovacuum does, and
 * those that give the text of a statement another meaning.
 */
static void
ignore_settings_of_database(void)
{
	static const char *const settings[][2] = {
		{"array_nulls", "on"},
		{"backslash_quote", "safe_encoding"},
		{"debug_print_parse", "off"},
		{"debug_print_plan", "off"},
		{"debug_print_rewritten", "off"},
		{"default_transaction_isolation", "read committed"},
		{"default_transaction_read_only", "off"},
		{"enable_tidscan", "on"},
		{"lock_timeout", "0"},
		{"plan_cache_mode", "auto"},
		{"quote_all_identifiers", "off"},
		{"role", "none"},
		{"session_replication_role", "origin"},
		{"standard_conforming_strings", "on"},
		{"synchronous_commit", "off"},
		{"transaction_timeout", "0"},	/* since 17 */
		{"transform_null_equals", "off"},
		{"vacuum_cost_page_dirty", "20"},
		{"vacuum_cost_page_hit", "1"},
		{"vacuum_cost_page_miss", "2"}
	};

	for (int i = 0; i < lengthof(settings); i++)
		if (GetConfigOption(settings[i][0], true, false) != NULL)
			SetConfigOption(settings[i][0], settings[i][1], PGC_SUSET, PGC_S_OVERRIDE);
}

/*
 * DROP DATABASE holds its lock while it ends the sessions there (FORCE). A
 * process that gets the signal to end waits for nothing and holds no
 * lightweight lock, so the lock table may be read.
 */
static bool
database_is_being_dropped(void)
{
	return OidIsValid(MyDatabaseId) && database_is_locked(MyDatabaseId);
}

/* Compares with the server's own text: missing files of a database are an error to log. */
static bool
database_is_gone(const ErrorData *error)
{
	return error->detail == NULL ||
		strcmp(error->detail, _("It seems to have just been dropped or renamed.")) == 0;
}

/*
 * Databases come and go, and the launcher ends visits: such messages need no
 * attention.
 */
static void
hide_expected_errors(ErrorData *error)
{
	if (error->elevel == FATAL &&
		((error->sqlerrcode == ERRCODE_UNDEFINED_DATABASE && database_is_gone(error)) ||
		 (error->sqlerrcode == ERRCODE_ADMIN_SHUTDOWN &&
		  (visit_is_cancelled() || database_is_being_dropped()))))
		error->output_to_server = false;
	if (previous_log_hook)
		previous_log_hook(error);
}

void
idempotency_worker_main(Datum arg)
{
	Visit		visit;
	ErrorContextCallback context = {.previous = error_context_stack,.callback = add_database_to_context};

	memcpy(&visit, MyBgworkerEntry->bgw_extra, sizeof(Visit));
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	previous_log_hook = emit_log_hook;
	emit_log_hook = hide_expected_errors;
	if (!visit_begin(&visit))
		proc_exit(0);
	BackgroundWorkerUnblockSignals();
	keep_planner_settings();
	BackgroundWorkerInitializeConnectionByOid(visit.database, InvalidOid, 0);
	pgstat_report_appname("idempotency collector");
	ignore_settings_of_database();
	error_context_stack = &context;
	visit_report(&visit, sweep_for_a_while());
	proc_exit(0);
}
