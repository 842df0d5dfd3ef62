/*
 * store.c
 *		Every SQL statement on the tables.
 *
 * All of them go through SPI, so that whatever the owner has added to the
 * store (triggers, constraints, partitions, row security) does its work.  The
 * two hot ones take the direct path where that can make no difference.
 *
 * Statements run as the owner of the store and not a moment longer:
 * applications have no rights on the tables.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "commands/sequence.h"
#include "executor/spi.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "direct.h"
#include "record.h"
#include "store.h"

#define COLUMNS "created_at, updated_at, expires_at, lease_expires_at, retry_at, fence, " \
	"status, attempt, response_code, scope, idempotency_key, request_hash, " \
	"response_headers, response_payload, response_body"
#define COLUMNS_OF_EXCLUDED "EXCLUDED.created_at, EXCLUDED.updated_at, EXCLUDED.expires_at, " \
	"EXCLUDED.lease_expires_at, EXCLUDED.retry_at, EXCLUDED.fence, EXCLUDED.status, " \
	"EXCLUDED.attempt, EXCLUDED.response_code, EXCLUDED.scope, EXCLUDED.idempotency_key, " \
	"EXCLUDED.request_hash, EXCLUDED.response_headers, EXCLUDED.response_payload, " \
	"EXCLUDED.response_body"
#define VALUES "$1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15"

typedef enum Statement
{
	STATEMENT_FIND,
	STATEMENT_INSERT,
	STATEMENT_PUT,
	STATEMENT_DELETE,
	STATEMENT_ADVANCE,
	STATEMENT_SWEEP_POSITION,
	STATEMENT_SWEEP_PAGES,
	STATEMENT_SWEEP_REMEMBER
} Statement;
#define STATEMENTS 8

/* %s is the extension's schema */
static const char *const texts[STATEMENTS] =
{
	[STATEMENT_FIND] =
	"SELECT " COLUMNS ", ctid FROM %s.idempotency_store"
	" WHERE scope OPERATOR(pg_catalog.=) $1 AND idempotency_key OPERATOR(pg_catalog.=) $2",

	[STATEMENT_INSERT] =
	"INSERT INTO %s.idempotency_store (" COLUMNS ") VALUES (" VALUES ")",

	[STATEMENT_PUT] =
	"INSERT INTO %s.idempotency_store AS judged (" COLUMNS ") VALUES (" VALUES ")"
	" ON CONFLICT (scope, idempotency_key) DO UPDATE SET (" COLUMNS ") = (" COLUMNS_OF_EXCLUDED ")"
	" WHERE judged.updated_at OPERATOR(pg_catalog.=) $16",

	[STATEMENT_DELETE] =
	"DELETE FROM %s.idempotency_store WHERE scope OPERATOR(pg_catalog.=) $1"
	" AND idempotency_key OPERATOR(pg_catalog.=) $2 AND updated_at OPERATOR(pg_catalog.=) $3",

	[STATEMENT_ADVANCE] =
	"INSERT INTO %s.idempotency_stream AS mark (scope, stream, seq, updated_at)"
	" VALUES ($1, $2, $3, pg_catalog.clock_timestamp())"
	" ON CONFLICT (scope, stream) DO UPDATE"
	" SET seq = EXCLUDED.seq, updated_at = EXCLUDED.updated_at"
	" WHERE mark.seq OPERATOR(pg_catalog.<) EXCLUDED.seq",

	[STATEMENT_SWEEP_POSITION] =
	"SELECT next_page FROM %s.idempotency_sweep",

	/* expiry is checked again under the row lock, as READ COMMITTED does */
	[STATEMENT_SWEEP_PAGES] =
	"WITH expired AS MATERIALIZED (SELECT ctid AS place FROM %1$s.idempotency_store"
	" WHERE ctid OPERATOR(pg_catalog.>=) $1 AND ctid OPERATOR(pg_catalog.<) $2"
	" AND expires_at OPERATOR(pg_catalog.<=) $3"
	" AND (status OPERATOR(pg_catalog.<>) 'PENDING'"
	" OR (lease_expires_at OPERATOR(pg_catalog.>) $3) IS NOT TRUE)"
	" LIMIT $4 FOR UPDATE SKIP LOCKED)"
	", removed AS (DELETE FROM %1$s.idempotency_store"
	" WHERE ctid OPERATOR(pg_catalog.=) ANY (ARRAY(SELECT place FROM expired)) RETURNING ctid AS place)"
	" SELECT pg_catalog.count(*), pg_catalog.max(place) FROM removed",

	[STATEMENT_SWEEP_REMEMBER] =
	"INSERT INTO %s.idempotency_sweep (next_page, swept_at)"
	" VALUES ($1, pg_catalog.clock_timestamp())"
	" ON CONFLICT (only_row) DO UPDATE"
	" SET next_page = EXCLUDED.next_page, swept_at = EXCLUDED.swept_at",
};

