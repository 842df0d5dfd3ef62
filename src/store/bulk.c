/*
 * bulk.c
 *		What is done to many records of one table of the store: sweeping, finding
 *		responses to reseal, counting.
 *
 * A sweep and idem_reseal walk over a table in the order of its pages, a
 * bounded piece at a time, so that no statement holds many rows.
 */
#include "postgres.h"

#include "access/table.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/builtins.h"
#include "utils/rel.h"

#include "base/compat.h"
#include "base/fault.h"
#include "schema/record.h"
#include "store/bulk.h"
#include "store/fence.h"
#include "store/statement.h"

/* pages of one statement: 1 MB */
#define CHUNK_PAGES 128

/*
 * Expiry is checked again under the row lock, as READ COMMITTED does.  A row
 * whose fence is greater than $5 stays: only the row knows that fence.
 */
static Statement sweep_pages = {
	"WITH expired AS MATERIALIZED (SELECT ctid AS tid, fence FROM %1$s"
	" WHERE ctid OPERATOR(pg_catalog.>=) $1 AND ctid OPERATOR(pg_catalog.<) $2"
	" AND expires_at OPERATOR(pg_catalog.<=) $3"
	" AND (pg_catalog.enum_ne(status, 'PENDING')"
	" OR (lease_expires_at OPERATOR(pg_catalog.>) $3) IS NOT TRUE)"
	" LIMIT $4 FOR UPDATE SKIP LOCKED)"
	", removed AS (DELETE FROM %1$s"
	" WHERE ctid OPERATOR(pg_catalog.=) ANY (ARRAY(SELECT tid FROM expired"
	" WHERE (fence OPERATOR(pg_catalog.>) $5) IS NOT TRUE"
	FAULT_POINT_SQL("sweep-read") ")) RETURNING ctid AS tid)"
	" SELECT pg_catalog.count(*), pg_catalog.max(tid), (SELECT pg_catalog.max(fence) FROM expired"
	" WHERE fence OPERATOR(pg_catalog.>) $5) FROM removed",
	5, {TIDOID, TIDOID, TIMESTAMPTZOID, INT8OID, INT8OID},.knows_rows = true
};

/* records with a response or a note of progress that is not sealed with the key $3 */
static Statement find_unsealed = {
	"SELECT " RECORD_NAMES ", ctid FROM %1$s"
	" WHERE ctid OPERATOR(pg_catalog.>=) $1 AND ctid OPERATOR(pg_catalog.<) $2"
	" AND (seal_key OPERATOR(pg_catalog.=) $3) IS NOT TRUE"
	" AND (sealed IS NOT NULL OR response_payload IS NOT NULL"
	" OR response_headers IS NOT NULL OR response_body IS NOT NULL)"
	" LIMIT $4 FOR UPDATE SKIP LOCKED",
	4, {TIDOID, TIDOID, TEXTOID, INT8OID},.knows_rows = true
};

/*
 * A lease that outlives its row, and a fence that the sequence has not reached,
 * come from writers other than the extension.
 */
static Statement measure_table = {
	"SELECT pg_catalog.count(*), pg_catalog.max(fence), GREATEST(pg_catalog.max(expires_at),"
	" pg_catalog.max(lease_expires_at) FILTER (WHERE pg_catalog.enum_eq(status, 'PENDING')))"
	" FROM %1$s"
};

/* A row of the statement that has just run, with its name, copied; and its ctid. */
static ItemPointerData
read_whole_row(const Catalog *catalog, int row, Record *found)
{
	Datum		values[RECORD_COLUMNS + 1];
	bool		nulls[RECORD_COLUMNS + 1];

	statement_columns(row, values, nulls);
	record_from_columns(catalog->status_labels, values, nulls, found);
	found->name.scope = DatumGetTextPCopy(values[COLUMN_SCOPE]);
	found->name.key = DatumGetTextPCopy(values[COLUMN_IDEMPOTENCY_KEY]);
	return *(ItemPointer) DatumGetPointer(values[RECORD_COLUMNS]);
}

/*
 * Removes up to max_rows expired records of a table, from one position to before another.
 * Sets *from to where the next call begins: to *end, or to the page that may have more.  A
 * row whose fence the sequence has not reached stays until the next sweep; the
 * sequence catches up first.
 */
