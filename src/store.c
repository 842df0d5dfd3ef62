/*
 * store.c
 *		The record of an operation: looked up, stored, deleted.  What is done to
 *		many records at once is in bulk.c.
 *
 * The most frequent ones take the direct path if it gives the same result.  The
 * response of a record is sealed on its way in.  A reader opens it itself.
 *
 * In a store that is partitioned by expiry, a name may have a row in each part:
 * rows that have expired and are not removed yet, besides the one that counts.
 * That is the row that expires last.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "citus.h"
#include "compat.h"
#include "direct.h"
#include "parts.h"
#include "record.h"
#include "seal.h"
#include "statement.h"
#include "store.h"

/* "EXCLUDED.created_at, …", and "$1, $2, …" */
#define EXCLUDED_FIRST(number, id, name, type, is_set) "EXCLUDED." #name
#define EXCLUDED_NEXT(number, id, name, type, is_set) ", EXCLUDED." #name
#define PARAMETER_FIRST(number, id, name, type, is_set) "$" #number
#define PARAMETER_NEXT(number, id, name, type, is_set) ", $" #number
#define COLUMNS_OF_EXCLUDED RECORD_COLUMN_LIST(EXCLUDED_FIRST, EXCLUDED_NEXT)
#define VALUES RECORD_COLUMN_LIST(PARAMETER_FIRST, PARAMETER_NEXT)

#define NAME_TYPES TEXTOID, TEXTOID

static Statement find_record = {
	"SELECT " RECORD_NAMES ", ctid, tableoid FROM %1$s.idempotency_store"
	" WHERE scope OPERATOR(pg_catalog.=) $1 AND idempotency_key OPERATOR(pg_catalog.=) $2",
	2, {NAME_TYPES},.knows_rows = true
};

/* in a store that is partitioned by expiry */
static Statement find_last = {
	"SELECT " RECORD_NAMES ", ctid, tableoid FROM %1$s.idempotency_store"
	" WHERE scope OPERATOR(pg_catalog.=) $1 AND idempotency_key OPERATOR(pg_catalog.=) $2"
	" ORDER BY expires_at DESC LIMIT 1",
	2, {NAME_TYPES},.knows_rows = true
};

static Statement insert_record = {
	"INSERT INTO %1$s.idempotency_store (" RECORD_NAMES ") VALUES (" VALUES ")",
	RECORD_COLUMNS, {RECORD_TYPES}
};

StaticAssertDecl(RECORD_COLUMNS == 18, "$19 of put_record comes after the columns");

static Statement put_record = {
	"INSERT INTO %1$s.idempotency_store AS judged (" RECORD_NAMES ") VALUES (" VALUES ")"
	" ON CONFLICT (scope, idempotency_key) DO UPDATE SET (" RECORD_NAMES ") = (" COLUMNS_OF_EXCLUDED ")"
	" WHERE judged.updated_at OPERATOR(pg_catalog.=) $19",
	RECORD_COLUMNS + 1, {RECORD_TYPES TIMESTAMPTZOID}
};

/* no key of the whole store could arbitrate; the row may move to another partition */
static Statement update_record = {
	"UPDATE %1$s.idempotency_store AS judged SET (" RECORD_NAMES ") = (" VALUES ")"
	" WHERE scope OPERATOR(pg_catalog.=) $10 AND idempotency_key OPERATOR(pg_catalog.=) $11"
	" AND judged.updated_at OPERATOR(pg_catalog.=) $19",
	RECORD_COLUMNS + 1, {RECORD_TYPES TIMESTAMPTZOID},.knows_rows = true
};

StaticAssertDecl(COLUMN_SCOPE == 9 && COLUMN_IDEMPOTENCY_KEY == 10, "$10 and $11 of update_record");

static Statement delete_record = {
	"DELETE FROM %1$s.idempotency_store WHERE scope OPERATOR(pg_catalog.=) $1"
	" AND idempotency_key OPERATOR(pg_catalog.=) $2 AND updated_at OPERATOR(pg_catalog.=) $3",
	3, {NAME_TYPES, TIMESTAMPTZOID},.knows_rows = true
};

/* where the version of a row is */
typedef struct Place
{
	Oid			part;
	ItemPointerData version;
} Place;

static bool
find_by_sql(const Catalog *catalog, const OperationName *name, Snapshot snapshot,
			Record *found, Place *place)
{
	Datum		arguments[2] = {PointerGetDatum(name->scope), PointerGetDatum(name->key)};
	Datum		values[RECORD_COLUMNS + 2];
	bool		nulls[RECORD_COLUMNS + 2];
	MemoryContext context = CurrentMemoryContext;
	bool		exists;

	exists = statement_run(catalog->store_by_expiry ? &find_last : &find_record,
						   catalog, arguments, NULL, snapshot) > 0;
	if (exists)
	{
		statement_columns(0, values, nulls);
		MemoryContextSwitchTo(context);
		record_from_columns(catalog->status_labels, values, nulls, found);
		found->name = *name;
		place->version = *(ItemPointer) DatumGetPointer(values[RECORD_COLUMNS]);
		place->part = DatumGetObjectId(values[RECORD_COLUMNS + 1]);
	}
	statement_finish();
	return exists;
}

