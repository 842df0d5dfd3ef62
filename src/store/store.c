/*
 * store.c
 *		The record of an operation: looked up, stored, deleted.  What is done to
 *		many records at once is in bulk.c.
 *
 * The most frequent ones take the direct path if it gives the same result.  The
 * response of a record is sealed on its way in.  A reader opens it itself.
 *
 * Where a store has a ring of tables, a row may be in any of them, and in the store
 * itself.  Ranges say where new rows go, and no look-up believes them.  A row that is
 * replaced leaves the table where it was, so a name has one row.  Where others
 * have made two, that one counts that expires last.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/inval.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "citus/citus.h"
#include "schema/store_tables.h"
#include "schema/record.h"
#include "seal/seal.h"
#include "store/by_sql.h"
#include "store/direct.h"
#include "store/row_error.h"
#include "store/store.h"

/* The store itself, or the scope's shard of a distributed one, which stays where it is. */
static Oid
only_table(const Catalog *catalog, const OperationName *name)
{
	return catalog->store_distributed ? citus_shard(name->scope) : catalog->tables[TABLE_STORE];
}

/* The row of a name in one table. */
static bool
find_in(const Catalog *catalog, Oid table, bool is_plain, const OperationName *name,
		Snapshot snapshot, Record *found, RowPosition *position)
{
	position->table = table;
	return is_plain ? direct_find(catalog, table, name, snapshot, found, &position->version) :
		by_sql_find(catalog, table, name, snapshot, found, position);
}

/* The list of tables may change meanwhile, as SQL may run code of the owner's. */
static StoreTable *
copy_tables(int *count)
{
	StoreTable *tables;

	*count = store_tables_count();
	tables = palloc(*count * sizeof(StoreTable));
	memcpy(tables, store_tables_get(0), *count * sizeof(StoreTable));
	return tables;
}

/* The row of a name that has not expired, or the one that expires last. */
static bool
find_in_ring(const Catalog *catalog, const OperationName *name, Snapshot snapshot,
			 Record *found, RowPosition *position)
{
	TimestampTz now = GetCurrentTimestamp();
	bool		exists = false;
	int			count;
	StoreTable *tables = copy_tables(&count);

	for (int i = 0; i < count && !(exists && found->expires_at > now); i++)
	{
		Record		record;
		RowPosition here;

		if (!find_in(catalog, tables[i].oid, tables[i].is_plain, name, snapshot, &record, &here) ||
			(exists && record.expires_at <= found->expires_at))
			continue;
		*found = record;
		*position = here;
		exists = true;
	}
	pfree(tables);
	return exists;
}

static bool
find_with_snapshot(const Catalog *catalog, const OperationName *name, Snapshot snapshot,
				   Record *found, RowPosition *position)
{
	bool		exists;

	snapshot = RegisterSnapshot(snapshot);
	exists = catalog->store_has_ring ? find_in_ring(catalog, name, snapshot, found, position) :
		find_in(catalog, only_table(catalog, name), catalog->store_plain, name, snapshot, found, position);
	UnregisterSnapshot(snapshot);
	return exists;
}

/*
 * The list of tables is not older than the snapshot, so that no table is missed which
 * has rows.  A table that is emptied or dropped meanwhile lets us know when we lock
 * it: then we look again.
 */
static bool
find_version(const Catalog *catalog, const OperationName *name, bool newest,
			 Record *found, RowPosition *position)
{
	for (;;)
	{
		bool		exists;

		AcceptInvalidationMessages();
		if (catalog_has_news())
			catalog = catalog_open(AccessShareLock);
		exists = find_with_snapshot(catalog, name,
									newest ? GetLatestSnapshot() : GetTransactionSnapshot(),
									found, position);
		if (!catalog->store_has_ring || !catalog_has_news())
			return exists;
		CHECK_FOR_INTERRUPTS();
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
	RowPosition newest;
	RowPosition seen;
	bool		exists = find_version(catalog, name, true, found, &newest);

	if (IsolationUsesXactSnapshot())
	{
		Record		ignored;
		bool		seen_exists = find_version(catalog, name, false, &ignored, &seen);

		if (seen_exists != exists ||
			(exists && (seen.table != newest.table || !ItemPointerEquals(&seen.version, &newest.version))))
			could_not_serialize();
	}
	return exists;
}

/* The record of a name as a plain query would see it. */
bool
store_peek(const Catalog *catalog, const OperationName *name, Record *found)
{
	RowPosition position;

	return find_version(catalog, name, false, found, &position);
}

/*
 * The table that a new record belongs to.  If any table has become something else than
 * the script made, which needs SQL, all of them go to the store itself.
 */
static Oid
table_for(const Catalog *catalog, const Record *record)
{
	return catalog->store_has_ring && catalog->store_plain ? store_tables_for(record->expires_at) :
		only_table(catalog, &record->name);
}

/*
 * The same, locked.  What has changed until then counts: a table that was emptied
 * has another range, and a table with a second index, as REINDEX CONCURRENTLY makes, is
 * not for the direct path (store_plain).
 */
static Oid
lock_table_for(const Catalog *catalog, const Record *record)
{
	for (;;)
	{
		Oid			table = table_for(catalog, record);

		/* the store itself has been locked all the time */
		if (table == catalog->tables[TABLE_STORE])
			return table;
		LockRelationOid(table, RowExclusiveLock);
		if (!catalog_has_news())
			return table;
		UnlockRelationOid(table, RowExclusiveLock);
		CHECK_FOR_INTERRUPTS();
		catalog = catalog_open(RowExclusiveLock);
	}
}

static bool
is_plain_table(Oid table)
{
	for (int i = 0; i < store_tables_count(); i++)
	{
		if (store_tables_get(i)->oid == table)
			return store_tables_get(i)->is_plain;
	}
	return false;
}

static bool
find_newest_in(const Catalog *catalog, Oid table, const OperationName *name, Record *found)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	RowPosition position;
	bool		exists = find_in(catalog, table, is_plain_table(table), name, snapshot, found, &position);

	UnregisterSnapshot(snapshot);
	return exists;
}