int64
bulk_sweep(const Catalog *catalog, Oid table, ItemPointer from, ItemPointer end,
		   TimestampTz now, int64 max_rows)
{
	Datum		arguments[5] = {
		PointerGetDatum(from), PointerGetDatum(end), TimestampTzGetDatum(now),
		Int64GetDatum(max_rows), Int64GetDatum(fence_last())
	};
	int64		removed;
	int64		fence;
	Datum		value;
	bool		is_null;

	sweep_pages.store_table = table;
	(void) statement_run(&sweep_pages, catalog, arguments, NULL, InvalidSnapshot);
	removed = DatumGetInt64(statement_column(0, 1, &is_null));
	value = statement_column(0, 2, &is_null);
	if (removed < max_rows)
		*from = *end;
	else
		ItemPointerSet(from, ItemPointerGetBlockNumber((ItemPointer) DatumGetPointer(value)), 0);
	value = statement_column(0, 3, &is_null);
	fence = is_null ? NO_FENCE : DatumGetInt64(value);
	statement_finish();
	if (fence != NO_FENCE)
		fence_keep_if_free(fence);
	return removed;
}

/*
 * Walks from one position to before another, until so many rows are done.  Sets *from to
 * where the next walk begins.
 */
int64
bulk_walk(const Walk *walk, ItemPointer from, ItemPointerData to, int64 max_rows)
{
	int64		done = 0;

	while (ItemPointerCompare(from, &to) < 0 && done < max_rows)
	{
		BlockNumber page = ItemPointerGetBlockNumberNoCheck(from);
		ItemPointerData end = to;

		CHECK_FOR_INTERRUPTS();
		if (ItemPointerGetBlockNumberNoCheck(&to) - page >= CHUNK_PAGES)
			ItemPointerSet(&end, page + CHUNK_PAGES, 0);
		done += walk->step(walk->state, from, &end, max_rows - done);
	}
	return done;
}

/* How many pages a walk over a table has to visit. */
BlockNumber
bulk_pages(Oid table)
{
	Relation	opened = table_open(table, AccessShareLock);
	BlockNumber pages;

	if (!RELKIND_HAS_STORAGE(opened->rd_rel->relkind))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("a store that its owner has partitioned can be neither collected nor resealed"),
				 errhint("Detach and drop old partitions, or delete expired rows; or make the store one table, and use idem_partition_store().")));
	pages = RelationGetNumberOfBlocks(opened);
	table_close(opened, NoLock);
	return pages;
}

/*
 * The position after the rows that were found: a walk that goes on from there
 * finds each row once, also one that could not be changed.  A row that was
 * updated just now may be reported with its new position, which is not in this range.
 */
static void
step_over(ItemPointer from, ItemPointer end, ItemPointer position)
{
	if (ItemPointerCompare(position, from) >= 0 && ItemPointerCompare(position, end) < 0)
		ItemPointerSet(from, ItemPointerGetBlockNumber(position),
					   OffsetNumberNext(ItemPointerGetOffsetNumber(position)));
}

/*
 * Locks up to max_rows records of a table that have a response, or a note, which is not
 * sealed with the key, from one position to before another.  Sets *from to where the next
 * call begins: to *end if there are no more.
 */
int64
bulk_find_unsealed(const Catalog *catalog, Oid table, ItemPointer from, ItemPointer end,
				   text *key, int64 max_rows, Record **records)
{
	MemoryContext context = CurrentMemoryContext;
	ItemPointerData first = *from;
	Datum		arguments[4] = {
		PointerGetDatum(&first), PointerGetDatum(end), PointerGetDatum(key), Int64GetDatum(max_rows)
	};
	int64		count;

	find_unsealed.store_table = table;
	count = statement_run(&find_unsealed, catalog, arguments, NULL, InvalidSnapshot);
	MemoryContextSwitchTo(context);
	*records = palloc0(Max(count, 1) * sizeof(Record));
	for (int64 i = 0; i < count; i++)
	{
		ItemPointerData position = read_whole_row(catalog, i, &(*records)[i]);

		step_over(from, end, &position);
	}
	if (count < max_rows)
		*from = *end;
	statement_finish();
	return count;
}

/* The content of a table: of its rows, those that a plain query sees. */
Content
bulk_content(const Catalog *catalog, Oid table)
{
	Content		content = {.needed_until = DT_NOBEGIN};
	Datum		value;
	bool		is_null;

	measure_table.store_table = table;
	(void) statement_run(&measure_table, catalog, NULL, NULL, InvalidSnapshot);
	content.rows = DatumGetInt64(statement_column(0, 1, &is_null));
	value = statement_column(0, 2, &is_null);
	content.fence = is_null ? NO_FENCE : DatumGetInt64(value);
	value = statement_column(0, 3, &is_null);
	if (!is_null)
		content.needed_until = DatumGetTimestampTz(value);
	statement_finish();
	return content;
}
