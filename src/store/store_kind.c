/*
 * store_kind.c
 *		The kind of the store: one table, a ring of tables, or tables that Citus
 *		distributes over nodes.  What differs between the kinds is here: in which
 *		table a name is looked up, stored and deleted, what keeps it there, and
 *		which tables a walk visits.
 *
 * In a ring a row may be in any table, and in the store itself.  Ranges say where
 * new rows go, and no look-up relies on them.  A row that is replaced leaves the
 * table where it was, so a name has one row.  If somebody else has made two, the one
 * that expires last counts.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/inval.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "base/fault.h"
#include "citus/citus.h"
#include "citus/citus_metadata.h"
#include "schema/store_tables.h"
#include "store/by_sql.h"
#include "store/direct.h"
#include "store/row_error.h"
#include "store/store_kind.h"

/* ---- lock ---- */

/*
 * Makes sure that this node has the rows of a scope, and keeps them until the
 * transaction ends.  Nodes may have exchanged shards while we waited for that, so the
 * catalog is that of afterwards.  The store is locked in that mode.
 */
const Catalog *
kind_hold_scope(const Catalog *catalog, const text *scope, LOCKMODE mode)
{
	while (catalog->store_kind == STORE_DISTRIBUTED)
	{
		citus_enter(scope);
		if (!catalog_is_stale())
		{
			(void) citus_shard(scope);
			break;
		}
		catalog = catalog_open(mode);
	}
	return catalog;
}

/* The table of the extension that this node reads: in a cluster each node has a copy. */
Oid
kind_local_copy(const Catalog *catalog, Oid table)
{
	return catalog->store_kind == STORE_DISTRIBUTED ? citus_replica(table) : table;
}

/* Raises an error if the store is on several nodes: what the function does would be on one. */
void
kind_require_one_node(const Catalog *catalog, const char *function, const char *hint)
{
	if (catalog->store_kind == STORE_DISTRIBUTED)
		citus_refuse(function, hint);
}

/* ---- find ---- */

/* The store itself, or the scope's shard of a distributed one, which stays where it is. */
static Oid
table_of_name(const Catalog *catalog, const OperationName *name)
{
	return catalog->store_kind == STORE_DISTRIBUTED ? citus_shard(name->scope) : catalog->tables[TABLE_STORE];
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

/* A copy of the list of tables, which may change while SQL runs code of the owner. */
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

		if ((tables[i].is_plain && direct_is_empty(tables[i].oid)) ||
			!find_in(catalog, tables[i].oid, tables[i].is_plain, name, snapshot, &record, &here) ||
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
	exists = catalog->store_kind == STORE_RING ? find_in_ring(catalog, name, snapshot, found, position) :
		find_in(catalog, table_of_name(catalog, name), catalog->store_plain, name, snapshot, found, position);
	UnregisterSnapshot(snapshot);
	/* a table without a page was not locked: it may have been emptied, and its rows may be elsewhere */
	if (catalog->store_kind == STORE_RING)
		AcceptInvalidationMessages();
	return exists;
}

/*
 * The row of a name in the store.  The list of tables is not older than the snapshot, so
 * no table with rows is missed.  If a table is emptied or dropped meanwhile, an
 * invalidation comes with its lock, and we look again.
 */
bool
kind_find(const Catalog *catalog, const OperationName *name, bool newest,
		  Record *found, RowPosition *position)
{
	for (;;)
	{
		bool		exists;

		AcceptInvalidationMessages();
		if (catalog_is_stale())
			catalog = catalog_open(AccessShareLock);
		FAULT_POINT("tables-listed");
		exists = find_with_snapshot(catalog, name,
									newest ? GetLatestSnapshot() : GetTransactionSnapshot(),
									found, position);
		if (catalog->store_kind != STORE_RING || !catalog_is_stale())
			return exists;
		CHECK_FOR_INTERRUPTS();
	}
}

/* ---- put ---- */

/*
 * The table that a new record belongs to.  If any table has become something else than
 * the script made, which needs SQL, all of them go to the store itself.
 */
static Oid
table_for(const Catalog *catalog, const Record *record)
{
	return catalog->store_kind == STORE_RING && catalog->store_plain ? store_tables_for(record->expires_at) :
		table_of_name(catalog, &record->name);
}

/*
 * Locks that table.  Changes from before the lock count: a table that was emptied has
 * another range, and a table with a second index, as REINDEX CONCURRENTLY makes, is not
 * for the direct path (store_plain).
 */
Oid
kind_lock_target(const Catalog *catalog, const Record *record)
{
	for (;;)
	{
		Oid			table = table_for(catalog, record);

		/* the store itself has been locked all the time */
		if (table == catalog->tables[TABLE_STORE])
			return table;
		LockRelationOid(table, RowExclusiveLock);
		if (!catalog_is_stale())
			return table;
		UnlockRelationOid(table, RowExclusiveLock);
		CHECK_FOR_INTERRUPTS();
		catalog = catalog_open(RowExclusiveLock);
	}
}

static bool
find_newest_in(const Catalog *catalog, Oid table, const OperationName *name, Record *found)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	RowPosition position;
	bool		exists = find_in(catalog, table, store_tables_is_plain(table), name, snapshot, found, &position);

	UnregisterSnapshot(snapshot);
	return exists;
}

