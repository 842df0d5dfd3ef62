/*
 * direct.c
 *		The hot statements on the store without the executor.
 *
 * They do what the statements of by_sql.c do, on one table of a store whose tables
 * are ordinary tables (Catalog.store_plain): look a key up through the primary
 * key, insert a row and its entry in the primary key, its only index, update a
 * row, and delete it.  No rights are checked here, as the tables are the
 * extension's own.
 */
#include "postgres.h"

#include "access/relscan.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "catalog/pg_collation.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "base/compat.h"
#include "base/fault.h"
#include "citus/citus.h"
#include "schema/record.h"
#include "schema/store_tables.h"
#include "store/direct.h"

/*
 * The store itself is locked already.  Another table is locked here: while nobody
 * reads or writes it, it may be emptied.
 */
static Relation
open_store_table(const Catalog *catalog, Oid table, LOCKMODE mode)
{
	return table_open(table, table == catalog->tables[TABLE_STORE] ? NoLock : mode);
}

/* To read a table of the ring that may have been dropped.  NULL: the list of tables has changed. */
static Relation
open_to_read(const Catalog *catalog, Oid table)
{
	if (catalog->store_kind != STORE_RING || table == catalog->tables[TABLE_STORE])
		return open_store_table(catalog, table, AccessShareLock);
	LockRelationOid(table, AccessShareLock);
	if (!catalog_is_stale())
		return table_open(table, NoLock);
	UnlockRelationOid(table, AccessShareLock);
	return NULL;
}

/*
 * A table with the row stays locked until the transaction ends.  So does every table
 * at SERIALIZABLE, as the reader's predicate locks would not last beyond its being
 * emptied.  The index of such a table is never kept: REINDEX waits for it, while we may
 * wait for REINDEX to write.
 */
static void
close_store_table(const Catalog *catalog, Relation table, Relation index, bool exists)
{
	bool		is_store = RelationGetRelid(table) == catalog->tables[TABLE_STORE];
	bool		is_kept = is_store || exists || IsolationIsSerializable();

	index_close(index, is_store ? NoLock : AccessShareLock);
	table_close(table, is_kept ? NoLock : AccessShareLock);
}

/* The key's columns lead the scan key in the order of the primary key. */
static void
key_of_name(const OperationName *name, ScanKey keys)
{
	ScanKeyEntryInitialize(&keys[0], 0, 1, BTEqualStrategyNumber, InvalidOid,
						   C_COLLATION_OID, F_TEXTEQ, PointerGetDatum(name->scope));
	ScanKeyEntryInitialize(&keys[1], 0, 2, BTEqualStrategyNumber, InvalidOid,
						   C_COLLATION_OID, F_TEXTEQ, PointerGetDatum(name->key));
}

/* The version of the row that the snapshot sees; the slot keeps it pinned. */
static bool
fetch_version(Relation store, Relation index, const OperationName *name,
			  Snapshot snapshot, TupleTableSlot *slot)
{
	IndexScanDesc scan = begin_index_scan(store, index, snapshot, 2);
	ScanKeyData keys[2];
	bool		exists;

	key_of_name(name, keys);
	index_rescan(scan, keys, 2, NULL, 0);
	exists = index_getnext_slot(scan, ForwardScanDirection, slot);
	index_endscan(scan);
	return exists;
}

/*
 * Has the table of a ring no page?  That of a range to come has none, nor has one whose
 * range was over, and most often the store itself.
 *
 * No lock is needed, as the caller accepts invalidations afterwards: who empties a table
 * sends them before the file loses its pages, and before others can write to the next one.
 * So the file is that of the rows which the snapshot sees, or the caller looks again.  If
 * it goes while we ask, the table counts as one with pages, and its lock brings the news.
 *
 * At SERIALIZABLE a look into the index of an empty table has to be known to later writers.
 * The system is not asked again about a table that has pages: if it loses them, a look into
 * its index only costs time.
 */
bool
direct_is_empty(Oid table)
{
	MemoryContext context = CurrentMemoryContext;
	Relation	store;
	volatile BlockNumber pages = InvalidBlockNumber;

	if (IsolationIsSerializable() || store_tables_had_pages(table))
		return false;
	store = RelationIdGetRelation(table);
	if (store == NULL)
		return false;
	FAULT_POINT("length-asked");
	PG_TRY();
	{
		pages = RelationGetNumberOfBlocks(store);
	}
	PG_CATCH();
	{
		if (geterrcode() != ERRCODE_UNDEFINED_FILE)
			PG_RE_THROW();
		MemoryContextSwitchTo(context);
		FlushErrorState();
	}
	PG_END_TRY();
	RelationClose(store);
	if (pages != 0 && pages != InvalidBlockNumber)
		store_tables_note_pages(table);
	return pages == 0;
}

/* The version of the row that the snapshot sees, copied, and where it is. */
bool
direct_find(const Catalog *catalog, Oid table, const OperationName *name, Snapshot snapshot,
			Record *found, ItemPointer version)
{
	Relation	store = open_to_read(catalog, table);
	Relation	index;
	TupleTableSlot *slot;
	bool		exists;

	if (store == NULL)
		return false;
	index = index_open(primary_key_index(store), AccessShareLock);
	slot = table_slot_create(store, NULL);
	exists = fetch_version(store, index, name, snapshot, slot);
	if (exists)
	{
		slot_getallattrs(slot);
		record_from_columns(catalog->status_labels, slot->tts_values, slot->tts_isnull, found);
		found->name = *name;
		*version = slot->tts_tid;
	}
	ExecDropSingleTupleTableSlot(slot);
	close_store_table(catalog, store, index, exists);
	return exists;
}

