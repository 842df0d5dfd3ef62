/*
 * direct.c
 *		The two hot statements on the store without the executor.
 *
 * They do what the statements of store.c do, for a store that is an ordinary
 * table (Catalog.store_plain): look a key up through the primary key, and
 * insert a row and its entry in the primary key, its only index.
 * Rights need no check and no change here: the tables are the extension's.
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
#include "utils/fmgroids.h"
#include "utils/rel.h"

#include "compat.h"
#include "direct.h"
#include "record.h"

/* The key's columns lead the scan key in the order of the primary key. */
static void
key_of_name(const OperationName *name, ScanKey keys)
{
	ScanKeyEntryInitialize(&keys[0], 0, 1, BTEqualStrategyNumber, InvalidOid,
						   C_COLLATION_OID, F_TEXTEQ, PointerGetDatum(name->scope));
	ScanKeyEntryInitialize(&keys[1], 0, 2, BTEqualStrategyNumber, InvalidOid,
						   C_COLLATION_OID, F_TEXTEQ, PointerGetDatum(name->key));
}

/* The version of the row that the snapshot sees, copied, and where it is. */
bool
direct_find(const Catalog *catalog, const OperationName *name, Snapshot snapshot,
			Record *found, ItemPointer version)
{
	Relation	store = table_open(catalog->store, NoLock);
	Relation	index = index_open(primary_key_index(store), AccessShareLock);
	TupleTableSlot *slot = table_slot_create(store, NULL);
	ScanKeyData keys[2];
	IndexScanDesc scan;
	bool		exists;

	key_of_name(name, keys);
	scan = begin_index_scan(store, index, snapshot, 2);
	index_rescan(scan, keys, 2, NULL, 0);
	exists = index_getnext_slot(scan, ForwardScanDirection, slot);
	if (exists)
	{
		slot_getallattrs(slot);
		record_from_columns(catalog, slot->tts_values, slot->tts_isnull, found);
		found->name = *name;
		*version = slot->tts_tid;
	}
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	index_close(index, NoLock);
	table_close(store, NoLock);
	return exists;
}

/* The row's entry in the primary key; an existing key is a unique violation. */
static void
insert_key(Relation store, Relation index, TupleTableSlot *slot)
{
	IndexInfo  *info = BuildIndexInfo(index);
	Datum		values[INDEX_MAX_KEYS];
	bool		nulls[INDEX_MAX_KEYS];

	/* no expressions and no predicate, so no executor state is needed */
	FormIndexDatum(info, slot, NULL, values, nulls);
	(void) index_insert(index, values, nulls, &slot->tts_tid, store,
						UNIQUE_CHECK_YES, false, info);
	insert_cleanup(index, info);
}

/* Inserts the row, which has all columns that must not be NULL. */
void
direct_insert(const Catalog *catalog, const Record *record)
{
	Relation	store = table_open(catalog->store, NoLock);
	Relation	index = index_open(primary_key_index(store), RowExclusiveLock);
	TupleTableSlot *slot = MakeSingleTupleTableSlot(RelationGetDescr(store), &TTSOpsVirtual);

	record_to_columns(catalog, record, slot->tts_values, slot->tts_isnull);
	ExecStoreVirtualTuple(slot);
	simple_table_tuple_insert(store, slot);
	insert_key(store, index, slot);
	ExecDropSingleTupleTableSlot(slot);
	index_close(index, NoLock);
	table_close(store, NoLock);
	/* what follows in this statement must see the row */
	CommandCounterIncrement();
}