/*
 * The row of a name that expires last.  A row that has not expired is that row:
 * the parts come in such an order, and only one row of a name counts.
 */
static bool
find_in_parts(const Catalog *catalog, const OperationName *name, Snapshot snapshot,
			  Record *found, Place *place)
{
	TimestampTz now = catalog->store_by_expiry ? GetCurrentTimestamp() : DT_NOBEGIN;
	int			count = parts_count();
	bool		exists = false;

	for (int i = 0; i < count && !(exists && found->expires_at > now); i++)
	{
		const Part *part = parts_get(i);
		Record		record;
		ItemPointerData version;

		if (part_is_over(part, now) ||
			!direct_find(catalog, part->table, name, snapshot, &record, &version) ||
			(exists && record.expires_at <= found->expires_at))
			continue;
		*found = record;
		place->part = part->table;
		place->version = version;
		exists = true;
	}
	return exists;
}

/* In a distributed store, the operation is in one shard, which stays where it is. */
static bool
find_in_shard(const Catalog *catalog, const OperationName *name, Snapshot snapshot,
			  Record *found, Place *place)
{
	place->part = citus_shard(name->scope);
	return direct_find(catalog, place->part, name, snapshot, found, &place->version);
}

static bool
find_with_snapshot(const Catalog *catalog, const OperationName *name, Snapshot snapshot,
				   Record *found, Place *place)
{
	bool		exists;

	snapshot = RegisterSnapshot(snapshot);
	exists = catalog->store_distributed ?
		find_in_shard(catalog, name, snapshot, found, place) : catalog->store_plain ?
		find_in_parts(catalog, name, snapshot, found, place) :
		find_by_sql(catalog, name, snapshot, found, place);
	UnregisterSnapshot(snapshot);
	return exists;
}

/*
 * While we looked, another session may have attached a partition and moved rows
 * to it.  Locking a part lets us know: then we look again, at the parts of now.
 */
static bool
find_version(const Catalog *catalog, const OperationName *name, bool newest,
			 Record *found, Place *place)
{
	for (;;)
	{
		bool		exists = find_with_snapshot(catalog, name,
												newest ? GetLatestSnapshot() : GetTransactionSnapshot(),
												found, place);

		if (!catalog->store_by_expiry || !catalog_has_news())
			return exists;
		CHECK_FOR_INTERRUPTS();
		catalog = catalog_open(AccessShareLock);
	}
}

/* The executor has the same message. */
static void
could_not_serialize(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("could not serialize access due to concurrent update"),
			 errhint("Retry the transaction.")));
}

/*
 * The newest committed record of a name, or the one of this transaction.  A
 * caller that holds the operation's lock may rely on it until it writes.
 *
 * At REPEATABLE READ and SERIALIZABLE the transaction's snapshot must see the
 * newest version.  An answer from outside of the snapshot would let two
 * transactions commit on contradictory reads; INSERT ... ON CONFLICT refuses
 * the same.
 */
bool
store_find(const Catalog *catalog, const OperationName *name, Record *found)
{
	Place		newest;
	Place		seen;
	bool		exists = find_version(catalog, name, true, found, &newest);

	if (IsolationUsesXactSnapshot())
	{
		Record		ignored;
		bool		seen_exists = find_version(catalog, name, false, &ignored, &seen);

		if (seen_exists != exists ||
			(exists && (seen.part != newest.part || !ItemPointerEquals(&seen.version, &newest.version))))
			could_not_serialize();
	}
	return exists;
}

/* The record of a name as a plain query would see it. */
bool
store_peek(const Catalog *catalog, const OperationName *name, Record *found)
{
	Place		place;

	return find_version(catalog, name, false, found, &place);
}

/* A record whose name has none. */
static void
insert_by_sql(const Catalog *catalog, const Record *record)
{
	Datum		values[RECORD_COLUMNS + 1] = {0};
	bool		nulls[RECORD_COLUMNS + 1] = {0};

	record_to_columns(catalog->status_labels, record, values, nulls);
	if (statement_run(&insert_record, catalog, values, nulls, InvalidSnapshot) != 1)
		ereport(ERROR,
				(errcode(ERRCODE_TRIGGERED_ACTION_EXCEPTION),
				 errmsg("operation could not be stored"),
				 errdetail("A trigger or rule on table \"idempotency_store\" suppressed the row.")));
	statement_finish();
}

/*
 * A record that replaces the version that the caller has read, or that is inserted if
 * that version was collected.
 */
