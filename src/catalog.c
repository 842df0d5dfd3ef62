/*
 * catalog.c
 *		Which objects of this database are the extension's.
 *
 * They are found through the extension's own schema, never through
 * search_path, and remembered until an invalidation says that something may
 * have changed: DROP and CREATE EXTENSION, DDL on the store, a renamed schema.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "catalog/pg_class.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_enum.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "catalog.h"
#include "compat.h"
#include "record.h"

static Catalog catalog;
static bool catalog_valid = false;
static uint32 schema_hash = 0;

static const char *const status_names[STATUS_LABELS] = {"PENDING", "COMPLETED", "FAILED"};
static const char *const outcome_names[OUTCOME_LABELS] = {"ACQUIRED", "IN_PROGRESS", "COMPLETED", "FAILED"};

static void
missing_object(const char *what)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("%s of extension \"%s\" is missing or has been changed", what, EXTENSION_NAME),
			 errhint("Restore what was changed, or drop the extension and create it again.")));
}

static Oid
find_relation(Oid schema, const char *name)
{
	Oid			relation = get_relname_relid(name, schema);

	if (!OidIsValid(relation))
		missing_object(name);
	return relation;
}

static Oid
find_type(Oid schema, const char *name)
{
	Oid			type = GetSysCacheOid2(TYPENAMENSP, Anum_pg_type_oid,
									   CStringGetDatum(name), ObjectIdGetDatum(schema));

	if (!OidIsValid(type))
		missing_object(name);
	return type;
}

static void
find_labels(Oid type, const char *name, int count, const char *const *labels, Oid *found)
{
	for (int i = 0; i < count; i++)
	{
		found[i] = GetSysCacheOid2(ENUMTYPOIDNAME, Anum_pg_enum_oid,
								   ObjectIdGetDatum(type), CStringGetDatum(labels[i]));
		if (!OidIsValid(found[i]))
			missing_object(name);
	}
}

/* A fresh snapshot, whatever the isolation level: the seed is not data. */
static uint64
read_lock_seed(Oid schema)
{
	Relation	secret = table_open(find_relation(schema, "idempotency_secret"), AccessShareLock);
	AttrNumber	column = get_attnum(RelationGetRelid(secret), "lock_seed");
	SysScanDesc scan = systable_beginscan(secret, InvalidOid, false, NULL, 0, NULL);
	HeapTuple	row = systable_getnext(scan);
	Datum		seed = 0;
	bool		is_null = true;

	if (HeapTupleIsValid(row) && column != InvalidAttrNumber &&
		get_atttype(RelationGetRelid(secret), column) == INT8OID)
		seed = heap_getattr(row, column, RelationGetDescr(secret), &is_null);
	if (is_null)
		missing_object("idempotency_secret");
	systable_endscan(scan);
	table_close(secret, AccessShareLock);
	return (uint64) DatumGetInt64(seed);
}

/* Further indexes could have expressions or predicates: the owner's code. */
static bool
has_only_its_key(Relation relation)
{
	List	   *indexes = RelationGetIndexList(relation);
	bool		alone = list_length(indexes) == 1 &&
		linitial_oid(indexes) == primary_key_index(relation);

	list_free(indexes);
	return alone;
}

/* The direct path looks up by the columns of the key in their order. */
static bool
key_is_as_made(Oid key)
{
	Relation	index = index_open(key, AccessShareLock);
	Form_pg_index form = index->rd_index;
	bool		as_made = form->indnkeyatts == 2 && form->indnatts == 2 &&
		form->indkey.values[0] == COLUMN_SCOPE + 1 &&
		form->indkey.values[1] == COLUMN_IDEMPOTENCY_KEY + 1 &&
		index->rd_indcollation[0] == C_COLLATION_OID &&
		index->rd_indcollation[1] == C_COLLATION_OID;

	index_close(index, AccessShareLock);
	return as_made;
}

/*
 * Is the store an ordinary table as the script made it?  Then rows may be
 * read and inserted without the executor.  Whatever the owner has added
 * (triggers, row security, constraints, columns, indexes) needs SQL.
 */
static bool
store_is_plain(Relation relation)
{
	TupleConstr *constraints = RelationGetDescr(relation)->constr;

	return relation->rd_rel->relkind == RELKIND_RELATION &&
		!relation->rd_rel->relispartition &&
		relation->trigdesc == NULL &&
		!relation->rd_rel->relrowsecurity &&
		relation->rd_rules == NULL &&
		(constraints == NULL || (constraints->num_check == 0 && !constraints->has_generated_stored)) &&
		record_matches(RelationGetDescr(relation), catalog.status_type) &&
		has_only_its_key(relation) &&
		key_is_as_made(primary_key_index(relation));
}

/* By these names a violation of the key is told from that of another index. */
static void
read_key_names(void)
{
	List	   *indexes = find_all_inheritors(catalog.key, NoLock, NULL);
	MemoryContext caller = MemoryContextSwitchTo(TopMemoryContext);
	ListCell   *cell;

	list_free_deep(catalog.key_names);
	catalog.key_names = NIL;
	foreach(cell, indexes)
	{
		char	   *name = get_rel_name(lfirst_oid(cell));

		if (name != NULL)
			catalog.key_names = lappend(catalog.key_names, name);
	}
	MemoryContextSwitchTo(caller);
}

