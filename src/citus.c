/*
 * citus.c
 *		A store that is distributed over the nodes of a Citus cluster.
 *
 * Nothing of Citus is compiled in: its metadata are tables, and its locks are
 * advisory locks.  A database without the extension "citus" does none of this.
 *
 * Citus keeps the rows of a distributed table in shards, each on one node.  The
 * shard of an operation follows from its scope.  It is read and written here as
 * the ordinary table that it is, on its own node and nowhere else: record, lock
 * and effect then are in one local transaction.  Everything else is an error.
 *
 * A shard can move to another node.  Citus takes the lock of its metadata
 * exclusively before it changes the place.  Whoever uses a shard holds this lock
 * in share mode until the transaction ends, and reads the place after that.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_namespace.h"
#include "commands/extension.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/primnodes.h"
#include "storage/lock.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/typcache.h"

#include "citus.h"
#include "compat.h"
#include "idempotency.h"

/* of the lock of a shard's metadata, which Citus shares by all tables that are colocated */
#define METADATA_LOCK_CLASS 8

#define COORDINATOR 0

/* how Citus names itself when it runs a statement for another node */
#define DELEGATED "citus_internal gpid="

/* One shard of the store, in the order of their hash values. */
typedef struct Shard
{
	int64		id;
	int32		first_hash;
	int32		last_hash;
	Oid			table;			/* InvalidOid: it is on another node */
} Shard;

/* how Citus has distributed a table */
typedef struct Distribution
{
	bool		exists;
	char		method;
	char		replication;
	int32		colocation;
	AttrNumber	column;
} Distribution;

static MemoryContext context = NULL;
static Shard *shards = NULL;
static int	count = 0;
static int32 colocation = 0;
static int32 node = COORDINATOR;	/* its number in the cluster */

/* the type of the tenants */
static FmgrInfo input;
static Oid	input_parameter;
static FmgrInfo hash;
static struct
{
	Oid			type;
	int32		modifier;
	Oid			collation;
	int16		length;
	bool		by_value;
}			tenants;

/* ---- the metadata of Citus ---- */

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
		heap_getattr(row, number, RelationGetDescr(metadata), &is_null);

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

static int32
read_node(void)
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

static Distribution
read_distribution(Oid table)
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

static void
read_shards(Oid store)
{
	Relation	metadata = open_metadata("pg_dist_shard");
	SysScanDesc scan = scan_metadata(metadata, "logicalrelid", F_OIDEQ, ObjectIdGetDatum(store));
	HeapTuple	row;
	int			room = 32;

	shards = palloc(room * sizeof(Shard));
	count = 0;
	while (HeapTupleIsValid(row = systable_getnext(scan)))
	{
		Shard		shard = {.id = DatumGetInt64(metadata_column(metadata, row, "shardid"))};

		shard.first_hash = hash_column(metadata, row, "shardminvalue");
		shard.last_hash = hash_column(metadata, row, "shardmaxvalue");
		if (count == room)
			shards = repalloc(shards, (room *= 2) * sizeof(Shard));
		shards[count++] = shard;
	}
	systable_endscan(scan);
	table_close(metadata, AccessShareLock);
	qsort(shards, count, sizeof(Shard), compare_shards);
}

static bool
is_on_this_node(Relation placements, int64 shard)
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
table_of_shard(Oid store, int64 shard)
{
	return get_relname_relid(psprintf("%s_" INT64_FORMAT, get_rel_name(store), shard),
							 get_rel_namespace(store));
}

/* A shard that has moved away leaves its table behind for a while. */
static void
find_local_tables(Relation store)
{
	Relation	placements = open_metadata("pg_dist_placement");

	for (int i = 0; i < count; i++)
	{
		if (is_on_this_node(placements, shards[i].id))
			shards[i].table = table_of_shard(RelationGetRelid(store), shards[i].id);
	}
	table_close(placements, AccessShareLock);
}