/* The row's entry in the primary key; an existing key is a unique violation. */
static void
insert_key(Relation store, Relation index, TupleTableSlot *slot, bool key_unchanged)
{
	IndexInfo  *info = BuildIndexInfo(index);
	Datum		values[INDEX_MAX_KEYS];
	bool		nulls[INDEX_MAX_KEYS];

	/* no expressions and no predicate, so no executor state is needed */
	FormIndexDatum(info, slot, NULL, values, nulls);
	(void) index_insert(index, values, nulls, &slot->tts_tid, store,
						UNIQUE_CHECK_YES, key_unchanged, info);
	insert_cleanup(index, info);
}

/* A row for the table.  Behind the columns of the script may be that of the tenants, or dropped ones. */
static TupleTableSlot *
make_row(const Catalog *catalog, Relation store, const Record *record)
{
	TupleTableSlot *slot = MakeSingleTupleTableSlot(RelationGetDescr(store), &TTSOpsVirtual);

	record_to_columns(catalog->status_labels, record, slot->tts_values, slot->tts_isnull);
	for (int i = RECORD_COLUMNS; i < RelationGetNumberOfAttributes(store); i++)
		slot->tts_isnull[i] = true;
	if (catalog->store_kind == STORE_DISTRIBUTED)
	{
		slot->tts_values[RECORD_COLUMNS] = citus_tenant(record->name.scope);
		slot->tts_isnull[RECORD_COLUMNS] = false;
	}
	return ExecStoreVirtualTuple(slot);
}

/* Inserts the row, which has all columns that must not be NULL.  The caller has locked the table. */
void
direct_insert(const Catalog *catalog, Oid table, const Record *record)
{
	Relation	store = table_open(table, NoLock);
	Relation	index = index_open(primary_key_index(store), RowExclusiveLock);
	TupleTableSlot *slot = make_row(catalog, store, record);

	simple_table_tuple_insert(store, slot);
	insert_key(store, index, slot, false);
	ExecDropSingleTupleTableSlot(slot);
	index_close(index, NoLock);
	table_close(store, NoLock);
	/* what follows in this statement must see the row */
	CommandCounterIncrement();
}

/* The successor of a version, with an entry in the primary key where it needs one. */
static TM_Result
replace_version(const Catalog *catalog, Relation store, Relation index,
				ItemPointer version, const Record *record)
{
	TupleTableSlot *slot = make_row(catalog, store, record);
	TM_FailureData failure;
	LockTupleMode mode;
	UpdateIndexes indexes;
	TM_Result	result;

	result = update_version(store, version, slot, GetCurrentCommandId(true), &failure, &mode, &indexes);
	if (result == TM_Ok && indexes != TU_None)
		insert_key(store, index, slot, true);
	ExecDropSingleTupleTableSlot(slot);
	return result;
}

/*
 * Is it the version that the caller has read?  At REPEATABLE READ and SERIALIZABLE the
 * transaction's snapshot must see that version, too.  Otherwise two
 * transactions could commit on contradictory reads.  INSERT ... ON CONFLICT
 * refuses the same.
 */
static bool
is_expected(Relation store, TupleTableSlot *version, TimestampTz expected)
{
	bool		is_null;

	return DatumGetTimestampTz(slot_getattr(version, COLUMN_UPDATED_AT + 1, &is_null)) == expected &&
		(!IsolationUsesXactSnapshot() ||
		 table_tuple_satisfies_snapshot(store, version, GetTransactionSnapshot()));
}

/* Replaces a version, or deletes it without a successor (NULL). */
static TM_Result
change_version(const Catalog *catalog, Relation store, Relation index,
			   ItemPointer version, const Record *record)
{
	TM_FailureData failure;

	if (record != NULL)
		return replace_version(catalog, store, index, version, record);
	return delete_version(store, version, GetCurrentCommandId(true), &failure);
}

/*
 * TM_Invisible: not the expected version.  TM_Updated: changed since
 * then.
 */
static TM_Result
try_change(const Catalog *catalog, Relation store, Relation index, const OperationName *name,
		   const Record *record, TimestampTz expected)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	TupleTableSlot *version = table_slot_create(store, NULL);
	TM_Result	result = TM_Deleted;

	if (fetch_version(store, index, name, snapshot, version))
		result = is_expected(store, version, expected) ?
			change_version(catalog, store, index, &version->tts_tid, record) : TM_Invisible;
	ExecDropSingleTupleTableSlot(version);
	UnregisterSnapshot(snapshot);
	return result;
}

/*
 * Updates the row of a table, or deletes it if there is no record, if it is still
 * the expected version: TM_Ok.  TM_Deleted: the table has no such row.
 * Anything else: another writer has changed it.
 */
TM_Result
direct_change(const Catalog *catalog, Oid table, const OperationName *name,
			  const Record *record, TimestampTz expected)
{
	Relation	store = open_store_table(catalog, table, RowExclusiveLock);
	Relation	index = index_open(primary_key_index(store), RowExclusiveLock);
	TM_Result	result;

	/* as the executor does: subscribers must be able to find the row */
	CheckCmdReplicaIdentity(store, record != NULL ? CMD_UPDATE : CMD_DELETE);
	/* what this statement has done so far counts, as in SPI */
	CommandCounterIncrement();
	do
	{
		/* idem_reseal, for one, leaves updated_at as it is */
		CHECK_FOR_INTERRUPTS();
		result = try_change(catalog, store, index, name, record, expected);
	} while (result == TM_Updated && !IsolationUsesXactSnapshot());
	index_close(index, NoLock);
	table_close(store, NoLock);
	/* what follows in this statement must see the new version */
	CommandCounterIncrement();
	return result;
}
