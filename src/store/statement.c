/*
 * statement.c
 *		Runs one SQL statement on the extension's tables: its plan, and the
 *		rights that it is checked against.
 *
 * Statements go through SPI, so that whatever the owner has added to a table
 * (triggers, constraints, partitions, row security) does its work.
 *
 * Applications have no rights on the tables.  The statements are checked
 * against the rights of the store's owner, as the tables of a view are checked
 * against those of the view's owner, but they run as the caller: a
 * trigger or an index expression never runs with the owner's rights.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/transam.h"
#include "executor/executor.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "parser/analyze.h"
#include "rewrite/rewriteDefine.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/plancache.h"

#include "base/compat.h"
#include "base/fault.h"
#include "schema/table_owner.h"
#include "store/row_error.h"
#include "store/statement.h"

/* those that have a plan */
static Statement *planned = NULL;

/* text that is being analyzed for the first time, and the owner whose rights count */
static const char *preparing = NULL;
static Oid	store_owner = InvalidOid;

/* A statement that is being planned, and the state to restore afterwards. */
typedef struct Planning
{
	Statement  *statement;
	int			nest_level;		/* of settings */
	Oid			user;
	int			context;
	struct Planning *outer;		/* planning may run code of the owner's */
} Planning;

static Planning *planning = NULL;

static post_parse_analyze_hook_type previous_analyze_hook = NULL;
static ExecutorStart_hook_type previous_start_hook = NULL;

/* the text of a plan that is analyzed again, after an invalidation */
static const char *
text_of_plan(SPIPlanPtr plan)
{
	return ((CachedPlanSource *) linitial(SPI_plan_get_plan_sources(plan)))->query_string;
}

/*
 * Which of our statements is it, if any?  The address of the text decides, not
 * the text: others can imitate the text, and their statements may be analyzed
 * while one of ours runs.
 */
static const Statement *
statement_of(const char *text)
{
	if (text == NULL)
		return NULL;
	if (text == preparing)
		return planning->statement;
	for (Statement *statement = planned; statement; statement = statement->next)
	{
		if (text == text_of_plan(statement->plan))
			return statement;
	}
	return NULL;
}

/*
 * The names in our text were resolved again: are they still the table that we
 * locked?
 */
static bool
names_another(Node *node, Oid *relation)
{
	if (node == NULL)
		return false;
	if (IsA(node, RangeTblEntry))
		return ((RangeTblEntry *) node)->rtekind == RTE_RELATION &&
			((RangeTblEntry *) node)->relid != *relation &&
			((RangeTblEntry *) node)->relid >= FirstNormalObjectId;
	if (IsA(node, Query))
		return query_tree_walker((Query *) node, as_walker(names_another), relation, QTW_EXAMINE_RTES_BEFORE);
	return expression_tree_walker(node, as_walker(names_another), relation);
}

static void
name_changed(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("schema of extension \"%s\" was renamed concurrently", EXTENSION_NAME),
			 errhint("Retry the transaction.")));
}

static void
check_as_owner(ParseState *state, Query *query, JumbleArgument jumble)
{
	const Statement *statement;

	if (previous_analyze_hook)
		previous_analyze_hook(state, query, jumble);
	statement = statement_of(state->p_sourcetext);
	if (statement == NULL)
		return;
	if (names_another((Node *) query, unconstify(Oid *, &statement->relation)))
		name_changed();
	setRuleCheckAsUser((Node *) query, store_owner);
}