static void
upsert_by_sql(const Catalog *catalog, const Record *record, TimestampTz judged)
{
	Datum		values[RECORD_COLUMNS + 1];
	bool		nulls[RECORD_COLUMNS + 1] = {0};

	record_to_columns(catalog->status_labels, record, values, nulls);
	values[RECORD_COLUMNS] = TimestampTzGetDatum(judged);
	if (statement_run(&put_record, catalog, values, nulls, InvalidSnapshot) != 1)
		statement_lost_race();
	statement_finish();
}

/*
 * The same in a store that is partitioned by expiry.  A row that came meanwhile
 * belongs to another writer.
 */
static void
update_by_sql(const Catalog *catalog, const Record *record, TimestampTz judged)
{
	Datum		values[RECORD_COLUMNS + 1];
	bool		nulls[RECORD_COLUMNS + 1] = {0};
	bool		updated;
	Record		other;
	Place		place;

	record_to_columns(catalog->status_labels, record, values, nulls);
	values[RECORD_COLUMNS] = TimestampTzGetDatum(judged);
	updated = statement_run(&update_record, catalog, values, nulls, InvalidSnapshot) > 0;
	statement_finish();
	if (updated)
		return;
	if (find_version(catalog, &record->name, true, &other, &place) &&
		other.expires_at > GetCurrentTimestamp())
		statement_lost_race();
	insert_by_sql(catalog, record);
}

/*
 * The part that a record belongs to, locked.  A partition that is attached
 * while we wait for the lock takes rows away from the part for the rest.
 */
static Oid
lock_part(const Catalog *catalog, const Record *record)
{
	Oid			part = catalog->store_distributed ?
		citus_shard(record->name.scope) : parts_for(record->expires_at)->table;

	while (catalog->store_by_expiry)
	{
		Oid			locked = part;

		LockRelationOid(locked, RowExclusiveLock);
		if (!catalog_has_news())
			break;
		catalog = catalog_open(RowExclusiveLock);
		part = parts_for(record->expires_at)->table;
		if (part == locked)
			break;
	}
	return part;
}

/* The part with the row of a name; one that does not count may be anywhere. */
static Oid
part_of_row(const Catalog *catalog, const OperationName *name, Oid preferred)
{
	Record		found;
	Place		place;

	if (!catalog->store_by_expiry)
		return preferred;
	return find_version(catalog, name, true, &found, &place) ? place.part : preferred;
}

/* Replaces the version that was judged.  A row whose expiry is in another part moves. */
static TM_Result
replace_directly(const Catalog *catalog, const Record *record, TimestampTz judged, Oid target)
{
	Oid			part = part_of_row(catalog, &record->name, target);
	bool		moves = part != target;
	TM_Result	result = direct_change(catalog, part, &record->name, moves ? NULL : record, judged);

	if (result == TM_Ok && moves)
		direct_insert(catalog, target, record);
	return result;
}

/* As the statements above do. */
static void
put_directly(const Catalog *catalog, const Record *record, TimestampTz judged)
{
	MemoryContext context = CurrentMemoryContext;

	PG_TRY();
	{
		Oid			target = lock_part(catalog, record);
		TM_Result	result = judged != NO_TIME ?
			replace_directly(catalog, record, judged, target) : TM_Deleted;

		if (result == TM_Deleted)
			direct_insert(catalog, target, record);
		else if (result != TM_Ok && IsolationUsesXactSnapshot())
			could_not_serialize();
		else if (result != TM_Ok)
			statement_lost_race();
	}
	PG_CATCH();
	{
		statement_rethrow(context);
	}
	PG_END_TRY();
}

/*
 * Stores a record: it replaces the version that the caller has read, or is inserted if
 * there was none (NO_TIME) or if that version was collected.  A version that
 * came meanwhile is another writer's.  When this returns, the row is written,
 * and the statements that follow in this transaction see it.
 */
void
store_put(const Catalog *catalog, const Record *record, TimestampTz judged)
{
	Record		stored = *record;

	seal_record(&stored);
	if (catalog->store_plain)
		put_directly(catalog, &stored, judged);
	else if (judged == NO_TIME)
		insert_by_sql(catalog, &stored);
	else if (catalog->store_by_expiry)
		update_by_sql(catalog, &stored, judged);
	else
		upsert_by_sql(catalog, &stored, judged);
}

static void
delete_by_sql(const Catalog *catalog, const OperationName *name, TimestampTz judged)
{
	Datum		arguments[3] = {
		PointerGetDatum(name->scope), PointerGetDatum(name->key), TimestampTzGetDatum(judged)
	};

	if (statement_run(&delete_record, catalog, arguments, NULL, InvalidSnapshot) != 1)
		statement_lost_race();
	statement_finish();
}

/* Deletes the version that the caller has read; if another writer has changed it, 40001. */
void
store_delete(const Catalog *catalog, const OperationName *name, TimestampTz judged)
{
	if (!catalog->store_distributed)
		delete_by_sql(catalog, name, judged);
	else if (direct_change(catalog, citus_shard(name->scope), name, NULL, judged) != TM_Ok)
		statement_lost_race();
}
