/*
 * parts.c
 *		The tables that the store's rows are in: itself, or its partitions, and
 *		what the server calls their keys.
 *
 * The parts of a store that is partitioned by expiry are in the order in which
 * a key is looked up: first the part that takes the rest, then from the rows
 * that expire last to those that expire first.
 */
#include "postgres.h"

#include "access/table.h"
#include "catalog/index.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "nodes/pg_list.h"
#include "partitioning/partbounds.h"
#include "partitioning/partdesc.h"
#include "storage/lockdefs.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "base/compat.h"
#include "schema/parts.h"
#include "schema/shape.h"

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
static Part *parts = NULL;
static int	count = 0;

/* false if a part of it was dropped just now; the invalidation will come */
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
	shape_require_logged(NameStr(key->table_name), get_rel_persistence(key->table), LOSS_OF_STORE);
}

/* The table itself, or the parts of a store whose owner has chosen them. */
static void
read_whole(Relation store)
{
	Part		whole = {RelationGetRelid(store), DT_NOBEGIN, DT_NOEND, true};
	Oid			key = primary_key_index(store);
	/* a store without a key is refused when its shape is looked at */
	List	   *indexes = OidIsValid(key) ? find_all_inheritors(key, NoLock, NULL) : NIL;
	ListCell   *cell;

	parts = palloc(sizeof(Part));
	parts[0] = whole;
	count = 1;
	foreach(cell, indexes)
		read_key(lfirst_oid(cell));
}

static void
add_part(Oid table, TimestampTz from, TimestampTz until, bool takes_rest)
{
	Part		part = {table, from, until, takes_rest};
	Relation	opened = table_open(table, AccessShareLock);

	parts[count++] = part;
	read_key(primary_key_index(opened));
	table_close(opened, AccessShareLock);
}

static TimestampTz
bound_at(PartitionBoundInfo bounds, int number)
{
	switch (bounds->kind[number][0])
	{
		case PARTITION_RANGE_DATUM_MINVALUE:
			return DT_NOBEGIN;
		case PARTITION_RANGE_DATUM_MAXVALUE:
			return DT_NOEND;
		default:
			return DatumGetTimestampTz(bounds->datums[number][0]);
	}
}

/* The server keeps a partition with its upper bound. */
static void
read_by_expiry(Relation store)
{
	PartitionDesc described = RelationGetPartitionDesc(store, false);
	PartitionBoundInfo bounds = described->boundinfo;

	count = 0;
	parts = palloc(Max(described->nparts, 1) * sizeof(Part));
	if (described->nparts == 0)
		return;
	if (partition_bound_has_default(bounds))
		add_part(described->oids[bounds->default_index], DT_NOBEGIN, DT_NOEND, true);
	for (int i = bounds->ndatums - 1; i >= 0; i--)
	{
		if (bounds->indexes[i] >= 0)
			add_part(described->oids[bounds->indexes[i]],
					 i > 0 ? bound_at(bounds, i - 1) : DT_NOBEGIN, bound_at(bounds, i), false);
	}
}

/* Forgets all parts, and makes room for others. */
static MemoryContext
start_reading(void)
{
	if (context == NULL)
		context = AllocSetContextCreate(TopMemoryContext, "idempotency parts",
										ALLOCSET_SMALL_SIZES);
	keys = NIL;
	count = 0;
	MemoryContextReset(context);
	return MemoryContextSwitchTo(context);
}

/* Reads the parts of the store.  The caller looks at their shape afterwards. */
void
parts_read(Relation store)
{
	MemoryContext caller = start_reading();

	if (shape_is_by_expiry(store))
		read_by_expiry(store);
	else
		read_whole(store);
	MemoryContextSwitchTo(caller);
}

/* The parts are the shards of a distributed store that are on this node. */
void
parts_read_shards(List *shards)
{
	MemoryContext caller = start_reading();
	ListCell   *cell;

	parts = palloc(Max(list_length(shards), 1) * sizeof(Part));
	foreach(cell, shards)
		add_part(lfirst_oid(cell), DT_NOBEGIN, DT_NOEND, true);
	MemoryContextSwitchTo(caller);
}

int
parts_count(void)
{
	return count;
}

const Part *
parts_get(int number)
{
	return &parts[number];
}

/* The part for whatever belongs to no other; NULL: there is none. */
static const Part *
parts_rest(void)
{
	return count > 0 && parts[0].takes_rest ? &parts[0] : NULL;
}

/* The part that a row with this expiry belongs to. */
const Part *
parts_for(TimestampTz expires_at)
{
	for (int i = 0; i < count; i++)
	{
		if (!parts[i].takes_rest && expires_at >= parts[i].from && expires_at < parts[i].until)
			return &parts[i];
	}
	return parts_rest();
}

/* Is it one of these tables, or the key of one? */
bool
parts_include(Oid relation)
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
parts_include_schema(uint32 hash)
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
parts_have_key(const char *schema, const char *table, const char *name)
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
