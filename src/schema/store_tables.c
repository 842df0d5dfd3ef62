/*
 * store_tables.c
 *		The tables that the store's rows are in: itself, and those of its ring,
 *		and what the server calls their keys.
 *
 * A table of the ring is one that inherits from the store, whatever the ring
 * says of it.  A key is looked up first in the table whose range ends last, then
 * in those without a range, and last in the store itself.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "catalog/index.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_subscription.h"
#include "catalog/pg_subscription_rel.h"
#include "nodes/pg_list.h"
#include "storage/lockdefs.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "base/compat.h"
#include "schema/definition.h"
#include "schema/ring.h"
#include "schema/store_tables.h"

/* a key of the store, and how the server names it in errors */
typedef struct Key
{
	Oid			table;
	Oid			index;
	uint32		schema_hash;	/* in the cache of schemas */
	NameData	schema;
	NameData	table_name;
	NameData	index_name;
} Key;

static MemoryContext context = NULL;
static List *keys = NIL;		/* of Key */
static StoreTable *tables = NULL;
static int	count = 0;

/* false if the table was dropped just now; the invalidation will come */
static bool
read_name(NameData *name, char *found)
{
	if (found == NULL)
		return false;
	namestrcpy(name, found);
	return true;
}

static void
read_key(Oid index)
{
	Key		   *key = palloc0(sizeof(Key));
	Oid			schema;

	key->index = index;
	key->table = IndexGetRelation(index, true);
	schema = get_rel_namespace(key->table);
	key->schema_hash = GetSysCacheHashValue1(NAMESPACEOID, ObjectIdGetDatum(schema));
	/* watched from here on */
	keys = lappend(keys, key);
	if (!read_name(&key->schema, get_namespace_name(schema)) ||
		!read_name(&key->table_name, get_rel_name(key->table)) ||
		!read_name(&key->index_name, get_rel_name(index)))
		return;
	definition_require_logged(NameStr(key->table_name), get_rel_persistence(key->table), LOSS_OF_STORE);
}

/* Of a store that its owner has partitioned, the keys of the partitions, too. */
static void
watch_keys(Relation table)
{
	Oid			key = primary_key_index(table);
	/* a table without a key is refused when its definition is checked */
	List	   *indexes = OidIsValid(key) ? find_all_inheritors(key, NoLock, NULL) : NIL;
	ListCell   *cell;

	foreach(cell, indexes)
		read_key(lfirst_oid(cell));
}

/* News about a table counts from when its key is known. */
static void
add_store(Relation store, Oid status_type)
{
	StoreTable *entry = &tables[count++];

	entry->oid = RelationGetRelid(store);
	entry->from = entry->until = DT_NOBEGIN;
	watch_keys(store);
	definition_require_store(store, status_type);
	entry->is_plain = definition_is_plain(store, status_type);
}

/* Its owner is known before it is opened: opening it may run code that is on it. */
static void
add_member(Oid table, Oid owner, List *ranges, Oid status_type)
{
	StoreTable *entry = &tables[count];
	Relation	opened;

	if (!definition_require_member(table, owner))
		return;
	opened = try_table_open(table, AccessShareLock);
	if (opened == NULL)
		return;
	count++;
	entry->oid = table;
	watch_keys(opened);
	ring_range(ranges, RelationGetRelationName(opened), &entry->from, &entry->until);
	definition_require_store(opened, status_type);
	entry->is_plain = definition_is_plain(opened, status_type);
	table_close(opened, AccessShareLock);
}

/* Forgets all tables, and makes room for so many others. */
static MemoryContext
start_reading(int room)
{
	MemoryContext caller;

	if (context == NULL)
		context = AllocSetContextCreate(TopMemoryContext, "idempotency store tables",
										ALLOCSET_SMALL_SIZES);
	keys = NIL;
	count = 0;
	MemoryContextReset(context);
	caller = MemoryContextSwitchTo(context);
	tables = palloc0(Max(room, 1) * sizeof(StoreTable));
	return caller;
}

static int
compare_tables(const void *a, const void *b)
{
	const StoreTable *left = a;
	const StoreTable *right = b;

	return left->until == right->until ? 0 : left->until > right->until ? -1 : 1;
}

/* A store that is one table, or that its owner has partitioned. */
void
store_tables_read_one(Relation store, Oid status_type)
{
	MemoryContext caller = start_reading(1);

	add_store(store, status_type);
	MemoryContextSwitchTo(caller);
}

/* A store with tables that inherit from it, and the table with their ranges, if there is one. */
void
store_tables_read_ring(Relation store, List *children, Oid ring, Oid status_type)
{
	List	   *ranges = OidIsValid(ring) ? ring_read(ring) : NIL;
	MemoryContext caller = start_reading(list_length(children) + 1);
	ListCell   *cell;

	foreach(cell, children)
		add_member(lfirst_oid(cell), store->rd_rel->relowner, ranges, status_type);
	qsort(tables, count, sizeof(StoreTable), compare_tables);
	add_store(store, status_type);
	MemoryContextSwitchTo(caller);
}

