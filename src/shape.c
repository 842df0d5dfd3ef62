/*
 * shape.c
 *		What the extension's tables have to look like: the store, so that it
 *		can keep operations at all, and so that the direct path may read and
 *		write it.
 */
#include "postgres.h"

#include "access/genam.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_inherits.h"

#include "compat.h"
#include "idempotency.h"
#include "record.h"
#include "shape.h"

/* An object of the extension is missing, or not as the script made it. */
void
shape_refuse(const char *what)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("%s of extension \"%s\" is missing or has been changed", what, EXTENSION_NAME),
			 errhint("Restore what was changed, or drop the extension and create it again.")));
}

void
shape_require_logged(const char *table, char persistence, const char *loss)
{
	if (persistence != RELPERSISTENCE_PERMANENT)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("\"%s\" is not logged", table),
				 errdetail("A crash would empty it, and %s.", loss),
				 errhint("Run ALTER TABLE ... SET LOGGED.")));
}

/*
 * Statements by SQL see rows of children, the direct path does not.  The flag
 * alone is not enough: it stays set for a while after the last child was dropped.
 */
static bool
has_children(Relation table)
{
	return table->rd_rel->relkind == RELKIND_RELATION && table->rd_rel->relhassubclass &&
		find_inheritance_children(RelationGetRelid(table), NoLock) != NIL;
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
shape_require_raw(Relation table, const char *name, const RawColumn *columns, int count)
{
	if (table->rd_rel->relkind != RELKIND_RELATION || table->rd_rel->relam != HEAP_TABLE_AM_OID ||
		has_children(table) || RelationGetNumberOfAttributes(table) != count)
		shape_refuse(name);
	for (int i = 0; i < count; i++)
	{
		if (!is_raw_column(TupleDescAttr(RelationGetDescr(table), i), &columns[i]))
			shape_refuse(name);
	}
}

/* The key of the store does not cover the rows of children. */
static void
require_childless(Relation store)
{
	if (has_children(store))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"idempotency_store\" has tables that inherit from it"),
				 errdetail("The primary key of the store does not hold for rows of these tables, so operations could run twice."),
				 errhint("Run ALTER TABLE ... NO INHERIT for each of them.")));
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
				 errmsg("primary key of table \"idempotency_store\" must be exactly (scope, idempotency_key)"),
				 errdetail_internal("%s", fault),
				 errhint("Make it PRIMARY KEY (scope, idempotency_key), not deferrable, on columns of COLLATE \"C\". Partition by HASH of these columns only.")));
}

/* Can the table keep operations at all? */
void
shape_require_store(Relation store, Oid status_type)
{
	if (store->rd_rel->relkind != RELKIND_RELATION &&
		store->rd_rel->relkind != RELKIND_PARTITIONED_TABLE)
		shape_refuse("idempotency_store");
	shape_require_logged("idempotency_store", store->rd_rel->relpersistence, LOSS_OF_STORE);
	if (!record_fits(RelationGetDescr(store), status_type))
		shape_refuse("a column of idempotency_store");
	require_childless(store);
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
bool
shape_is_plain(Relation store, Oid status_type)
{
	TupleConstr *constraints = RelationGetDescr(store)->constr;

	return store->rd_rel->relkind == RELKIND_RELATION &&
		!store->rd_rel->relispartition &&
		store->trigdesc == NULL &&
		!store->rd_rel->relrowsecurity &&
		store->rd_rules == NULL &&
		(constraints == NULL || (constraints->num_check == 0 && !constraints->has_generated_stored)) &&
		record_matches(RelationGetDescr(store), status_type) &&
		has_only_its_key(store) &&
		key_is_as_made(primary_key_index(store));
}