static SPIPlanPtr plans[STATEMENTS];
static uint64 plans_generation = 0;

/* how deep statements are nested: a trigger on the store may begin operations */
static int	running = 0;

typedef struct User
{
	Oid			id;
	int			context;
} User;

/* An error brings the user back with the (sub)transaction's end. */
static User
become_owner(const Catalog *catalog)
{
	User		caller;

	GetUserIdAndSecContext(&caller.id, &caller.context);
	SetUserIdAndSecContext(catalog->store_owner,
						   caller.context | SECURITY_LOCAL_USERID_CHANGE | SECURITY_NOFORCE_RLS);
	return caller;
}

static void
become_caller(User caller)
{
	SetUserIdAndSecContext(caller.id, caller.context);
}

#define NAME_TYPES TEXTOID, TEXTOID
#define MAX_PARAMETERS (RECORD_COLUMNS + 1)

/* InvalidOid is idempotency_status */
static const struct
{
	int			count;
	Oid			types[MAX_PARAMETERS];
}			parameters[STATEMENTS] =
{
	[STATEMENT_FIND] = {2, {NAME_TYPES}},
	[STATEMENT_INSERT] = {RECORD_COLUMNS, {RECORD_TYPES}},
	[STATEMENT_PUT] = {RECORD_COLUMNS + 1, {RECORD_TYPES, TIMESTAMPTZOID}},
	[STATEMENT_DELETE] = {3, {NAME_TYPES, TIMESTAMPTZOID}},
	[STATEMENT_ADVANCE] = {3, {NAME_TYPES, INT8OID}},
	[STATEMENT_SWEEP_POSITION] = {0, {0}},
	[STATEMENT_SWEEP_PAGES] = {4, {TIDOID, TIDOID, TIMESTAMPTZOID, INT8OID}},
	[STATEMENT_SWEEP_REMEMBER] = {1, {INT8OID}},
};

static SPIPlanPtr
prepare(const Catalog *catalog, Statement statement)
{
	char	   *sql = psprintf(texts[statement], quote_identifier(catalog->schema));
	Oid			types[MAX_PARAMETERS];
	SPIPlanPtr	plan;

	for (int i = 0; i < MAX_PARAMETERS; i++)
		types[i] = OidIsValid(parameters[statement].types[i]) ?
			parameters[statement].types[i] : catalog->status_type;
	plan = SPI_prepare(sql, parameters[statement].count, types);

	if (plan == NULL)
		elog(ERROR, "could not prepare a statement on the store: %s",
			 SPI_result_code_string(SPI_result));
	SPI_keepplan(plan);
	pfree(sql);
	return plan;
}

/* Plans of other objects than the present ones are of no use any more. */
static void
forget_stale_plans(const Catalog *catalog)
{
	if (plans_generation == catalog->generation || running > 0)
		return;
	for (int i = 0; i < STATEMENTS; i++)
	{
		SPIPlanPtr	plan = plans[i];

		plans[i] = NULL;
		if (plan != NULL)
			SPI_freeplan(plan);
	}
	plans_generation = catalog->generation;
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
	return error->sqlerrcode == ERRCODE_UNIQUE_VIOLATION &&
		error->constraint_name != NULL &&
		strcmp(error->constraint_name, catalog->key_name) == 0;
}

static void
stored_by_another(void)
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
static void
rethrow(const Catalog *catalog, MemoryContext context)
{
	ErrorData  *error;

	MemoryContextSwitchTo(context);
	error = CopyErrorData();
	if (!is_about_row(error))
		PG_RE_THROW();
	FlushErrorState();
	if (is_duplicate_name(catalog, error))
		stored_by_another();
	error->detail = NULL;
	error->detail_log = NULL;
	ReThrowError(error);
}

/*
 * A plan that was made while the store was small must not read all of it when
 * it has grown: these statements know the place or the key of their rows.
 */
static int
without_seq_scan(Statement statement)
{
	int			nest_level = NewGUCNestLevel();

	if (statement == STATEMENT_FIND || statement == STATEMENT_DELETE ||
		statement == STATEMENT_SWEEP_PAGES)
		(void) set_config_option("enable_seqscan", "off", PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_SAVE, true, 0, false);
	return nest_level;
}

