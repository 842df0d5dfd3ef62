/*
 * store.c
 *		The record of an operation: looked up, stored, deleted.  What is done to
 *		many records at once is in bulk.c.
 *
 * The most frequent ones take the direct path if it gives the same result.  The
 * response of a record is sealed on its way in.  A reader opens it itself.  In which
 * table a record is, or will be, is the business of store_kind.c.
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "schema/record.h"
#include "schema/store_tables.h"
#include "seal/seal.h"
#include "store/by_sql.h"
#include "store/direct.h"
#include "store/row_error.h"
#include "store/store.h"
#include "store/store_kind.h"

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
	bool		exists = kind_find(catalog, name, true, found, &newest);

	if (IsolationUsesXactSnapshot())
	{
		Record		ignored;
		bool		seen_exists = kind_find(catalog, name, false, &ignored, &seen);

		if (seen_exists != exists ||
			(exists && (seen.table != newest.table || !ItemPointerEquals(&seen.version, &newest.version))))
			row_error_changed();
	}
	return exists;
}

/* The record of a name as a plain query would see it. */
bool
store_peek(const Catalog *catalog, const OperationName *name, Record *found)
{
	RowPosition position;

	return kind_find(catalog, name, false, found, &position);
}

/*
 * Replaces the expected version.  Its successor usually belongs to the same table;
 * otherwise the version is deleted where it is.
 */
static TM_Result
replace_directly(const Catalog *catalog, const Record *record, TimestampTz expected, Oid target)
{
	TM_Result	result = TM_Deleted;

	if (expected != NO_TIME)
		result = direct_change(catalog, target, &record->name, record, expected);
	if ((result == TM_Deleted || result == TM_Invisible) && expected != NO_TIME &&
		kind_leave_other_table(catalog, &record->name, target, &expected))
		result = expected == NO_TIME ? TM_Deleted :
			direct_change(catalog, target, &record->name, record, expected);
	return result;
}

/* Stores the record without SQL.  Errors become the same as those of the statements. */
static void
put_directly(const Catalog *catalog, const Record *record, TimestampTz expected, Oid target)
{
	MemoryContext context = CurrentMemoryContext;

	PG_TRY();
	{
		TM_Result	result = replace_directly(catalog, record, expected, target);

		if (result == TM_Deleted)
			direct_insert(catalog, target, record);
		else if (result != TM_Ok)
			row_error_changed();
	}
	PG_CATCH();
	{
		row_error_rethrow(context);
	}
	PG_END_TRY();
}

/*
 * A write has changed no row: another writer was first, unless the version that was read
 * is still there.  In a plain table it may be so after idem_reseal, which leaves
 * updated_at as it is, and there is nothing that suppresses a write.
 */
pg_noreturn static void
refuse_unwritten(const Catalog *catalog, const OperationName *name, TimestampTz expected)
{
	Record		found;
	RowPosition position;

	if (kind_find(catalog, name, true, &found, &position) && found.updated_at == expected &&
		!store_tables_is_plain(position.table))
		row_error_suppressed();
	row_error_lost_race();
}

static void
put_by_sql(const Catalog *catalog, const Record *record, TimestampTz expected)
{
	if (expected != NO_TIME)
		(void) kind_leave_other_table(catalog, &record->name, catalog->tables[TABLE_STORE], &expected);
	if (expected == NO_TIME)
		by_sql_insert(catalog, record);
	else if (!by_sql_upsert(catalog, record, expected))
		refuse_unwritten(catalog, &record->name, expected);
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
		target = kind_lock_target(catalog, &stored);
	/* asked again: an invalidation may have come with the lock */
	if (catalog->store_plain)
		put_directly(catalog, &stored, expected, target);
	else
		put_by_sql(catalog, &stored, expected);
}

/* Stores a record of this table whose response was sealed anew; it stays there. */
void
store_reseal(const Catalog *catalog, Oid table, const Record *record)
{
	if (!(store_tables_is_plain(table) ?
		  direct_change(catalog, table, &record->name, record, record->updated_at) == TM_Ok :
		  by_sql_update(catalog, table, record)))
		refuse_unwritten(catalog, &record->name, record->updated_at);
}

/* Deletes the version that the caller has read; if another writer has changed it, 40001. */
void
store_delete(const Catalog *catalog, const OperationName *name, TimestampTz expected)
{
	if (!kind_delete(catalog, name, expected))
		refuse_unwritten(catalog, name, expected);
}