/* The scope of an operation becomes a value of this type, which Citus hashes. */
static void
read_tenant_type(Form_pg_attribute column)
{
	Oid			function;

	getTypeInputInfo(column->atttypid, &function, &input_parameter);
	fmgr_info_cxt(function, &input, context);
	fmgr_info_copy(&hash, &lookup_type_cache(column->atttypid, TYPECACHE_HASH_PROC_FINFO)->hash_proc_finfo, context);
	tenants.type = column->atttypid;
	tenants.modifier = column->atttypmod;
	tenants.collation = column->attcollation;
	tenants.length = column->attlen;
	tenants.by_value = column->attbyval;
}

/* ---- stores that cannot be right ---- */

static void
refuse_store(const char *detail, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("table \"idempotency_store\" cannot keep operations on this node of the Citus cluster"),
			 errdetail_internal("%s", detail),
			 errhint("%s", hint)));
}

static void
require_distribution(Relation store, const Distribution *distribution)
{
	AttrNumber	tenant = get_attnum(RelationGetRelid(store), TENANT_COLUMN);

	if (!distribution->exists)
		refuse_store("The node is a worker, and its own store would know nothing of the operations of other nodes.",
					 "Run idem_distribute_store() on the coordinator, or use the store of the coordinator.");
	if (distribution->method != 'h' || distribution->replication != 's' ||
		tenant == InvalidAttrNumber || distribution->column != tenant)
		refuse_store("Citus keeps the rows of the store in a way in which operations could run twice.",
					 "Run idem_undistribute_store() and then idem_distribute_store() on the coordinator.");
}

/* Is it the own store of a worker?  Nobody may use it, and nobody has to collect it. */
bool
citus_leaves_unused(Oid store)
{
	return OidIsValid(get_extension_oid("citus", true)) && read_node() != COORDINATOR &&
		!read_distribution(store).exists;
}

/*
 * Is the store distributed?  Reads where its shards are.  A store of a cluster in
 * which operations could run twice is refused.  The metadata announce a change by
 * an invalidation of the store.
 */
bool
citus_read_store(Relation store)
{
	Distribution distribution;
	MemoryContext caller;

	count = 0;
	if (!OidIsValid(get_extension_oid("citus", true)))
		return false;
	node = read_node();
	distribution = read_distribution(RelationGetRelid(store));
	if (node == COORDINATOR && !distribution.exists)
		return false;
	require_distribution(store, &distribution);
	if (context == NULL)
		context = AllocSetContextCreate(TopMemoryContext, "idempotency shards", ALLOCSET_SMALL_SIZES);
	MemoryContextReset(context);
	caller = MemoryContextSwitchTo(context);
	colocation = distribution.colocation;
	read_tenant_type(TupleDescAttr(RelationGetDescr(store), distribution.column - 1));
	read_shards(RelationGetRelid(store));
	find_local_tables(store);
	MemoryContextSwitchTo(caller);
	return true;
}

/* The tables of the store's shards on this node. */
List *
citus_local_shards(void)
{
	List	   *tables = NIL;

	for (int i = 0; i < count; i++)
	{
		if (OidIsValid(shards[i].table))
			tables = lappend_oid(tables, shards[i].table);
	}
	return tables;
}

/* This node's copy of a table that all nodes have, locked; InvalidOid: it has none. */
Oid
citus_replica(Oid table)
{
	Relation	metadata = open_metadata("pg_dist_shard");
	SysScanDesc scan = scan_metadata(metadata, "logicalrelid", F_OIDEQ, ObjectIdGetDatum(table));
	HeapTuple	row = systable_getnext(scan);
	Oid			replica = HeapTupleIsValid(row) ?
		table_of_shard(table, DatumGetInt64(metadata_column(metadata, row, "shardid"))) : InvalidOid;

	systable_endscan(scan);
	table_close(metadata, AccessShareLock);
	if (OidIsValid(replica))
		LockRelationOid(replica, AccessShareLock);
	return replica;
}

/* The number of this node in the cluster. */
int32
citus_node(void)
{
	return node;
}

/* ---- the shard of an operation ---- */

static bool
is_no_such_value(int sqlerrcode)
{
	return ERRCODE_TO_CATEGORY(sqlerrcode) == ERRCODE_DATA_EXCEPTION;
}