/*
 * The tables are the shards of a distributed store that are on this node.  Only the
 * direct path works on them: statements by SQL would go to Citus.
 */
void
store_tables_read_shards(List *shards, Oid status_type)
{
	MemoryContext caller = start_reading(list_length(shards));
	ListCell   *cell;

	foreach(cell, shards)
	{
		StoreTable *entry = &tables[count++];
		Relation	opened = table_open(lfirst_oid(cell), AccessShareLock);

		entry->oid = lfirst_oid(cell);
		entry->from = entry->until = DT_NOBEGIN;
		read_key(primary_key_index(opened));
		table_close(opened, AccessShareLock);
		definition_require_shard(entry->oid, status_type);
		entry->is_plain = true;
	}
	MemoryContextSwitchTo(caller);
}

int
store_tables_count(void)
{
	return count;
}

const StoreTable *
store_tables_get(int number)
{
	return &tables[number];
}

bool
store_tables_all_plain(void)
{
	for (int i = 0; i < count; i++)
	{
		if (!tables[i].is_plain)
			return false;
	}
	return true;
}

/* NULL: it is not one of these. */
static StoreTable *
find_table(Oid table)
{
	for (int i = 0; i < count; i++)
	{
		if (tables[i].oid == table)
			return &tables[i];
	}
	return NULL;
}

/* Does direct access to the table do all that SQL would?  Not if it is not one of these. */
bool
store_tables_is_plain(Oid table)
{
	StoreTable *entry = find_table(table);

	return entry != NULL && entry->is_plain;
}

/* True if this session has seen pages of the table.  A table that gets a new file is listed anew. */
bool
store_tables_had_pages(Oid table)
{
	StoreTable *entry = find_table(table);

	return entry != NULL && entry->had_pages;
}

void
store_tables_note_pages(Oid table)
{
	StoreTable *entry = find_table(table);

	if (entry != NULL)
		entry->had_pages = true;
}

/* The table for a new row that expires then: one whose range has it, else the store. */
Oid
store_tables_for(TimestampTz expires_at)
{
	for (int i = 0; i < count; i++)
	{
		if (expires_at >= tables[i].from && expires_at < tables[i].until)
			return tables[i].oid;
	}
	return tables[count - 1].oid;
}

/* Is it one of these tables, or the key of one? */
bool
store_tables_include(Oid relation)
{
	ListCell   *cell;

	foreach(cell, keys)
	{
		Key		   *key = lfirst(cell);

		if (relation == key->table || relation == key->index)
			return true;
	}
	return false;
}

bool
store_tables_include_schema(uint32 hash)
{
	ListCell   *cell;

	foreach(cell, keys)
	{
		if (hash == ((Key *) lfirst(cell))->schema_hash)
			return true;
	}
	return false;
}

/* Is this the name of one of the keys, as it stands in errors? */
bool
store_tables_have_key(const char *schema, const char *table, const char *name)
{
	ListCell   *cell;

	if (schema == NULL || table == NULL || name == NULL)
		return false;
	foreach(cell, keys)
	{
		Key		   *key = lfirst(cell);

		if (strcmp(NameStr(key->index_name), name) == 0 &&
			strcmp(NameStr(key->table_name), table) == 0 &&
			strcmp(NameStr(key->schema), schema) == 0)
			return true;
	}
	return false;
}

/* Who may subscribe may name any table, but writes only those that he has a right to. */
static bool
may_fill(Oid subscription, Oid table, Oid owner)
{
	HeapTuple	row = SearchSysCache1(SUBSCRIPTIONOID, ObjectIdGetDatum(subscription));
	bool		is_missing = false;
	Oid			writer;

	if (!HeapTupleIsValid(row))
		return false;
	writer = ((Form_pg_subscription) GETSTRUCT(row))->subowner;
	ReleaseSysCache(row);
	return is_member_of_role(writer, owner) ||
		pg_class_aclcheck_ext(table, writer, ACL_INSERT, &is_missing) == ACLCHECK_OK;
}

/* The subscription that fills a table of this owner: its rows come from a publisher. */
Oid
store_table_subscription(Oid table, Oid owner)
{
	Relation	catalog = table_open(SubscriptionRelRelationId, AccessShareLock);
	SysScanDesc scan;
	ScanKeyData key;
	HeapTuple	tuple;
	Oid			found = InvalidOid;

	ScanKeyInit(&key, Anum_pg_subscription_rel_srrelid, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(table));
	scan = systable_beginscan(catalog, SubscriptionRelSrrelidSrsubidIndexId, true, NULL, 1, &key);
	while (!OidIsValid(found) && HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Oid			subscription = ((Form_pg_subscription_rel) GETSTRUCT(tuple))->srsubid;

		if (may_fill(subscription, table, owner))
			found = subscription;
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	return found;
}
