/*
 * parts.c
 *		The tables that the store's rows are in: itself, or its partitions, and
 *		what the server calls their keys.
 */
#include "postgres.h"

#include "catalog/index.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "nodes/pg_list.h"
#include "storage/lockdefs.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "compat.h"
#include "parts.h"
#include "shape.h"

typedef struct Part
{
	Oid			table;
	Oid			key;
	uint32		schema_hash;	/* in the cache of schemas */
	NameData	schema;
	NameData	table_name;
	NameData	key_name;
} Part;

static MemoryContext context = NULL;
static List *parts = NIL;		/* of Part */

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
read_part(Oid key)
{
	Part	   *part = palloc0(sizeof(Part));
	Oid			schema;

	part->key = key;
	part->table = IndexGetRelation(key, true);
	schema = get_rel_namespace(part->table);
	part->schema_hash = GetSysCacheHashValue1(NAMESPACEOID, ObjectIdGetDatum(schema));
	/* watched from here on */
	parts = lappend(parts, part);
	if (!read_name(&part->schema, get_namespace_name(schema)) ||
		!read_name(&part->table_name, get_rel_name(part->table)) ||
		!read_name(&part->key_name, get_rel_name(key)))
		return;
	shape_require_logged(NameStr(part->table_name), get_rel_persistence(part->table), LOSS_OF_STORE);
}

/* Reads all tables whose rows the key covers. */
void
parts_read(Oid key)
{
	List	   *keys = find_all_inheritors(key, NoLock, NULL);
	MemoryContext caller;
	ListCell   *cell;

	if (context == NULL)
		context = AllocSetContextCreate(TopMemoryContext, "idempotency parts",
										ALLOCSET_SMALL_SIZES);
	parts = NIL;
	MemoryContextReset(context);
	caller = MemoryContextSwitchTo(context);
	foreach(cell, keys)
		read_part(lfirst_oid(cell));
	MemoryContextSwitchTo(caller);
}

/* Is it one of these tables, or the key of one? */
bool
parts_include(Oid relation)
{
	ListCell   *cell;

	foreach(cell, parts)
	{
		Part	   *part = lfirst(cell);

		if (relation == part->table || relation == part->key)
			return true;
	}
	return false;
}

bool
parts_include_schema(uint32 hash)
{
	ListCell   *cell;

	foreach(cell, parts)
	{
		if (hash == ((Part *) lfirst(cell))->schema_hash)
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
	foreach(cell, parts)
	{
		Part	   *part = lfirst(cell);

		if (strcmp(NameStr(part->key_name), name) == 0 &&
			strcmp(NameStr(part->table_name), table) == 0 &&
			strcmp(NameStr(part->schema), schema) == 0)
			return true;
	}
	return false;
}