/* false: the table does not have the version that the caller has read. */
static bool
delete_in(const Catalog *catalog, Oid table, const OperationName *name, TimestampTz expected)
{
	return store_tables_is_plain(table) ? direct_change(catalog, table, name, NULL, expected) == TM_Ok :
		by_sql_delete(catalog, table, name, expected);
}

/*
 * Deletes the expected version, if it is in another table of the ring than its successor
 * will be in, and returns true.  Then *expected says which version the successor
 * replaces: one that did not count, or none.
 */
bool
kind_leave_other_table(const Catalog *catalog, const OperationName *name, Oid target, TimestampTz *expected)
{
	Record		found;
	RowPosition position;

	if (catalog->store_kind != STORE_RING || !kind_find(catalog, name, true, &found, &position) ||
		position.table == target)
		return false;
	/* not there any more: it was collected */
	if (!delete_in(catalog, position.table, name, *expected) &&
		find_newest_in(catalog, position.table, name, &found))
	{
		if (found.updated_at == *expected && !store_tables_is_plain(position.table))
			row_error_suppressed();
		row_error_changed();
	}
	*expected = find_newest_in(catalog, target, name, &found) ? found.updated_at : NO_TIME;
	return true;
}

/* ---- delete ---- */

/* Deletes the version that the caller has read; false: the store does not have it any more. */
bool
kind_delete(const Catalog *catalog, const OperationName *name, TimestampTz expected)
{
	Record		found;
	RowPosition position;

	switch (catalog->store_kind)
	{
		case STORE_ONE_TABLE:
			/* by SQL, whatever its definition: the most usual statement on the most usual store */
			return by_sql_delete(catalog, catalog->tables[TABLE_STORE], name, expected);
		case STORE_RING:
			return kind_find(catalog, name, true, &found, &position) &&
				delete_in(catalog, position.table, name, expected);
		case STORE_DISTRIBUTED:
			return delete_in(catalog, table_of_name(catalog, name), name, expected);
	}
	pg_unreachable();
}

/* ---- walk ---- */

/*
 * The tables that a sweep visits: the store itself, without the tables of its ring, which
 * are emptied; or the shards of this node.
 */
int
kind_swept_tables(const Catalog *catalog)
{
	return catalog->store_kind == STORE_DISTRIBUTED ? store_tables_count() : 1;
}

Oid
kind_swept_table(const Catalog *catalog, int number)
{
	return catalog->store_kind == STORE_DISTRIBUTED ? store_tables_get(number)->oid : catalog->tables[TABLE_STORE];
}

/* Keeps a table on this node until the transaction ends.  false: it is a shard that is being moved. */
bool
kind_hold_table(const Catalog *catalog, Oid table)
{
	return catalog->store_kind != STORE_DISTRIBUTED || (citus_hold_shard(table) && !catalog_is_stale());
}
