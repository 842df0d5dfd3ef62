/*
 * statement.c
 *		Runs one SQL statement on the extension's tables: its plan, the rights
 *		that it is checked against, and its errors.
 *
 * Statements go through SPI, so that whatever the owner has added to a table
 * (triggers, constraints, partitions, row security) does its work.
 *
 * Applications have no rights on the tables.  The statements are checked
 * against the rights of the store's owner, as the tables of a view are checked
 * against those of the view's owner, but they run as the caller: what a
 * trigger or an index expression does, it never does with the owner's rights.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "parser/analyze.h"
#include "rewrite/rewriteDefine.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/plancache.h"
#include "utils/resowner.h"

#include "compat.h"
#include "statement.h"

/* those that have a plan */
static Statement *planned = NULL;

/* text that is being analyzed for the first time, and whose rights count then */
static const char *preparing = NULL;
static Oid	store_owner = InvalidOid;

static post_parse_analyze_hook_type previous_hook = NULL;

/* the text of a plan that is analyzed again, after an invalidation */
static const char *
text_of_plan(SPIPlanPtr plan)
{
	return ((CachedPlanSource *) linitial(SPI_plan_get_plan_sources(plan)))->query_string;
}

/*
 * Is it one of ours?  Told by where the text is: its wording others can
 * imitate, and their statements may well be analyzed while one of ours runs.
 */
static bool
is_ours(const char *text)
{
	if (text == NULL)
		return false;
	if (text == preparing)
		return true;
	for (Statement *statement = planned; statement; statement = statement->next)
	{
		if (text == text_of_plan(statement->plan))
			return true;
	}
	return false;
}

static void
check_as_owner(ParseState *state, Query *query, JumbleState *jumble)
{
	if (previous_hook)
		previous_hook(state, query, jumble);
	if (is_ours(state->p_sourcetext))
		setRuleCheckAsUser((Node *) query, store_owner);
}

void
statement_register(void)
{
	previous_hook = post_parse_analyze_hook;
	post_parse_analyze_hook = check_as_owner;
}

static void
forget_plan(Statement *statement)
{
	SPIPlanPtr	plan = statement->plan;

	for (Statement **place = &planned; *place; place = &(*place)->next)
	{
		if (*place == statement)
		{
			*place = statement->next;
			break;
		}
	}
	statement->plan = NULL;
	if (plan != NULL)
		SPI_freeplan(plan);
}

static void
prepare(Statement *statement, const Catalog *catalog)
{
	char	   *sql = psprintf(statement->text, quote_identifier(catalog->schema));
	Oid			types[STATEMENT_PARAMETERS];
	SPIPlanPtr	plan;

	for (int i = 0; i < statement->count; i++)
		types[i] = OidIsValid(statement->types[i]) ? statement->types[i] : catalog->status_type;

	preparing = sql;
	PG_TRY();
	{
		plan = SPI_prepare_cursor(sql, statement->count, types, CURSOR_OPT_GENERIC_PLAN);
	}
	PG_FINALLY();
	{
		preparing = NULL;
	}
	PG_END_TRY();
	if (plan == NULL)
		elog(ERROR, "could not prepare a statement on the store: %s",
			 SPI_result_code_string(SPI_result));
	SPI_keepplan(plan);
	statement->plan = plan;
	statement->generation = catalog->generation;
	statement->next = planned;
	planned = statement;
	pfree(sql);
}

/*
 * Makes the plan that will run, if there is none or what it is for has changed.
 *
 * Row security is off even where the owner has forced it on himself: the
 * records of an operation must not be out of sight.  A plan that was made
 * while the store was small must not read all of it when it has grown.
 */
static void
plan(Statement *statement, const Catalog *catalog)
{
	int			nest_level = NewGUCNestLevel();
	CachedPlan *cached;
	Oid			user;
	int			context;

	store_owner = catalog->store_owner;
	/* not one that is in use further out */
	if (statement->plan != NULL && statement->generation != catalog->generation &&
		statement->running == 1)
		forget_plan(statement);
	GetUserIdAndSecContext(&user, &context);
	SetUserIdAndSecContext(user, context | SECURITY_NOFORCE_RLS);
	if (statement->knows_rows)
		(void) set_config_option("enable_seqscan", "off", PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_SAVE, true, 0, false);
	if (statement->plan == NULL)
		prepare(statement, catalog);
	cached = SPI_plan_get_cached_plan(statement->plan);
	if (cached == NULL)
		elog(ERROR, "a statement on the store has more than one plan");
	ReleaseCachedPlan(cached, CurrentResourceOwner);
	AtEOXact_GUC(true, nest_level);
	SetUserIdAndSecContext(user, context);
}

/* Is it about a row, perhaps one of the store or of a part of it? */
static bool
is_about_row(const ErrorData *error)
{
	return ERRCODE_TO_CATEGORY(error->sqlerrcode) == ERRCODE_INTEGRITY_CONSTRAINT_VIOLATION;
}

/* Did a writer that takes no lock of ours come first? */
static bool
is_duplicate_name(const Catalog *catalog, const ErrorData *error)
{
	ListCell   *cell;

	if (error->sqlerrcode != ERRCODE_UNIQUE_VIOLATION || error->constraint_name == NULL)
		return false;
	foreach(cell, catalog->key_names)
	{
		if (strcmp(error->constraint_name, (char *) lfirst(cell)) == 0)
			return true;
	}
	return false;
}

void
statement_lost_race(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("operation was stored concurrently by another writer"),
			 errhint("Retry the transaction.")));
}

/*
 * Called in PG_CATCH.
 *
 * Whoever holds an operation's lock inserts without a conflict, unless the row
 * came from outside (logical replication, COPY): then the transaction started
 * from what is no longer so, and may be retried.  A constraint that the owner
 * has added must not print the row, which has the response in it.
 */
void
statement_rethrow(const Catalog *catalog, MemoryContext context)
{
	ErrorData  *error;

	MemoryContextSwitchTo(context);
	error = CopyErrorData();
	if (!is_about_row(error))
		PG_RE_THROW();
	FlushErrorState();
	if (is_duplicate_name(catalog, error))
		statement_lost_race();
	error->detail = NULL;
	error->detail_log = NULL;
	ReThrowError(error);
}

static void
execute(Statement *statement, Datum *values, const bool *nulls, Snapshot snapshot)
{
	char		null_flags[STATEMENT_PARAMETERS];
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
 * Runs a statement and returns how many rows it gave.  A NULL snapshot is for
 * statements that write.  The rows are there until statement_finish.
 */
uint64
statement_run(Statement *statement, const Catalog *catalog,
			  Datum *values, const bool *nulls, Snapshot snapshot)
{
	MemoryContext context = CurrentMemoryContext;

	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "could not connect to SPI");
	/* planning may run code of the owner's as well, which may begin operations */
	statement->running++;
	PG_TRY();
	{
		plan(statement, catalog);
		execute(statement, values, nulls, snapshot);
	}
	PG_CATCH();
	{
		statement->running--;
		statement_rethrow(catalog, context);
	}
	PG_END_TRY();
	statement->running--;
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
