/*
 * citus_metadata.c
 *		What the tables of Citus say of a cluster: its nodes, how a table is
 *		distributed, and where its shards are.
 *
 * Nothing of Citus is compiled in.  Tables and columns are found by their names,
 * so that another version of Citus gets a clear error.  Everything is read with
 * the catalog's snapshot, so it is as new as the last invalidation.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_namespace.h"
#include "nodes/primnodes.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"

#include "base/compat.h"
#include "citus/citus_metadata.h"

static Relation
open_metadata(const char *name)
{
	Oid			table = get_relname_relid(name, PG_CATALOG_NAMESPACE);

	if (!OidIsValid(table))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("extension \"citus\" has no table \"%s\"", name),
				 errhint("This version of Citus is not supported.")));
	return table_open(table, AccessShareLock);
}

static Datum
metadata_column(Relation metadata, HeapTuple row, const char *name)
{
	AttrNumber	number = get_attnum(RelationGetRelid(metadata), name);
	bool		is_null = true;
	Datum		value = number == InvalidAttrNumber ? (Datum) 0 :
		column_of_row(row, number, RelationGetDescr(metadata), &is_null);

	if (is_null)
		elog(ERROR, "column \"%s\" of \"%s\" is missing or null", name, RelationGetRelationName(metadata));
	return value;
}

/* The rows of a table of Citus' metadata whose column has that value. */
static SysScanDesc
scan_metadata(Relation metadata, const char *column, RegProcedure equal, Datum value)
{
	ScanKeyData key;

	ScanKeyInit(&key, get_attnum(RelationGetRelid(metadata), column), BTEqualStrategyNumber, equal, value);
	return systable_beginscan(metadata, InvalidOid, false, NULL, 1, &key);
}

/* The number of this node in the cluster. */
int32
citus_read_node(void)
{
	Relation	metadata = open_metadata("pg_dist_local_group");
	SysScanDesc scan = systable_beginscan(metadata, InvalidOid, false, NULL, 0, NULL);
	HeapTuple	row = systable_getnext(scan);
	int32		found = HeapTupleIsValid(row) ?
		DatumGetInt32(metadata_column(metadata, row, "groupid")) : COORDINATOR;

	systable_endscan(scan);
	table_close(metadata, AccessShareLock);
	return found;
}

Distribution
citus_read_distribution(Oid table)
{
	Relation	metadata = open_metadata("pg_dist_partition");
	SysScanDesc scan = scan_metadata(metadata, "logicalrelid", F_OIDEQ, ObjectIdGetDatum(table));
	HeapTuple	row = systable_getnext(scan);
	Distribution found = {.exists = HeapTupleIsValid(row)};

	if (found.exists)
	{
		found.method = DatumGetChar(metadata_column(metadata, row, "partmethod"));
		found.replication = DatumGetChar(metadata_column(metadata, row, "repmodel"));
		found.colocation = DatumGetInt32(metadata_column(metadata, row, "colocationid"));
		if (found.method == 'h')
			found.column = castNode(Var, stringToNode(TextDatumGetCString(metadata_column(metadata, row, "partkey"))))->varattno;
	}
	systable_endscan(scan);
	table_close(metadata, AccessShareLock);
	return found;
}

static int
compare_shards(const void *a, const void *b)
{
	int32		left = ((const Shard *) a)->first_hash;
	int32		right = ((const Shard *) b)->first_hash;

	return (left > right) - (left < right);
}

static int32
hash_column(Relation metadata, HeapTuple row, const char *name)
{
	return pg_strtoint32(TextDatumGetCString(metadata_column(metadata, row, name)));
}

static bool
is_on_node(Relation placements, int64 shard, int32 node)
{
	SysScanDesc scan = scan_metadata(placements, "shardid", F_INT8EQ, Int64GetDatum(shard));
	HeapTuple	row;
	bool		here = false;

	while (HeapTupleIsValid(row = systable_getnext(scan)))
		here |= DatumGetInt32(metadata_column(placements, row, "groupid")) == node;
	systable_endscan(scan);
	return here;
}

/* The table with the rows of a shard, whether or not they are still here. */
static Oid
table_of_shard(Oid table, int64 shard)
{
	return get_relname_relid(psprintf("%s_" INT64_FORMAT, get_rel_name(table), shard),
							 get_rel_namespace(table));
}

/* A shard that has moved away leaves its table behind for a while. */
static void
locate_shards(Oid table, int32 node, Shard *shards, int count)
{
	Relation	placements = open_metadata("pg_dist_placement");

	for (int i = 0; i < count; i++)
	{
		if (is_on_node(placements, shards[i].id, node))
			shards[i].table = table_of_shard(table, shards[i].id);
	}
	table_close(placements, AccessShareLock);
}

/* The shards of a table in the order of their hash values, and which of them a node has. */
Shard *
citus_read_shards(Oid table, int32 node, int *count)
{
	Relation	metadata = open_metadata("pg_dist_shard");
	SysScanDesc scan = scan_metadata(metadata, "logicalrelid", F_OIDEQ, ObjectIdGetDatum(table));
	HeapTuple	row;
	int			room = 32;
	int			found = 0;
	Shard	   *shards = palloc(room * sizeof(Shard));

	while (HeapTupleIsValid(row = systable_getnext(scan)))
	{
		Shard		shard = {.id = DatumGetInt64(metadata_column(metadata, row, "shardid"))};

		shard.first_hash = hash_column(metadata, row, "shardminvalue");
		shard.last_hash = hash_column(metadata, row, "shardmaxvalue");
		if (found == room)
			shards = repalloc(shards, (room *= 2) * sizeof(Shard));
		shards[found++] = shard;
	}
	systable_endscan(scan);
	table_close(metadata, AccessShareLock);
	qsort(shards, found, sizeof(Shard), compare_shards);
	locate_shards(table, node, shards, found);
	*count = found;
	return shards;
}

/* This node's copy of a table that all nodes have, locked; InvalidOid: it has none. */
Oid
citus_replica(Oid table)
{
	Relation	metadata = open_metadata("pg_dist_shard");
	SysScanDesc scan = scan_metadata(metadata, "logicalrelid", F_OIDEQ, ObjectIdGetDatum(table));
	HeapTuple	row = systable_getnext(scan);
	int64		shard = HeapTupleIsValid(row) ? DatumGetInt64(metadata_column(metadata, row, "shardid")) : 0;
	Relation	placements = open_metadata("pg_dist_placement");
	Oid			replica = shard != 0 && is_on_node(placements, shard, citus_read_node()) ?
		table_of_shard(table, shard) : InvalidOid;

	table_close(placements, AccessShareLock);
	systable_endscan(scan);
	table_close(metadata, AccessShareLock);
	if (OidIsValid(replica))
		LockRelationOid(replica, AccessShareLock);
	return replica;
}
