/*
 * ring.c
 *		The rows of idempotency_ring: which range each table of the ring has.
 *
 * A range says where new rows go, and nothing else: rows are looked for
 * everywhere.  So what is missing here, or out of date, harms nobody.  The tables
 * are known by their names, which a dump keeps.
 *
 * The table is read without the executor, as the caller has no rights on it.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "catalog/pg_type.h"
#include "utils/rel.h"

#include "base/compat.h"
#include "schema/definition.h"
#include "schema/ring.h"

/* in the order of CREATE TABLE idempotency_ring */
typedef enum RingColumn
{
	RING_NAME,
	RING_RANGE_START,
	RING_RANGE_END,
	RING_PERIOD,
	RING_KEPT_UNTIL,
	RING_LEAVING,
	RING_WAITS_FOR,
	RING_IN_USE
} RingColumn;
#define RING_COLUMNS 8

static const RawColumn columns[RING_COLUMNS] = {
	[RING_NAME] = {"name", NAMEOID},
	[RING_RANGE_START] = {"range_start", TIMESTAMPTZOID},
	[RING_RANGE_END] = {"range_end", TIMESTAMPTZOID},
	[RING_PERIOD] = {"period", INTERVALOID},
	[RING_KEPT_UNTIL] = {"kept_until", TIMESTAMPTZOID},
	[RING_LEAVING] = {"leaving", BOOLOID},
	[RING_WAITS_FOR] = {"waits_for", TEXTARRAYOID},
	[RING_IN_USE] = {"in_use", BOOLOID}
};

typedef struct Range
{
	NameData	name;
	TimestampTz from;
	TimestampTz until;
} Range;

/* NULL: the table has no range now. */
static Range *
read_range(HeapTuple row, TupleDesc descriptor)
{
	Datum		values[RING_COLUMNS];
	bool		nulls[RING_COLUMNS];
	Range	   *range;

	heap_deform_tuple(row, descriptor, values, nulls);
	if (nulls[RING_NAME] || nulls[RING_RANGE_START] || nulls[RING_RANGE_END])
		return NULL;
	range = palloc(sizeof(Range));
	range->name = *DatumGetName(values[RING_NAME]);
	range->from = DatumGetTimestampTz(values[RING_RANGE_START]);
	range->until = DatumGetTimestampTz(values[RING_RANGE_END]);
	return range;
}

/* The ranges of now, whatever the isolation level.  The table is locked. */
List *
ring_read(Oid table)
{
	Relation	ring = relation_open(table, NoLock);
	List	   *ranges = NIL;
	SysScanDesc scan;
	HeapTuple	row;

	definition_require_raw(ring, "idempotency_ring", columns, RING_COLUMNS);
	scan = systable_beginscan(ring, InvalidOid, false, NULL, 0, NULL);
	while (HeapTupleIsValid(row = systable_getnext(scan)))
	{
		Range	   *range = read_range(row, RelationGetDescr(ring));

		if (range != NULL)
			ranges = lappend(ranges, range);
	}
	systable_endscan(scan);
	relation_close(ring, AccessShareLock);
	return ranges;
}

/* The range of a table; an empty one if it has none. */
void
ring_range(const List *ranges, const char *name, TimestampTz *from, TimestampTz *until)
{
	ListCell   *cell;

	*from = *until = DT_NOBEGIN;
	foreach(cell, ranges)
	{
		Range	   *range = lfirst(cell);

		if (strcmp(NameStr(range->name), name) == 0)
		{
			*from = range->from;
			*until = range->until;
		}
	}
}
