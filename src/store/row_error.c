/*
 * row_error.c
 *		What the errors of writing a row become: 40001 if another writer was
 *		first, 09000 if the owner's trigger keeps the row out, and no message
 *		that prints the row.
 *
 * They come from statements and from the direct path.
 */
#include "postgres.h"

#include "access/xact.h"

#include "base/compat.h"
#include "schema/store_tables.h"
#include "store/row_error.h"

/* Is the error about a row: of the store, or of a table or view that the owner's code writes to? */
static bool
is_about_row(int sqlstate)
{
	return ERRCODE_TO_CATEGORY(sqlstate) == ERRCODE_INTEGRITY_CONSTRAINT_VIOLATION ||
		sqlstate == ERRCODE_WITH_CHECK_OPTION_VIOLATION;
}

/* Has a writer that takes no lock of ours stored the row first? */
static bool
is_duplicate_name(const ErrorData *error)
{
	return error->sqlerrcode == ERRCODE_UNIQUE_VIOLATION &&
		store_tables_have_key(error->schema_name, error->table_name, error->constraint_name);
}

void
row_error_lost_race(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("operation was stored concurrently by another writer"),
			 errhint("Retry the transaction.")));
}

/*
 * The row is not the version that the caller has read.  At REPEATABLE READ and
 * SERIALIZABLE the executor has the same message.
 */
void
row_error_changed(void)
{
	if (!IsolationUsesXactSnapshot())
		row_error_lost_race();
	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("could not serialize access due to concurrent update"),
			 errhint("Retry the transaction.")));
}

/* The owner's trigger or rule returned no row: a retry would end in the same way. */
void
row_error_suppressed(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_TRIGGERED_ACTION_EXCEPTION),
			 errmsg("operation could not be stored"),
			 errdetail("A trigger or rule on table \"idempotency_store\" suppressed the write.")));
}

/*
 * Called in PG_CATCH.
 *
 * A session that holds an operation's lock inserts without a conflict, unless
 * the row came from outside (logical replication, COPY). Then the transaction
 * has read an older state, and may be retried.  A constraint that the owner
 * has added must not print the row, which has the response in it.
 */
void
row_error_rethrow(MemoryContext context)
{
	ErrorData  *error;

	/* in ErrorContext still: whoever catches it next may delete ours */
	if (!is_about_row(geterrcode()))
		PG_RE_THROW();
	MemoryContextSwitchTo(context);
	error = CopyErrorData();
	FlushErrorState();
	if (is_duplicate_name(error))
		row_error_lost_race();
	error->detail = NULL;
	error->detail_log = NULL;
	ReThrowError(error);
}