/*
 * Runs one statement as the owner and returns how many rows it gave.  A NULL
 * snapshot is for statements that write.  SPI remains connected: the caller
 * reads the rows and calls SPI_finish.
 */
static uint64
run(const Catalog *catalog, Statement statement, Datum *values, const bool *nulls,
	Snapshot snapshot)
{
	MemoryContext context = CurrentMemoryContext;
	char		null_flags[MAX_PARAMETERS];
	User		caller;
	int			nest_level;

	for (int i = 0; i < MAX_PARAMETERS; i++)
		null_flags[i] = nulls != NULL && nulls[i] ? 'n' : ' ';

	forget_stale_plans(catalog);
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "could not connect to SPI");
	caller = become_owner(catalog);
	nest_level = without_seq_scan(statement);
	running++;
	PG_TRY();
	{
		int			result;

		if (plans[statement] == NULL)
			plans[statement] = prepare(catalog, statement);
		result = SPI_execute_snapshot(plans[statement], values, null_flags,
									  snapshot, InvalidSnapshot, snapshot != NULL,
									  true, 0);
		if (result < 0)
			elog(ERROR, "could not run a statement on the store: %s",
				 SPI_result_code_string(result));
	}
	PG_CATCH();
	{
		running--;
		rethrow(catalog, context);
	}
	PG_END_TRY();
	running--;
	AtEOXact_GUC(true, nest_level);
	become_caller(caller);
	return SPI_processed;
}

static bool
find_by_sql(const Catalog *catalog, const OperationName *name, Snapshot snapshot,
			Record *found, ItemPointer version)
{
	Datum		arguments[2] = {PointerGetDatum(name->scope), PointerGetDatum(name->key)};
	Datum		values[RECORD_COLUMNS + 1];
	bool		nulls[RECORD_COLUMNS + 1];
	MemoryContext context = CurrentMemoryContext;
	bool		exists;

	exists = run(catalog, STATEMENT_FIND, arguments, NULL, snapshot) > 0;
	if (exists)
	{
		heap_deform_tuple(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, values, nulls);
		MemoryContextSwitchTo(context);
		record_from_columns(catalog, values, nulls, found);
		found->name = *name;
		*version = *(ItemPointer) DatumGetPointer(values[RECORD_COLUMNS]);
	}
	SPI_finish();
	return exists;
}

static bool
find(const Catalog *catalog, const OperationName *name, Snapshot snapshot,
	 Record *found, ItemPointer version)
{
	bool		exists;

	snapshot = RegisterSnapshot(snapshot);
	exists = catalog->store_plain ?
		direct_find(catalog, name, snapshot, found, version) :
		find_by_sql(catalog, name, snapshot, found, version);
	UnregisterSnapshot(snapshot);
	return exists;
}

/*
 * The newest committed record of a name, or this transaction's own.
 *
 * Where the isolation level keeps one snapshot, what that snapshot sees must
 * be the newest version: an answer from outside it would let two transactions
 * commit on contradictory reads, as INSERT ... ON CONFLICT refuses to.
 */
bool
store_find(const Catalog *catalog, const OperationName *name, Record *found)
{
	ItemPointerData newest;
	ItemPointerData seen;
	bool		exists = find(catalog, name, GetLatestSnapshot(), found, &newest);

	if (IsolationUsesXactSnapshot())
	{
		Record		ignored;
		bool		seen_exists = find(catalog, name, GetTransactionSnapshot(), &ignored, &seen);

		if (seen_exists != exists || (exists && !ItemPointerEquals(&seen, &newest)))
			ereport(ERROR,
					(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
					 errmsg("could not serialize access due to concurrent update of an operation"),
					 errhint("Retry the transaction.")));
	}
	return exists;
}

/* The record of a name as a plain query would see it. */
bool
store_peek(const Catalog *catalog, const OperationName *name, Record *found)
{
	ItemPointerData version;

	return find(catalog, name, GetTransactionSnapshot(), found, &version);
}

static void
insert_directly(const Catalog *catalog, const Record *record)
{
	MemoryContext context = CurrentMemoryContext;

	PG_TRY();
	{
		direct_insert(catalog, record);
	}
	PG_CATCH();
	{
		rethrow(catalog, context);
	}
	PG_END_TRY();
}

