/*
 * catalog.c
 *		Finds the objects of the extension in this database.
 *
 * They are found through the extension's own schema, never through
 * search_path, and remembered until an invalidation comes: something may
 * have changed: DROP and CREATE EXTENSION, DDL on a table, a renamed schema.
 *
 * A name is resolved again after the lock was granted: during the wait,
 * another table may have taken the name.
 */
#include "postgres.h"

#include "access/relation.h"
#include "catalog/dependency.h"
#include "catalog/pg_class.h"
#include "catalog/pg_enum.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
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
#include "schema/table_owner.h"
#include "schema/catalog.h"
#include "schema/store_tables.h"
#include "schema/lock_key.h"
#include "schema/definition.h"

/* without these nothing works; the others may be missing */
#define NEEDED_TABLES (TABLE_SECRET + 1)

static const char *const table_names[CATALOG_TABLES] = {
	[TABLE_STORE] = "idempotency_store",
	[TABLE_FENCE] = "idempotency_fence",
	[TABLE_SCOPE] = "idempotency_scope",
	[TABLE_SECRET] = "idempotency_secret",
	[TABLE_STREAM] = "idempotency_stream",
	[TABLE_SWEEP] = "idempotency_sweep",
	[TABLE_RING] = "idempotency_ring"
};

static Catalog catalog;
static bool names_valid = false;	/* which objects; until an invalidation comes */
static bool catalog_valid = false;	/* and their properties */

/* in the caches of schemas and types */
static uint32 schema_hash = 0;
static uint32 status_hash = 0;
static uint32 outcome_hash = 0;
static uint32 operation_hash = 0;

static const char *const status_names[STATUS_LABELS] = {"PENDING", "COMPLETED", "FAILED"};
static const char *const outcome_names[OUTCOME_LABELS] = {"ACQUIRED", "IN_PROGRESS", "COMPLETED", "FAILED", "MISMATCH"};

static void
forget_catalog(void)
{
	names_valid = false;
	catalog_valid = false;
	catalog.generation++;
}

/* ---- names ---- */

static void
require_logged(CatalogTable table, const char *loss)
{
	definition_require_logged(table_names[table], get_rel_persistence(catalog.tables[table]), loss);
}

/* The functions that look for objects return the name of one that is missing, or NULL. */
static const char *
find_tables(Oid schema)
{
	for (int table = 0; table < CATALOG_TABLES; table++)
	{
		catalog.tables[table] = get_relname_relid(table_names[table], schema);
		if (!OidIsValid(catalog.tables[table]) && table < NEEDED_TABLES)
			return table_names[table];
	}
	return get_rel_relkind(catalog.tables[TABLE_FENCE]) == RELKIND_SEQUENCE ? NULL : table_names[TABLE_FENCE];
}

/* The first look keeps the row of pg_class in the cache for the second one. */
static const char *
find_logged(CatalogTable table, const char *loss)
{
	if (get_rel_relkind(catalog.tables[table]) == '\0')
		return table_names[table];
	require_logged(table, loss);
	return NULL;
}

static const char *
find_type(Oid schema, const char *name, Oid *type, uint32 *hash)
{
	*type = GetSysCacheOid2(TYPENAMENSP, Anum_pg_type_oid,
							CStringGetDatum(name), ObjectIdGetDatum(schema));
	*hash = GetSysCacheHashValue1(TYPEOID, ObjectIdGetDatum(*type));
	return OidIsValid(*type) ? NULL : name;
}

static const char *
find_labels(Oid type, const char *name, int count, const char *const *labels, Oid *found)
{
	for (int i = 0; i < count; i++)
	{
		found[i] = GetSysCacheOid2(ENUMTYPOIDNAME, Anum_pg_enum_oid,
								   ObjectIdGetDatum(type), CStringGetDatum(labels[i]));
		if (!OidIsValid(found[i]))
			return name;
	}
	return NULL;
}

/* From the moment when an object is found, invalidations of it count. */
static const char *
find_names(Oid extension)
{
	Oid			schema = get_extension_schema(extension);
	char	   *schema_name;
	const char *missing;

	schema_hash = GetSysCacheHashValue1(NAMESPACEOID, ObjectIdGetDatum(schema));
	schema_name = get_namespace_name(schema);
	if (schema_name == NULL)
		return "schema";
	strlcpy(catalog.schema, schema_name, NAMEDATALEN);
	missing = find_tables(schema);
	if (missing == NULL)
		missing = find_type(schema, "idempotency_status", &catalog.status_type, &status_hash);
	if (missing == NULL)
		missing = find_type(schema, "idem_operation", &catalog.operation_type, &operation_hash);
	if (missing == NULL)
		missing = find_type(schema, "idem_outcome", &catalog.outcome_type, &outcome_hash);
	if (missing == NULL)
		missing = find_labels(catalog.status_type, "idempotency_status",
							  STATUS_LABELS, status_names, catalog.status_labels);
	if (missing == NULL)
		missing = find_labels(catalog.outcome_type, "idem_outcome",
							  OUTCOME_LABELS, outcome_names, catalog.outcome_labels);
	if (missing == NULL)
		missing = find_logged(TABLE_SCOPE, "claimed scopes would be open to all");
	if (missing == NULL)
		missing = find_logged(TABLE_SECRET, "operations could not be locked");
	return missing;
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
		missing = find_names(extension);
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
			definition_refuse(table_names[table]);
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

	catalog.store_owner = definition_require_openable(catalog.tables[TABLE_STORE], table_names[TABLE_STORE]);
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
catalog_has_news(void)
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
		require_logged(table, "events that are out of date would be taken");
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
	if (hash == 0 || hash == schema_hash || store_tables_include_schema(hash))
		forget_catalog();
}

static void
catalog_type_changed(Datum arg, int cache, uint32 hash)
{
	if (hash == 0 || hash == status_hash || hash == outcome_hash || hash == operation_hash)
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
