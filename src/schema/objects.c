/*
 * objects.c
 *		The objects of the extension by their names: what they are called, and which
 *		invalidations concern them.
 *
 * They are found through the extension's own schema, never through search_path.
 * catalog.c remembers what is found here.
 */
#include "postgres.h"

#include "catalog/pg_class.h"
#include "catalog/pg_enum.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "base/compat.h"
#include "schema/definition.h"
#include "schema/objects.h"

/* without these nothing works; the others may be missing */
#define NEEDED_TABLES (TABLE_SECRET + 1)

static const char *const table_names[CATALOG_TABLES] = {
	[TABLE_STORE] = "idempotency_store",
	[TABLE_FENCE] = "idempotency_fence",
	[TABLE_SCOPE] = "idempotency_scope",
	[TABLE_SECRET] = "idempotency_secret",
	[TABLE_STREAM] = "idempotency_stream",
	[TABLE_SWEEP] = "idempotency_sweep",
	[TABLE_RING] = "idempotency_ring",
	[TABLE_FORGOTTEN] = "idempotency_forgotten"
};

/* in the caches of schemas and types */
static uint32 schema_hash = 0;
static uint32 status_hash = 0;
static uint32 outcome_hash = 0;
static uint32 operation_hash = 0;

static const char *const status_names[STATUS_LABELS] = {"PENDING", "COMPLETED", "FAILED"};
static const char *const outcome_names[OUTCOME_LABELS] = {"ACQUIRED", "IN_PROGRESS", "COMPLETED", "FAILED", "MISMATCH"};

const char *
objects_table_name(CatalogTable table)
{
	return table_names[table];
}

/* Refuses a table that is not logged; loss: what would happen after a crash. */
void
objects_require_logged(const Catalog *catalog, CatalogTable table, const char *loss)
{
	definition_require_logged(table_names[table], get_rel_persistence(catalog->tables[table]), loss);
}

/* These functions return the name of an object that is missing, or NULL. */
static const char *
find_tables(Oid schema, Catalog *catalog)
{
	for (int table = 0; table < CATALOG_TABLES; table++)
	{
		catalog->tables[table] = get_relname_relid(table_names[table], schema);
		if (!OidIsValid(catalog->tables[table]) && table < NEEDED_TABLES)
			return table_names[table];
	}
	return get_rel_relkind(catalog->tables[TABLE_FENCE]) == RELKIND_SEQUENCE ? NULL : table_names[TABLE_FENCE];
}

/* If the row of pg_class is found, the cache still has it for objects_require_logged(). */
static const char *
find_logged(const Catalog *catalog, CatalogTable table, const char *loss)
{
	if (get_rel_relkind(catalog->tables[table]) == '\0')
		return table_names[table];
	objects_require_logged(catalog, table, loss);
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

/*
 * Finds all of them; returns the name of one that is missing, or NULL.  From the moment
 * when an object is found, invalidations of it count.
 */
const char *
objects_find(Oid extension, Catalog *catalog)
{
	Oid			schema = get_extension_schema(extension);
	char	   *schema_name;
	const char *missing;

	schema_hash = GetSysCacheHashValue1(NAMESPACEOID, ObjectIdGetDatum(schema));
	schema_name = get_namespace_name(schema);
	if (schema_name == NULL)
		return "schema";
	strlcpy(catalog->schema, schema_name, NAMEDATALEN);
	missing = find_tables(schema, catalog);
	if (missing == NULL)
		missing = find_type(schema, "idempotency_status", &catalog->status_type, &status_hash);
	if (missing == NULL)
		missing = find_type(schema, "idem_operation", &catalog->operation_type, &operation_hash);
	if (missing == NULL)
		missing = find_type(schema, "idem_outcome", &catalog->outcome_type, &outcome_hash);
	if (missing == NULL)
		missing = find_labels(catalog->status_type, "idempotency_status",
							  STATUS_LABELS, status_names, catalog->status_labels);
	if (missing == NULL)
		missing = find_labels(catalog->outcome_type, "idem_outcome",
							  OUTCOME_LABELS, outcome_names, catalog->outcome_labels);
	if (missing == NULL)
		missing = find_logged(catalog, TABLE_SCOPE, "claimed scopes would be open to all");
	if (missing == NULL)
		missing = find_logged(catalog, TABLE_SECRET, "operations could not be locked");
	return missing;
}

bool
objects_include_schema(uint32 hash)
{
	return hash == schema_hash;
}

bool
objects_include_type(uint32 hash)
{
	return hash == status_hash || hash == outcome_hash || hash == operation_hash;
}
