/*
 * catalog.c
 *		Remembers the objects of the extension in this database, until an invalidation
 *		comes: DROP and CREATE EXTENSION, DDL on a table, a renamed schema.
 *
 * A name is resolved again after the lock was granted: during the wait,
 * another table may have taken the name.
 */
#include "postgres.h"

#include "access/relation.h"
#include "catalog/dependency.h"
#include "catalog/pg_class.h"
#include "catalog/pg_proc.h"
#include "commands/extension.h"
#include "nodes/value.h"
#include "parser/parse_func.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "base/compat.h"
#include "citus/citus.h"
#include "schema/catalog.h"
#include "schema/definition.h"
#include "schema/lock_key.h"
#include "schema/objects.h"
#include "schema/store_tables.h"
#include "schema/table_owner.h"

static Catalog catalog;
static bool names_valid = false;	/* which objects; until an invalidation comes */
static bool catalog_valid = false;	/* and their properties */

static void
forget_catalog(void)
{
	names_valid = false;
	catalog_valid = false;
	catalog.generation++;
}

/*
 * Resolves the names, as of the invalidations that have arrived; false: not
 * installed.
 */
static bool
resolve_names(void)
{
	Oid			extension;
	const char *missing = NULL;

	if (names_valid)
		return true;
	extension = get_extension_oid(EXTENSION_NAME, true);
	if (!OidIsValid(extension))
		return false;
	/* set first: an invalidation on the way must not get lost */
	names_valid = true;
	PG_TRY();
	{
		missing = objects_find(extension, &catalog);
	}
	PG_CATCH();
	{
		forget_catalog();
		PG_RE_THROW();
	}
	PG_END_TRY();
	if (missing == NULL)
		return true;
	forget_catalog();
	/* it may have been dropped since it was found */
	if (OidIsValid(get_extension_oid(EXTENSION_NAME, true)))
		definition_refuse(missing);
	return false;
}

/*
 * Locks the table that has the name, as RangeVarGetRelidExtended does: the
 * table that was waited for may have lost its name meanwhile.  A locked table
 * keeps its name.  false: the extension is not installed or, if we do not
 * wait, the lock is not free.
 */
static bool
lock_table(CatalogTable table, LOCKMODE mode, bool wait)
{
	Oid			locked = InvalidOid;

	while (resolve_names())
	{
		Oid			found = catalog.tables[table];

		if (!OidIsValid(found))
			definition_refuse(objects_table_name(table));
		if (found == locked)
			return true;
		if (OidIsValid(locked))
			UnlockRelationOid(locked, mode);
		if (wait)
			LockRelationOid(found, mode);
		else if (!ConditionalLockRelationOid(found, mode))
			return false;
		if (names_valid)
			return true;
		/* an invalidation came with the lock: look again */
		locked = found;
	}
	if (OidIsValid(locked))
		UnlockRelationOid(locked, mode);
	return false;
}

/* ---- the properties of the objects ---- */

/*
 * Before 1.1 there was no table of the ring, and no tables that inherit: there
 * are none that have ranges.
 */
static void
read_ring(Relation store, List *children)
{
	bool		has_ranges = OidIsValid(catalog.tables[TABLE_RING]) &&
		lock_table(TABLE_RING, AccessShareLock, true);

	store_tables_read_ring(store, children, has_ranges ? catalog.tables[TABLE_RING] : InvalidOid,
					catalog.status_type);
}

static void
describe_store(void)
{
	Relation	store = relation_open(catalog.tables[TABLE_STORE], NoLock);
	List	   *children = definition_children(store);

	if (citus_read_store(store))
	{
		catalog.store_kind = STORE_DISTRIBUTED;
		store_tables_read_shards(citus_local_shards(), catalog.status_type);
	}
	else if (children != NIL)
	{
		catalog.store_kind = STORE_RING;
		read_ring(store, children);
	}
	else
	{
		catalog.store_kind = STORE_ONE_TABLE;
		store_tables_read_one(store, catalog.status_type);
	}
	catalog.store_plain = store_tables_all_plain();
	relation_close(store, NoLock);
}

/*
 * The store is locked already.  The caller may be a superuser, and opening a table can
 * run code of its owner: so the owner is read from the catalog's row, and opens it.
 */
static void
read_store(void)
{
	Caller		caller;

	catalog.store_owner = definition_require_openable(catalog.tables[TABLE_STORE], objects_table_name(TABLE_STORE));
	caller = table_owner_enter_call(catalog.store_owner);
	describe_store();
	table_owner_leave(&caller);
}