static void
read_key(Relation relation)
{
	catalog.key = primary_key_index(relation);
	if (!OidIsValid(catalog.key))
		missing_object("primary key of idempotency_store");
	read_key_names();
}

/* false when it was dropped just now */
static bool
read_store(Oid store)
{
	Relation	relation = try_relation_open(store, AccessShareLock);

	if (relation == NULL)
		return false;
	if (relation->rd_rel->relkind != RELKIND_RELATION &&
		relation->rd_rel->relkind != RELKIND_PARTITIONED_TABLE)
		missing_object("idempotency_store");
	if (relation->rd_rel->relpersistence != RELPERSISTENCE_PERMANENT)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"idempotency_store\" is not logged"),
				 errdetail("A crash would empty it, and finished operations would run again."),
				 errhint("Run ALTER TABLE ... SET LOGGED.")));
	if (!record_fits(RelationGetDescr(relation), catalog.status_type))
		missing_object("a column of idempotency_store");
	catalog.store = store;
	catalog.store_owner = relation->rd_rel->relowner;
	catalog.store_plain = store_is_plain(relation);
	read_key(relation);
	/* the lock stays: nothing else of the extension is dropped meanwhile */
	relation_close(relation, NoLock);
	return true;
}

static void
read_catalog(Oid extension)
{
	Oid			schema = get_extension_schema(extension);
	char	   *schema_name = get_namespace_name(schema);

	if (schema_name == NULL)
		missing_object("schema");
	/* valid from the start: an invalidation on the way must not get lost */
	catalog_valid = true;
	schema_hash = GetSysCacheHashValue1(NAMESPACEOID, ObjectIdGetDatum(schema));
	strlcpy(catalog.schema, schema_name, NAMEDATALEN);
	catalog.status_type = find_type(schema, "idempotency_status");
	if (!read_store(find_relation(schema, "idempotency_store")))
	{
		catalog.store = InvalidOid;
		catalog_valid = false;
		return;
	}
	catalog.fences = find_relation(schema, "idempotency_fence");
	catalog.scopes = find_relation(schema, "idempotency_scope");
	catalog.lock_seed = read_lock_seed(schema);
	catalog.operation_type = find_type(schema, "idem_operation");
	catalog.outcome_type = find_type(schema, "idem_outcome");
	find_labels(catalog.status_type, "idempotency_status",
				STATUS_LABELS, status_names, catalog.status_labels);
	find_labels(catalog.outcome_type, "idem_outcome",
				OUTCOME_LABELS, outcome_names, catalog.outcome_labels);
	catalog.generation++;
}

/* false where the extension is not installed */
static bool
refresh(void)
{
	Oid			extension;

	if (catalog_valid)
		return true;
	extension = get_extension_oid(EXTENSION_NAME, true);
	if (!OidIsValid(extension))
		return false;
	PG_TRY();
	{
		read_catalog(extension);
	}
	PG_CATCH();
	{
		catalog_valid = false;
		PG_RE_THROW();
	}
	PG_END_TRY();
	return true;
}

/*
 * The extension's objects, with the store locked in that mode until the
 * transaction ends, so that DDL meets us here and not at COMMIT.  NULL where
 * the extension is not installed.
 */
static const Catalog *
catalog_open_if_installed(LOCKMODE mode)
{
	while (refresh())
	{
		Oid			store = catalog.store;

		if (!OidIsValid(store))
			continue;
		LockRelationOid(store, mode);
		if (catalog_valid)
			return &catalog;
		/* waiting for the lock brought news; what is read under it holds */
		if (!refresh())
			return NULL;
		if (catalog.store == store)
			return &catalog;
	}
	return NULL;
}

/* For whoever comes after catalog_open in the same call. */
const Catalog *
catalog_known(void)
{
	return catalog_valid ? &catalog : catalog_open(AccessShareLock);
}

/*
 * The same for a worker that must not wait: NULL also while somebody else
 * changes or drops the store.
 */
const Catalog *
catalog_open_if_free(LOCKMODE mode)
{
	Oid			extension = get_extension_oid(EXTENSION_NAME, true);
	Oid			store = OidIsValid(extension) ?
		get_relname_relid("idempotency_store", get_extension_schema(extension)) : InvalidOid;

	if (!OidIsValid(store) || !ConditionalLockRelationOid(store, mode))
		return NULL;
	return catalog_open_if_installed(mode);
}

const Catalog *
catalog_open(LOCKMODE mode)
{
	const Catalog *installed = catalog_open_if_installed(mode);

	if (installed == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("extension \"%s\" is not installed in this database", EXTENSION_NAME),
				 errhint("Run CREATE EXTENSION idempotency.")));
	return installed;
}

static void
relation_changed(Datum arg, Oid relation)
{
	if (relation == catalog.store || relation == catalog.key || !OidIsValid(relation))
		catalog_valid = false;
}

static void
schema_changed(Datum arg, int cache, uint32 hash)
{
	/* others come and go with every temporary table */
	if (hash == 0 || hash == schema_hash)
		catalog_valid = false;
}

void
catalog_register(void)
{
	CacheRegisterRelcacheCallback(relation_changed, (Datum) 0);
	CacheRegisterSyscacheCallback(NAMESPACEOID, schema_changed, (Datum) 0);
}