static void
set_while_planning(const char *setting, const char *value)
{
	(void) set_config_option(setting, value, PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
}

/*
 * Row security is off, even if the owner has forced it: it must not hide
 * records.  A plan that was made while the store was small must not read all
 * of it when it has grown.
 */
static void
start_planning(Planning *run)
{
	run->nest_level = NewGUCNestLevel();
	GetUserIdAndSecContext(&run->user, &run->context);
	SetUserIdAndSecContext(run->user, run->context | SECURITY_NOFORCE_RLS);
	if (run->statement->knows_rows)
		set_while_planning("enable_seqscan", "off");
	if (run->statement->in_pg_catalog)
		set_while_planning("search_path", "pg_catalog, pg_temp");
	run->outer = planning;
	planning = run;
}

static void
end_planning(Planning *run)
{
	planning = run->outer;
	AtEOXact_GUC(true, run->nest_level);
	SetUserIdAndSecContext(run->user, run->context);
}

/*
 * The plan is made, and no invalidation can have it made again.  From here on
 * the statement, and all that it calls, runs with the caller's own state.
 */
static void
start_executor(QueryDesc *query, int flags)
{
	if (planning != NULL && planning->statement->plan != NULL &&
		query->sourceText == text_of_plan(planning->statement->plan))
		end_planning(planning);
	if (previous_start_hook)
		previous_start_hook(query, flags);
	else
		standard_ExecutorStart(query, flags);
}

void
statement_register(void)
{
	previous_analyze_hook = post_parse_analyze_hook;
	post_parse_analyze_hook = check_as_owner;
	previous_start_hook = ExecutorStart_hook;
	ExecutorStart_hook = start_executor;
}

static void
forget_plan(Statement *statement)
{
	SPIPlanPtr	plan = statement->plan;

	for (Statement **link = &planned; *link; link = &(*link)->next)
	{
		if (*link == statement)
		{
			*link = statement->next;
			break;
		}
	}
	statement->plan = NULL;
	if (plan != NULL)
		SPI_freeplan(plan);
}

/* A table by its name, without those that inherit from it; partitions belong to it. */
static const char *
name_of_table(Oid table)
{
	char	   *name = get_rel_name(table);
	/* the owner may have moved it to another schema */
	char	   *schema = name != NULL ? get_namespace_name(get_rel_namespace(table)) : NULL;

	if (schema == NULL)
		return "";
	return psprintf("%s%s", get_rel_relkind(table) == RELKIND_PARTITIONED_TABLE ? "" : "ONLY ",
					quote_qualified_identifier(schema, name));
}

static void
prepare_plan(Statement *statement, const Catalog *catalog)
{
	char	   *sql = psprintf(statement->text, OidIsValid(statement->store_table) ? name_of_table(statement->store_table) :
							   quote_identifier(catalog->schema));
	Oid			types[STATEMENT_PARAMETERS];

	statement->generation = catalog->generation;
	statement->planned_for = statement->store_table;
	for (int i = 0; i < statement->count; i++)
		types[i] = OidIsValid(statement->types[i]) ? statement->types[i] : catalog->status_type;

	preparing = sql;
	PG_TRY();
	{
		statement->plan = SPI_prepare_cursor(sql, statement->count, types, CURSOR_OPT_GENERIC_PLAN);
	}
	PG_FINALLY();
	{
		preparing = NULL;
	}
	PG_END_TRY();
	if (statement->plan == NULL)
		elog(ERROR, "could not prepare a statement on the store: %s",
			 SPI_result_code_string(SPI_result));
	SPI_keepplan(statement->plan);
	statement->next = planned;
	planned = statement;
	pfree(sql);
}

/*
 * The same statement with a plan that no outer call is using: that may be for another
 * table.  Planning may run the owner's code, too, and a trigger may begin operations.
 * (Inlined, it would be suspected of variables that a longjmp clobbers.)
 */
static pg_noinline Statement *
not_running(Statement *statement)
{
	while (statement->is_running)
	{
		Statement  *inner = statement->inner;

		if (inner == NULL)
		{
			inner = MemoryContextAlloc(TopMemoryContext, sizeof(Statement));
			*inner = *statement;
			inner->plan = NULL;
			inner->is_running = false;
			statement->inner = inner;
		}
		inner->store_table = statement->store_table;
		statement = inner;
	}
	return statement;
}

/* A plan for the objects of this moment. */
static void
have_plan(Statement *statement, const Catalog *catalog)
{
	store_owner = catalog->store_owner;
	if (statement->plan != NULL &&
		(statement->generation != catalog->generation || statement->store_table != statement->planned_for))
		forget_plan(statement);
	if (statement->plan == NULL)
		prepare_plan(statement, catalog);
}

static void
execute_plan(Statement *statement, Datum *values, const bool *nulls, Snapshot snapshot)
{
	char		null_flags[STATEMENT_PARAMETERS] = "";
	int			result;

	for (int i = 0; i < statement->count; i++)
		null_flags[i] = nulls != NULL && nulls[i] ? 'n' : ' ';
	result = SPI_execute_snapshot(statement->plan, values, null_flags,
								  snapshot, InvalidSnapshot, snapshot != NULL, true, 0);
	if (result < 0)
		elog(ERROR, "could not run a statement on the store: %s",
			 SPI_result_code_string(result));
}

/*
 * Our text was not understood because the schema was renamed just now: its old
 * name does not exist, or belongs to a schema with other tables.  The table itself
 * was there when it was locked.
 */
static bool
is_renamed_schema(const Statement *statement, const Catalog *catalog)
{
	int			code = geterrcode();

	return (code == ERRCODE_UNDEFINED_SCHEMA ||
			ERRCODE_TO_CATEGORY(code) == ERRCODE_SYNTAX_ERROR_OR_ACCESS_RULE_VIOLATION) &&
		statement->generation != catalog->generation;
}

/* Called in PG_CATCH. */
static void
statement_failed(Planning *run, const Catalog *catalog, MemoryContext context)
{
	bool		was_planning = planning == run;

	/* the end of the transaction restores the rest */
	if (was_planning)
		planning = run->outer;
	run->statement->is_running = false;
	if (was_planning && is_renamed_schema(run->statement, catalog))
	{
		MemoryContextSwitchTo(context);
		FlushErrorState();
		name_changed();
	}
	row_error_rethrow(context);
}

/* A table of the store is found by its OID: the store is locked, so the table stays one of it. */
static Oid
lock_table_of(const Statement *statement, LOCKMODE mode)
{
	if (!OidIsValid(statement->store_table))
		return catalog_lock(statement->table, mode);
	LockRelationOid(statement->store_table, mode);
	return statement->store_table;
}

/*
 * Runs a statement and returns how many rows it gave.  A NULL snapshot is for
 * statements that write.  The rows are there until statement_finish.
 */
uint64
statement_run(Statement *wanted, const Catalog *catalog,
			  Datum *values, const bool *nulls, Snapshot snapshot)
{
	MemoryContext context = CurrentMemoryContext;
	Statement  *statement = not_running(wanted);
	Planning	run = {.statement = statement};
	Caller		caller;

	statement->relation = lock_table_of(statement, snapshot != NULL ? AccessShareLock : RowExclusiveLock);
	FAULT_POINT("statement-locked");
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "could not connect to SPI");
	caller = table_owner_enter_statement(statement->relation);
	statement->is_running = true;
	PG_TRY();
	{
		start_planning(&run);
		have_plan(statement, catalog);
		execute_plan(statement, values, nulls, snapshot);
	}
	PG_CATCH();
	{
		statement_failed(&run, catalog, context);
	}
	PG_END_TRY();
	/* rules of the owner may have left nothing to execute */
	if (planning == &run)
		end_planning(&run);
	statement->is_running = false;
	table_owner_leave(&caller);
	return SPI_processed;
}

/* A column, from 1, of a row of the statement that has just run, from 0. */
Datum
statement_column(int row, int column, bool *is_null)
{
	return SPI_getbinval(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, column, is_null);
}

/* All of them. */
void
statement_columns(int row, Datum *values, bool *nulls)
{
	heap_deform_tuple(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, values, nulls);
}

void
statement_finish(void)
{
	SPI_finish();
}