/* A record whose name has none. */
static void
insert_by_sql(const Catalog *catalog, const Record *record)
{
	Datum		values[RECORD_COLUMNS + 1] = {0};
	bool		nulls[RECORD_COLUMNS + 1] = {0};

	record_to_columns(catalog, record, values, nulls);
	if (run(catalog, STATEMENT_INSERT, values, nulls, InvalidSnapshot) != 1)
		ereport(ERROR,
				(errcode(ERRCODE_TRIGGERED_ACTION_EXCEPTION),
				 errmsg("operation could not be stored"),
				 errdetail("A trigger or rule on table \"idempotency_store\" suppressed the row.")));
	SPI_finish();
}

/* Stores a record whose name has none. */
void
store_insert(const Catalog *catalog, const Record *record)
{
	if (catalog->store_plain)
		insert_directly(catalog, record);
	else
		insert_by_sql(catalog, record);
}

/*
 * Stores a record in place of the version that was judged, or of none if that
 * was collected.  A version that came after it is another writer's.
 */
void
store_put(const Catalog *catalog, const Record *record, TimestampTz judged)
{
	Datum		values[RECORD_COLUMNS + 1];
	bool		nulls[RECORD_COLUMNS + 1] = {0};

	record_to_columns(catalog, record, values, nulls);
	values[RECORD_COLUMNS] = TimestampTzGetDatum(judged);
	if (run(catalog, STATEMENT_PUT, values, nulls, InvalidSnapshot) != 1)
		stored_by_another();
	SPI_finish();
}

/* Deletes the version that was judged; one that came after it stays. */
void
store_delete(const Catalog *catalog, const OperationName *name, TimestampTz judged)
{
	Datum		arguments[3] = {
		PointerGetDatum(name->scope), PointerGetDatum(name->key), TimestampTzGetDatum(judged)
	};

	(void) run(catalog, STATEMENT_DELETE, arguments, NULL, InvalidSnapshot);
	SPI_finish();
}

/*
 * Moves a stream's high-water mark; false if it is there or further already.
 * Callers queue up on the row, so that they see each other's marks.
 */
bool
store_advance(const Catalog *catalog, const OperationName *stream, int64 seq)
{
	Datum		arguments[3] = {
		PointerGetDatum(stream->scope), PointerGetDatum(stream->key), Int64GetDatum(seq)
	};
	bool		advanced = run(catalog, STATEMENT_ADVANCE, arguments, NULL, InvalidSnapshot) > 0;

	SPI_finish();
	return advanced;
}

/* Where the last sweep that committed stopped. */
BlockNumber
store_sweep_position(const Catalog *catalog)
{
	BlockNumber position = 0;
	bool		is_null;

	if (run(catalog, STATEMENT_SWEEP_POSITION, NULL, NULL, InvalidSnapshot) > 0)
		position = (BlockNumber) DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[0],
															 SPI_tuptable->tupdesc,
															 1, &is_null));
	SPI_finish();
	return position;
}

/*
 * Removes what has expired on the pages from start to before end, and tells
 * the last page that it removed something from.
 */
int64
store_sweep_pages(const Catalog *catalog, BlockNumber start, BlockNumber end,
				  TimestampTz now, int64 max_rows, BlockNumber *last)
{
	ItemPointerData first;
	ItemPointerData after;
	Datum		arguments[4];
	int64		removed;
	Datum		place;
	bool		is_null;

	ItemPointerSet(&first, start, 0);
	ItemPointerSet(&after, end, 0);
	arguments[0] = PointerGetDatum(&first);
	arguments[1] = PointerGetDatum(&after);
	arguments[2] = TimestampTzGetDatum(now);
	arguments[3] = Int64GetDatum(max_rows);
	(void) run(catalog, STATEMENT_SWEEP_PAGES, arguments, NULL, InvalidSnapshot);
	removed = DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc,
										  1, &is_null));
	place = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 2, &is_null);
	*last = is_null ? start : ItemPointerGetBlockNumber((ItemPointer) DatumGetPointer(place));
	SPI_finish();
	return removed;
}

void
store_sweep_remember(const Catalog *catalog, BlockNumber position)
{
	Datum		arguments[1] = {Int64GetDatum(position)};

	(void) run(catalog, STATEMENT_SWEEP_REMEMBER, arguments, NULL, InvalidSnapshot);
	SPI_finish();
}

/*
 * A new fence, greater than the one given: the sequence alone could have
 * fallen behind where rows were replicated without it.
 */
int64
store_next_fence(const Catalog *catalog, int64 after)
{
	int64		fence = nextval_internal(catalog->fences, false);

	return Max(fence, after + 1);
}
