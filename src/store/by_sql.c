/*
 * by_sql.c
 *		The record of an operation by SQL statements: looked up, stored, deleted.
 *
 * store.c uses them where the owner has added something to the store that the
 * direct path would not do.  Each names one table: a statement on the store and its
 * ring would keep all of them locked until the transaction ends.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "store/by_sql.h"
#include "store/row_error.h"
#include "store/statement.h"

/* "EXCLUDED.created_at, …", and "$1, $2, …" */
#define EXCLUDED_FIRST(number, id, name, type, is_set) "EXCLUDED." #name
#define EXCLUDED_NEXT(number, id, name, type, is_set) ", EXCLUDED." #name
#define PARAMETER_FIRST(number, id, name, type, is_set) "$" #number
#define PARAMETER_NEXT(number, id, name, type, is_set) ", $" #number
#define COLUMNS_OF_EXCLUDED RECORD_COLUMN_LIST(EXCLUDED_FIRST, EXCLUDED_NEXT)
#define VALUES RECORD_COLUMN_LIST(PARAMETER_FIRST, PARAMETER_NEXT)

#define NAME_TYPES TEXTOID, TEXTOID

static Statement find_record = {
	"SELECT " RECORD_NAMES ", ctid, tableoid FROM %1$s"
	" WHERE scope OPERATOR(pg_catalog.=) $1 AND idempotency_key OPERATOR(pg_catalog.=) $2",
	2, {NAME_TYPES},.knows_rows = true
};

static Statement insert_record = {
	"INSERT INTO %1$s.idempotency_store (" RECORD_NAMES ") VALUES (" VALUES ")",
	RECORD_COLUMNS, {RECORD_TYPES}
};

StaticAssertDecl(RECORD_COLUMNS == 18, "$19 of put_record comes after the columns");

static Statement put_record = {
	"INSERT INTO %1$s.idempotency_store AS stored (" RECORD_NAMES ") VALUES (" VALUES ")"
	" ON CONFLICT (scope, idempotency_key) DO UPDATE SET (" RECORD_NAMES ") = (" COLUMNS_OF_EXCLUDED ")"
	" WHERE stored.updated_at OPERATOR(pg_catalog.=) $19",
	RECORD_COLUMNS + 1, {RECORD_TYPES TIMESTAMPTZOID}
};

static Statement update_record = {
	"UPDATE %1$s AS stored SET (" RECORD_NAMES ") = (" VALUES ")"
	" WHERE scope OPERATOR(pg_catalog.=) $10 AND idempotency_key OPERATOR(pg_catalog.=) $11"
	" AND stored.updated_at OPERATOR(pg_catalog.=) $19",
	RECORD_COLUMNS + 1, {RECORD_TYPES TIMESTAMPTZOID},.knows_rows = true
};

StaticAssertDecl(COLUMN_SCOPE == 9 && COLUMN_IDEMPOTENCY_KEY == 10, "$10 and $11 of update_record");

static Statement delete_record = {
	"DELETE FROM %1$s WHERE scope OPERATOR(pg_catalog.=) $1"
	" AND idempotency_key OPERATOR(pg_catalog.=) $2 AND updated_at OPERATOR(pg_catalog.=) $3",
	3, {NAME_TYPES, TIMESTAMPTZOID},.knows_rows = true
};

/* The row of a name that the snapshot sees, in one table and its partitions. */
bool
by_sql_find(const Catalog *catalog, Oid table, const OperationName *name, Snapshot snapshot,
			Record *found, RowPosition *position)
{
	Datum		arguments[2] = {PointerGetDatum(name->scope), PointerGetDatum(name->key)};
	Datum		values[RECORD_COLUMNS + 2];
	bool		nulls[RECORD_COLUMNS + 2];
	MemoryContext context = CurrentMemoryContext;
	bool		exists;

	find_record.store_table = table;
	exists = statement_run(&find_record, catalog, arguments, NULL, snapshot) > 0;
	if (exists)
	{
		statement_columns(0, values, nulls);
		MemoryContextSwitchTo(context);
		record_from_columns(catalog->status_labels, values, nulls, found);
		found->name = *name;
		position->version = *(ItemPointer) DatumGetPointer(values[RECORD_COLUMNS]);
		position->table = DatumGetObjectId(values[RECORD_COLUMNS + 1]);
	}
	statement_finish();
	return exists;
}

/* Stores a record whose name has none. */
void
by_sql_insert(const Catalog *catalog, const Record *record)
{
	Datum		values[RECORD_COLUMNS + 1] = {0};
	bool		nulls[RECORD_COLUMNS + 1] = {0};

	record_to_columns(catalog->status_labels, record, values, nulls);
	if (statement_run(&insert_record, catalog, values, nulls, InvalidSnapshot) != 1)
		row_error_suppressed();
	statement_finish();
}

/*
 * Stores a record that replaces the version that the caller has read, or is
 * inserted if that version was collected; false: neither was done.
 */
bool
by_sql_upsert(const Catalog *catalog, const Record *record, TimestampTz expected)
{
	Datum		values[RECORD_COLUMNS + 1];
	bool		nulls[RECORD_COLUMNS + 1] = {0};
	bool		stored;

	record_to_columns(catalog->status_labels, record, values, nulls);
	values[RECORD_COLUMNS] = TimestampTzGetDatum(expected);
	stored = statement_run(&put_record, catalog, values, nulls, InvalidSnapshot) == 1;
	statement_finish();
	return stored;
}

/* Replaces the version of a row of this table that has been read; false: it is not there any more. */
bool
by_sql_update(const Catalog *catalog, Oid table, const Record *record)
{
	Datum		values[RECORD_COLUMNS + 1];
	bool		nulls[RECORD_COLUMNS + 1] = {0};
	bool		updated;

	record_to_columns(catalog->status_labels, record, values, nulls);
	values[RECORD_COLUMNS] = TimestampTzGetDatum(record->updated_at);
	update_record.store_table = table;
	updated = statement_run(&update_record, catalog, values, nulls, InvalidSnapshot) > 0;
	statement_finish();
	return updated;
}

/* Deletes the version of a row of this table that has been read; false: it is not there any more. */
bool
by_sql_delete(const Catalog *catalog, Oid table, const OperationName *name, TimestampTz expected)
{
	Datum		arguments[3] = {
		PointerGetDatum(name->scope), PointerGetDatum(name->key), TimestampTzGetDatum(expected)
	};
	bool		deleted;

	delete_record.store_table = table;
	deleted = statement_run(&delete_record, catalog, arguments, NULL, InvalidSnapshot) == 1;
	statement_finish();
	return deleted;
}
