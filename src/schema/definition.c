/*
 * definition.c
 *		Which definition the extension's tables must have: the store, so that it
 *		can keep operations at all, and so that the direct path may read and
 *		write it.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_inherits.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "base/compat.h"
#include "base/idempotency.h"
#include "schema/definition.h"
#include "schema/record.h"

/* An object of the extension is missing, or not as the script made it. */
void
definition_refuse(const char *what)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("%s of extension \"%s\" is missing or has been changed", what, EXTENSION_NAME),
			 errhint("Restore what was changed. DROP EXTENSION would remove all records, and operations would run again.")));
}

void
definition_require_logged(const char *table, char persistence, const char *loss)
{
	if (persistence != RELPERSISTENCE_PERMANENT)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("\"%s\" is not logged", table),
				 errdetail("A crash would empty it, and %s.", loss),
				 errhint("Run ALTER TABLE ... SET LOGGED.")));
}

/*
 * May the table be opened?  Returns its owner.  Only rows of the catalogs are read, and
 * no code of the owner runs.
 */
Oid
definition_require_openable(Oid table, const char *name)
{
	HeapTuple	row = SearchSysCache1(RELOID, ObjectIdGetDatum(table));
	Oid			owner = InvalidOid;

	if (HeapTupleIsValid(row))
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(row);

		if (form->relkind == RELKIND_RELATION || form->relkind == RELKIND_PARTITIONED_TABLE)
			owner = form->relowner;
		ReleaseSysCache(row);
	}
	if (!OidIsValid(owner))
		definition_refuse(name);
	return owner;
}

/*
 * The tables that inherit from an ordinary one.  The flag alone is not enough: it
 * stays set for a while after the last one was dropped.
 */
List *
definition_children(Relation table)
{
	return table->rd_rel->relkind == RELKIND_RELATION && table->rd_rel->relhassubclass ?
		find_inheritance_children(RelationGetRelid(table), NoLock) : NIL;
}

/* Is the column exactly like this, with its values in the rows? */
static bool
is_raw_column(Form_pg_attribute attribute, const RawColumn *column)
{
	return !attribute->attisdropped && attribute->attgenerated == '\0' &&
		attribute->atttypid == column->type && strcmp(NameStr(attribute->attname), column->name) == 0;
}

/*
 * A table that is read without the executor has to be an ordinary one with the
 * columns of the script: nothing else checks that.
 */
void
definition_require_raw(Relation table, const char *name, const RawColumn *columns, int count)
{
	if (table->rd_rel->relkind != RELKIND_RELATION || table->rd_rel->relam != HEAP_TABLE_AM_OID ||
		definition_children(table) != NIL || RelationGetNumberOfAttributes(table) != count)
		definition_refuse(name);
	for (int i = 0; i < count; i++)
	{
		if (!is_raw_column(TupleDescAttr(RelationGetDescr(table), i), &columns[i]))
			definition_refuse(name);
	}
}

/* Records of a table that does not inherit any more are not found: their operations would run again. */
pg_noreturn static void
refuse_member(Form_pg_class member, Oid owner, const char *why)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("table \"%s\" inherits from idempotency_store, and cannot keep operations", NameStr(member->relname)),
			 errdetail_internal("%s", why),
			 member->relowner != owner ?
			 errhint("Run ALTER TABLE ... OWNER TO, so that the store and its tables belong to one role.") :
			 errhint("If it has no records, run ALTER TABLE ... NO INHERIT for it.")));
}

/* Why the table of a ring cannot be trusted; NULL: it can. */
static const char *
fault_of_member(Form_pg_class member, Oid owner)
{
	if (member->relowner != owner)
		return "It belongs to another role than the store.";
	if (member->relkind != RELKIND_RELATION)
		return "It is not an ordinary table.";
	if (member->relhassubclass && find_inheritance_children(member->oid, NoLock) != NIL)
		return "Other tables inherit from it.";
	return NULL;
}

/*
 * Can the table, which inherits from the store, be one of the ring?  It is not
 * opened here.  false: it was dropped just now.
 */
bool
definition_require_member(Oid table, Oid owner)
{
	HeapTuple	row = SearchSysCache1(RELOID, ObjectIdGetDatum(table));
	FormData_pg_class member;
	const char *fault;

	if (!HeapTupleIsValid(row))
		return false;
	member = *(Form_pg_class) GETSTRUCT(row);
	ReleaseSysCache(row);
	definition_require_logged(NameStr(member.relname), member.relpersistence, LOSS_OF_STORE);
	fault = fault_of_member(&member, owner);
	if (fault != NULL)
		refuse_member(&member, owner, fault);
	return true;
}

static bool
is_key_column(Relation store, AttrNumber number, RecordColumn column)
{
	return number > 0 && record_is_column(TupleDescAttr(RelationGetDescr(store), number - 1), column);
}

/* Are these the two columns, in any order?  Others may be included. */
static bool
names_operations(Relation store, Form_pg_index form)
{
	AttrNumber	first = form->indkey.values[0];
	AttrNumber	second = form->indkey.values[1];

	return form->indnkeyatts == 2 &&
		((is_key_column(store, first, COLUMN_SCOPE) && is_key_column(store, second, COLUMN_IDEMPOTENCY_KEY)) ||
		 (is_key_column(store, first, COLUMN_IDEMPOTENCY_KEY) && is_key_column(store, second, COLUMN_SCOPE)));
}