/* false: the table does not have the version that the caller has read. */
static bool
delete_in(const Catalog *catalog, Oid table, const OperationName *name, TimestampTz expected)
{
	return is_plain_table(table) ? direct_change(catalog, table, name, NULL, expected) == TM_Ok :
		by_sql_delete(catalog, table, name, expected);
}

/*
 * Deletes the expected version, if it is in another table of the ring than
 * its successor will be in.  true: then the successor replaces the version that
 * *expected says, which did not count, or none.
 */
static bool
leave_other_table(const Catalog *catalog, const OperationName *name, Oid target, TimestampTz *expected)
{
	Record		found;
	RowPosition position;

	if (!catalog->store_has_ring || !find_version(catalog, name, true, &found, &position) ||
		position.table == target)
		return false;
	/* it may have been collected */
	if (!delete_in(catalog, position.table, name, *expected) &&
		find_newest_in(catalog, position.table, name, &found))
	{
		if (IsolationUsesXactSnapshot())
			could_not_serialize();
		row_error_lost_race();
	}
	*expected = find_newest_in(catalog, target, name, &found) ? found.updated_at : NO_TIME;
	return true;
}

/* Most often the successor belongs to the table where the version is. */
static TM_Result
replace_directly(const Catalog *catalog, const Record *record, TimestampTz expected, Oid target)
{
	TM_Result	result = TM_Deleted;

	if (expected != NO_TIME)
		result = direct_change(catalog, target, &record->name, record, expected);
	if ((result == TM_Deleted || result == TM_Invisible) && expected != NO_TIME &&
		leave_other_table(catalog, &record->name, target, &expected))
		result = expected == NO_TIME ? TM_Deleted :
			direct_change(catalog, target, &record->name, record, expected);
	return result;
}

/* As the statements below do. */
static void
put_directly(const Catalog *catalog, const Record *record, TimestampTz expected, Oid target)
{
	MemoryContext context = CurrentMemoryContext;

	PG_TRY();
	{
		TM_Result	result = replace_directly(catalog, record, expected, target);

		if (result == TM_Deleted)
			direct_insert(catalog, target, record);
		else if (result != TM_Ok && IsolationUsesXactSnapshot())
			could_not_serialize();
		else if (result != TM_Ok)
			row_error_lost_race();
	}
	PG_CATCH();
	{
		row_error_rethrow(context);
	}
	PG_END_TRY();
}

static void
put_by_sql(const Catalog *catalog, const Record *record, TimestampTz expected)
{
	if (expected != NO_TIME)
		(void) leave_other_table(catalog, &record->name, catalog->tables[TABLE_STORE], &expected);
	if (expected == NO_TIME)
		by_sql_insert(catalog, record);
	else
		by_sql_upsert(catalog, record, expected);
}

/*
 * Stores a record: it replaces the version that the caller has read, or is inserted if
 * there was none (NO_TIME) or if that version was collected.  A version that
 * came meanwhile is another writer's.  When this returns, the row is written,
 * and the statements that follow in this transaction see it.
 */
void
store_put(const Catalog *catalog, const Record *record, TimestampTz expected)
{
	Record		stored = *record;
	Oid			target = InvalidOid;

	seal_record(&stored);
	if (catalog->store_plain)
		target = lock_table_for(catalog, &stored);
	/* asked again: the lock may have let us know */
	if (catalog->store_plain)
		put_directly(catalog, &stored, expected, target);
	else
		put_by_sql(catalog, &stored, expected);
}

/* Stores a record of this table whose response was sealed anew; it stays there. */
void
store_reseal(const Catalog *catalog, Oid table, const Record *record)
{
	if (!(is_plain_table(table) ?
		  direct_change(catalog, table, &record->name, record, record->updated_at) == TM_Ok :
		  by_sql_update(catalog, table, record)))
		row_error_lost_race();
}

/* Deletes the version that the caller has read; if another writer has changed it, 40001. */
void
store_delete(const Catalog *catalog, const OperationName *name, TimestampTz expected)
{
	Record		found;
	RowPosition position = {only_table(catalog, name)};

	if (catalog->store_has_ring && !find_version(catalog, name, true, &found, &position))
		row_error_lost_race();
	/* one table by SQL, whatever its shape: the most usual statement on the most usual store */
	if (!(catalog->store_distributed || catalog->store_has_ring ?
		  delete_in(catalog, position.table, name, expected) :
		  by_sql_delete(catalog, position.table, name, expected)))
		row_error_lost_race();
}
