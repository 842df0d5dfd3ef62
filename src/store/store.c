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
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "citus/citus.h"
#include "schema/parts.h"
#include "schema/record.h"
#include "seal/seal.h"
#include "store/by_sql.h"
#include "store/direct.h"
#include "store/row_error.h"
#include "store/store.h"

/* The store itself, or the scope's shard of a distributed one, which stays where it is. */
static Oid
only_part(const Catalog *catalog, const OperationName *name)
{
	return catalog->store_distributed ? citus_shard(name->scope) : catalog->tables[TABLE_STORE];
}

static bool
find_in_only_part(const Catalog *catalog, const OperationName *name, Snapshot snapshot,
				  Record *found, Place *place)
{
	place->part = only_part(catalog, name);
	return direct_find(catalog, place->part, name, snapshot, found, &place->version);
}

/*
 * In a store that is partitioned by expiry, the row of a name that expires last.
 * A row that has not expired is that row: the parts come in such an order, and
 * only one row of a name counts.
 */
static bool
find_in_parts(const Catalog *catalog, const OperationName *name, Snapshot snapshot,
			  Record *found, Place *place)
{
	TimestampTz now = GetCurrentTimestamp();
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

static bool
find_with_snapshot(const Catalog *catalog, const OperationName *name, Snapshot snapshot,
				   Record *found, Place *place)
{
	bool		exists;

	snapshot = RegisterSnapshot(snapshot);
	if (!catalog->store_plain)
		exists = by_sql_find(catalog, name, snapshot, found, place);
	else if (catalog->store_by_expiry)
		exists = find_in_parts(catalog, name, snapshot, found, place);
	else
		exists = find_in_only_part(catalog, name, snapshot, found, place);
	UnregisterSnapshot(snapshot);
	return exists;
}

/*
 * While we looked, or before, another session may have attached a partition and
 * moved rows to it.  Locking a part lets us know: then we look again, at the parts
 * of now.
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

/* The part that a record belongs to. */
static Oid
part_for(const Catalog *catalog, const Record *record)
{
	return catalog->store_by_expiry ? parts_for(record->expires_at)->table :
		only_part(catalog, &record->name);
}

/*
 * The same, locked.  What has changed until then counts: a partition that was
 * attached takes rows away from the part for the rest, and a part with a second
 * index, as REINDEX CONCURRENTLY makes, is not for the direct path (store_plain).
 */
static Oid
lock_part(const Catalog *catalog, const Record *record)
{
	for (;;)
	{
		Oid			part = part_for(catalog, record);

		/* the store itself has been locked all the time */
		if (part == catalog->tables[TABLE_STORE])
			return part;
		LockRelationOid(part, RowExclusiveLock);
		if (!catalog_has_news())
			return part;
		CHECK_FOR_INTERRUPTS();
		catalog = catalog_open(RowExclusiveLock);
	}
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

/*
 * Replaces the version that was judged.  Most often its successor belongs to the
 * same part; otherwise the row moves.
 */
static TM_Result
replace_directly(const Catalog *catalog, const Record *record, TimestampTz judged, Oid target)
{
	TM_Result	result = direct_change(catalog, target, &record->name, record, judged);
	Oid			part;

	if (result != TM_Deleted && result != TM_Invisible)
		return result;
	part = part_of_row(catalog, &record->name, target);
	if (part == target)
		return result;
	result = direct_change(catalog, part, &record->name, NULL, judged);
	if (result == TM_Ok)
		direct_insert(catalog, target, record);
	return result;
}

/* As the statements above do. */
static void
put_directly(const Catalog *catalog, const Record *record, TimestampTz judged, Oid target)
{
	MemoryContext context = CurrentMemoryContext;

	PG_TRY();
	{
		TM_Result	result = judged != NO_TIME ?
			replace_directly(catalog, record, judged, target) : TM_Deleted;

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

/*
 * In a store that is partitioned by expiry, without the direct path.  A row that
 * came meanwhile belongs to another writer.
 */
static void
update_or_insert(const Catalog *catalog, const Record *record, TimestampTz judged)
{
	Record		other;
	Place		place;

	if (by_sql_update(catalog, record, judged))
		return;
	if (find_version(catalog, &record->name, true, &other, &place) &&
		other.expires_at > GetCurrentTimestamp())
		row_error_lost_race();
	by_sql_insert(catalog, record);
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
	Oid			target = InvalidOid;

	seal_record(&stored);
	if (catalog->store_plain)
		target = lock_part(catalog, &stored);
	/* asked again: the lock may have let us know */
	if (catalog->store_plain)
		put_directly(catalog, &stored, judged, target);
	else if (judged == NO_TIME)
		by_sql_insert(catalog, &stored);
	else if (catalog->store_by_expiry)
		update_or_insert(catalog, &stored, judged);
	else
		by_sql_upsert(catalog, &stored, judged);
}

/* Deletes the version that the caller has read; if another writer has changed it, 40001. */
void
store_delete(const Catalog *catalog, const OperationName *name, TimestampTz judged)
{
	if (!catalog->store_distributed)
		by_sql_delete(catalog, name, judged);
	else if (direct_change(catalog, citus_shard(name->scope), name, NULL, judged) != TM_Ok)
		row_error_lost_race();
}