static void
read_lock_key(void)
{
	/* false: dropped meanwhile, and the invalidation has arrived */
	if (lock_table(TABLE_SECRET, AccessShareLock, true))
		catalog.lock_key = lock_key_read(catalog.tables[TABLE_SECRET]);
}

static void
read_catalog(void)
{
	/* set first: an invalidation while we read must clear it */
	catalog_valid = true;
	PG_TRY();
	{
		read_store();
		read_lock_key();
	}
	PG_CATCH();
	{
		forget_catalog();
		PG_RE_THROW();
	}
	PG_END_TRY();
}

static const Catalog *
open_if_installed(LOCKMODE mode, bool wait)
{
	while (lock_table(TABLE_STORE, mode, wait))
	{
		Oid			locked = catalog.tables[TABLE_STORE];

		if (!catalog_valid && !wait && citus_leaves_unused(locked))
			return NULL;
		if (!catalog_valid)
			read_catalog();
		if (catalog.tables[TABLE_STORE] == locked)
			return &catalog;
	}
	return NULL;
}

static void
not_installed(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("extension \"%s\" is not installed in this database", EXTENSION_NAME),
			 errhint("Run CREATE EXTENSION idempotency.")));
}

/* Does it belong to the extension?  Others may make functions in its schema. */
bool
catalog_has_function(Oid function)
{
	Oid			extension = get_extension_oid(EXTENSION_NAME, true);

	return OidIsValid(extension) && getExtensionOfObject(ProcedureRelationId, function) == extension;
}

/* The extension's function with just these arguments; InvalidOid: it has none. */
Oid
catalog_find_function(const char *schema, const char *name, int count, const Oid *types)
{
	List	   *names = list_make2(makeString(pstrdup(schema)), makeString(pstrdup(name)));
	Oid			function = LookupFuncName(names, count, types, true);

	return OidIsValid(function) && catalog_has_function(function) ? function : InvalidOid;
}

/* ---- */

/*
 * The extension's objects, with the store locked in that mode until the
 * transaction ends, so that DDL meets us here and not at COMMIT.
 */
const Catalog *
catalog_open(LOCKMODE mode)
{
	const Catalog *installed = open_if_installed(mode, true);

	if (installed == NULL)
		not_installed();
	return installed;
}

/*
 * The same for callers that must not wait: NULL if the extension is not
 * installed, while another session changes or drops the store, and where this
 * node has a store that nobody may use.
 */
const Catalog *
catalog_open_if_free(LOCKMODE mode)
{
	return open_if_installed(mode, false);
}

/* For callers after catalog_open in the same call. */
const Catalog *
catalog_known(void)
{
	return catalog_valid ? &catalog : catalog_open(AccessShareLock);
}

/*
 * Has anything changed since the catalog was read?  catalog_lock looks up the names
 * anew, but not what the rest of the catalog says.
 */
bool
catalog_is_stale(void)
{
	return !catalog_valid;
}

/*
 * Locks a table of the extension, until the transaction ends, and returns
 * which it is then.  The names in the catalog are those of that moment, too.
 */
Oid
catalog_lock(CatalogTable table, LOCKMODE mode)
{
	if (!lock_table(table, mode, true))
		not_installed();
	if (table == TABLE_STREAM)
		objects_require_logged(&catalog, table, "events that are out of date would be taken");
	return catalog.tables[table];
}

static void
catalog_table_changed(Datum arg, Oid relation)
{
	if (!OidIsValid(relation) || store_tables_include(relation))
		forget_catalog();
	for (int table = 0; table < CATALOG_TABLES; table++)
	{
		if (relation == catalog.tables[table])
			forget_catalog();
	}
}

/* Ignores other schemas: temporary tables change those all the time. */
static void
catalog_schema_changed(Datum arg, int cache, uint32 hash)
{
	if (hash == 0 || objects_include_schema(hash) || store_tables_include_schema(hash))
		forget_catalog();
}

static void
catalog_type_changed(Datum arg, int cache, uint32 hash)
{
	if (hash == 0 || objects_include_type(hash))
		forget_catalog();
}

static void
catalog_label_changed(Datum arg, int cache, uint32 hash)
{
	forget_catalog();
}

void
catalog_register(void)
{
	CacheRegisterRelcacheCallback(catalog_table_changed, (Datum) 0);
	CacheRegisterSyscacheCallback(NAMESPACEOID, catalog_schema_changed, (Datum) 0);
	CacheRegisterSyscacheCallback(TYPEOID, catalog_type_changed, (Datum) 0);
	CacheRegisterSyscacheCallback(ENUMOID, catalog_label_changed, (Datum) 0);
}