/* Why an index cannot be the key of operations; NULL: it can. */
static const char *
fault_of_key(Relation store, Relation index)
{
	Form_pg_index form = index->rd_index;

	if (!names_operations(store, form))
		return "The primary key has other columns.";
	if (index->rd_rel->relam != BTREE_AM_OID || form->indisexclusion ||
		!form->indisunique || !form->indimmediate)
		return "The primary key does not check at once that rows are unique.";
	if (index->rd_indcollation[0] != C_COLLATION_OID || index->rd_indcollation[1] != C_COLLATION_OID)
		return "The columns of the primary key are not of COLLATE \"C\".";
	return NULL;
}

/*
 * The guarantees need one row per operation.  Only this function checks
 * whether the key of a store ensures that.
 */
static void
require_key(Relation store)
{
	Oid			key = primary_key_index(store);
	const char *fault = "The table has no valid primary key that is not deferrable.";

	if (OidIsValid(key))
	{
		Relation	index = index_open(key, AccessShareLock);

		fault = fault_of_key(store, index);
		index_close(index, AccessShareLock);
	}
	if (fault != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("primary key of table \"%s\" must be exactly (scope, idempotency_key)",
						RelationGetRelationName(store)),
				 errdetail_internal("%s", fault),
				 errhint("Make it PRIMARY KEY (scope, idempotency_key), not deferrable, on columns of COLLATE \"C\". Partition by HASH of these columns only.")));
}

/* Can the store, or a table of its ring, keep operations at all? */
void
definition_require_store(Relation store, Oid status_type)
{
	if (store->rd_rel->relkind != RELKIND_RELATION &&
		store->rd_rel->relkind != RELKIND_PARTITIONED_TABLE)
		definition_refuse("idempotency_store");
	definition_require_logged(RelationGetRelationName(store), store->rd_rel->relpersistence, LOSS_OF_STORE);
	if (!record_fits(RelationGetDescr(store), status_type))
		definition_refuse("a column of idempotency_store");
	require_key(store);
}

/* Further indexes could have expressions or predicates: the owner's code. */
static bool
has_only_its_key(Relation store)
{
	List	   *indexes = RelationGetIndexList(store);
	bool		alone = list_length(indexes) == 1 &&
		linitial_oid(indexes) == primary_key_index(store);

	list_free(indexes);
	return alone;
}

/*
 * The direct path looks up by the columns of the key in their order.  The key of a
 * shard has one more, which follows from the scope.
 */
static bool
key_is_as_made(Oid key, int columns)
{
	Relation	index = index_open(key, AccessShareLock);
	Form_pg_index form = index->rd_index;
	bool		as_made = form->indnkeyatts == columns && form->indnatts == columns &&
		form->indkey.values[0] == COLUMN_SCOPE + 1 &&
		form->indkey.values[1] == COLUMN_IDEMPOTENCY_KEY + 1 &&
		index->rd_indcollation[0] == C_COLLATION_OID &&
		index->rd_indcollation[1] == C_COLLATION_OID;

	index_close(index, AccessShareLock);
	return as_made;
}

/* Does the table have nothing that only the executor would do? */
static bool
has_no_code(Relation table)
{
	TupleConstr *constraints = RelationGetDescr(table)->constr;

	return !table->rd_rel->relrowsecurity &&
		table->trigdesc == NULL &&
		table->rd_rules == NULL &&
		(constraints == NULL || (constraints->num_check == 0 && !constraints->has_generated_stored));
}

/* Is it an ordinary table with such rows and such a key, and nothing else? */
static bool
is_ordinary(Relation table, Oid status_type, int key_columns)
{
	return table->rd_rel->relkind == RELKIND_RELATION &&
		has_no_code(table) &&
		record_matches(RelationGetDescr(table), status_type) &&
		has_only_its_key(table) &&
		key_is_as_made(primary_key_index(table), key_columns);
}

/*
 * Is it an ordinary table as the script made the store?  Then rows may be read and
 * inserted without the executor.  Whatever the owner has added (triggers, row
 * security, constraints, columns, indexes) needs SQL.
 */
bool
definition_is_plain(Relation table, Oid status_type)
{
	return !table->rd_rel->relispartition && is_ordinary(table, status_type, 2) &&
		record_further(RelationGetDescr(table)) == 0;
}

/*
 * A shard of a distributed store is as the script made the store, but for the
 * column of the tenants, which is the last one of the table and of the key.
 */
void
definition_require_shard(Oid shard, Oid status_type)
{
	Relation	table = table_open(shard, AccessShareLock);

	definition_require_logged(RelationGetRelationName(table), table->rd_rel->relpersistence, LOSS_OF_STORE);
	if (!is_ordinary(table, status_type, 3) || record_further(RelationGetDescr(table)) != 1)
		definition_refuse(RelationGetRelationName(table));
	table_close(table, AccessShareLock);
}