/* The value by which the rows of a scope are distributed. */
Datum
citus_tenant(const text *scope)
{
	char	   *spelling = text_to_cstring(scope);
	MemoryContext caller = CurrentMemoryContext;
	Datum		tenant = (Datum) 0;

	PG_TRY();
	{
		tenant = InputFunctionCall(&input, spelling, input_parameter, tenants.modifier);
	}
	PG_CATCH();
	{
		if (!is_no_such_value(geterrcode()))
			PG_RE_THROW();
		MemoryContextSwitchTo(caller);
		FlushErrorState();
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_BAD_ARGUMENT),
				 errmsg("scope \"%s\" is not a value of type %s", spelling, format_type_be(tenants.type)),
				 errdetail("The store is distributed by a column of this type, and the scope says which row of it.")));
	}
	PG_END_TRY();
	return tenant;
}

Const *
citus_tenant_const(const text *scope)
{
	return makeConst(tenants.type, tenants.modifier, tenants.collation, tenants.length,
					 citus_tenant(scope), false, tenants.by_value);
}

Oid
citus_tenant_type(void)
{
	return tenants.type;
}

static int
shard_of(const text *scope)
{
	int32		hashed = DatumGetInt32(FunctionCall1Coll(&hash, tenants.collation, citus_tenant(scope)));
	int			first = 0;
	int			last = count - 1;

	while (first <= last)
	{
		int			middle = (first + last) / 2;

		if (hashed < shards[middle].first_hash)
			last = middle - 1;
		else if (hashed > shards[middle].last_hash)
			first = middle + 1;
		else
			return middle;
	}
	elog(ERROR, "no shard of the store has the hash value %d", hashed);
}

/*
 * Does the statement come from another node, which thought that the shard is here?
 * Then the client may try again: that node has the news by then.
 */
static bool
is_delegated(void)
{
	return strncmp(application_name, DELEGATED, strlen(DELEGATED)) == 0;
}

static void
not_here(const text *scope)
{
	if (is_delegated())
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("shard of scope \"%s\" has moved to another node", text_to_cstring(scope)),
				 errhint("Retry the transaction.")));
	ereport(ERROR,
			(errcode(ERRCODE_IDEM_MISDIRECTED),
			 errmsg("this node does not have the shard of scope \"%s\"", text_to_cstring(scope)),
			 errdetail("Citus did not send the call to the node that has it."),
			 errhint("Call the function by itself, as in SELECT * FROM idem_begin(...), with scope and key that are constants or parameters; or connect to that node.")));
}

static LOCKTAG
metadata_lock(int shard)
{
	LOCKTAG		tag;

	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, (uint32) shard, (uint32) colocation, METADATA_LOCK_CLASS);
	return tag;
}

/* The shard of a scope is on this node and stays here until the transaction ends, or it is an error. */
void
citus_enter(const text *scope)
{
	LOCKTAG		tag = metadata_lock(shard_of(scope));

	(void) LockAcquire(&tag, ShareLock, false, false);
	/* what has changed while we waited */
	AcceptInvalidationMessages();
}

/* The table of the shard, after citus_enter. */
Oid
citus_shard(const text *scope)
{
	Oid			table = shards[shard_of(scope)].table;

	if (!OidIsValid(table))
		not_here(scope);
	return table;
}

/*
 * Keeps a shard on this node until the transaction ends.  false: it is being
 * moved.  What has moved already is known by an invalidation.
 */
bool
citus_hold_shard(Oid table)
{
	bool		held = false;

	for (int i = 0; i < count && !held; i++)
	{
		LOCKTAG		tag = metadata_lock(i);

		held = shards[i].table == table &&
			LockAcquire(&tag, ShareLock, false, true) != LOCKACQUIRE_NOT_AVAIL;
	}
	AcceptInvalidationMessages();
	return held;
}

/* What cannot work on several nodes says so. */
void
citus_refuse(const char *function, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("%s does not work with a store that is distributed over several nodes", function),
			 errhint("%s", hint)));
}

/* Was Citus loaded at the start of the server, before us, as it demands? */
bool
citus_is_preloaded(void)
{
	return shared_preload_libraries_string != NULL &&
		strstr(shared_preload_libraries_string, "citus") != NULL;
}
