/*
 * citus.c
 *		A store that is distributed over the nodes of a Citus cluster.
 *
 * Citus' locks are advisory locks, and citus_metadata.c reads its tables.  A
 * database without the extension "citus" does none of this.
 *
 * Citus keeps the rows of a distributed table in shards, each on one node.  The
 * shard of an operation follows from its scope.  It is read and written here as
 * the ordinary table that it is, on its own node and nowhere else: record, lock
 * and effect then are in one local transaction.  Everything else is an error.
 *
 * A shard can move to another node.  Citus takes the lock of its metadata
 * exclusively before it changes the placement.  A session that uses a shard holds this lock
 * in share mode until the transaction ends, and reads the placement after that.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/primnodes.h"
#include "storage/lock.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/typcache.h"

#include "base/compat.h"
#include "base/idempotency.h"
#include "citus/citus.h"
#include "citus/citus_metadata.h"

/* of the lock of a shard's metadata, which Citus shares by all tables that are colocated */
#define METADATA_LOCK_CLASS 8

/* how Citus names itself when it runs a statement for another node */
#define DELEGATED "citus_internal gpid="

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

/*
 * Only these: a value is read with the rights of the caller, and a domain, or a range,
 * of the owner's would run his code then.
 */
static bool
is_tenant_type(Oid type)
{
	return type == INT8OID || type == INT4OID || type == UUIDOID || type == TEXTOID || type == VARCHAROID;
}

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
	if (!is_tenant_type(TupleDescAttr(RelationGetDescr(store), tenant - 1)->atttypid))
		refuse_store("Somebody has changed the type of the column of the tenants.",
					 "Give it the type again that the business tables are distributed by: bigint, integer, uuid, text or varchar.");
}

/* Is it the own store of a worker?  Nobody may use it, and nobody has to collect it. */
bool
citus_leaves_unused(Oid store)
{
	return OidIsValid(get_extension_oid("citus", true)) && citus_read_node() != COORDINATOR &&
		!citus_read_distribution(store).exists;
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
	node = citus_read_node();
	distribution = citus_read_distribution(RelationGetRelid(store));
	if (node == COORDINATOR && !distribution.exists)
		return false;
	require_distribution(store, &distribution);
	if (context == NULL)
		context = AllocSetContextCreate(TopMemoryContext, "idempotency shards", ALLOCSET_SMALL_SIZES);
	MemoryContextReset(context);
	caller = MemoryContextSwitchTo(context);
	colocation = distribution.colocation;
	read_tenant_type(TupleDescAttr(RelationGetDescr(store), distribution.column - 1));
	shards = citus_read_shards(RelationGetRelid(store), node, &count);
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
 * Then the client may try again: that node knows of the change by then.
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

/* Raises an error: a distributed store does not support this function. */
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
