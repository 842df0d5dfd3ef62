/*
 * membership.c
 *		Internal SQL functions: which tables belong to the extension.
 *
 * ALTER EXTENSION ... ADD and DROP are for the extension's owner, who may be somebody
 * else than the store's; and nothing but a script of the extension can have pg_dump
 * save the rows of a table.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "catalog/pg_extension.h"
#include "commands/extension.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/parsenodes.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"

#include "base/compat.h"
#include "base/idempotency.h"
#include "functions/arguments.h"
#include "schema/catalog.h"

SQL_FUNCTION(idem_adopt_partition);
SQL_FUNCTION(idem_disown_partition);

static Oid
owner_of(Oid table)
{
	Relation	opened = table_open(table, AccessShareLock);
	Oid			owner = opened->rd_rel->relowner;

	table_close(opened, NoLock);
	return owner;
}

/* The table that is given, of the owner of the store. */
static Oid
table_argument(FunctionCallInfo fcinfo)
{
	const Catalog *catalog = catalog_open(AccessShareLock);
	Oid			table;

	require_argument(fcinfo, 0, "part");
	table = PG_GETARG_OID(0);
	if (!has_privs_of_role(GetUserId(), catalog->store_owner) ||
		!has_privs_of_role(GetUserId(), owner_of(table)))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be owner of table idempotency_store and of its partitions")));
	if (get_rel_namespace(table) != get_rel_namespace(catalog->tables[TABLE_STORE]))
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_BAD_ARGUMENT),
				 errmsg("partitions of the store are in its schema")));
	return table;
}

/*
 * ALTER EXTENSION ... ADD TABLE or DROP TABLE, as a superuser.  Since 17 it is for the
 * table's row type, too.  DROP takes the table off the list of those to be dumped.
 */
static void
alter_extension(int action, Oid table)
{
	AlterExtensionContentsStmt *statement = makeNode(AlterExtensionContentsStmt);
	Oid			user;
	int			context;

	statement->extname = EXTENSION_NAME;
	statement->action = action;
	statement->objtype = OBJECT_TABLE;
	statement->object = (Node *) list_make2(makeString(get_namespace_name(get_rel_namespace(table))),
											makeString(get_rel_name(table)));
	GetUserIdAndSecContext(&user, &context);
	/* an error restores it as well */
	SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID, context | SECURITY_LOCAL_USERID_CHANGE);
	(void) ExecAlterExtensionContentsStmt(statement, NULL);
	SetUserIdAndSecContext(user, context);
}

static void
have_rows_dumped(Oid table)
{
	CommandCounterIncrement();
	creating_extension = true;
	CurrentExtensionObject = get_extension_oid(EXTENSION_NAME, false);
	PG_TRY();
	{
		(void) DirectFunctionCall2(pg_extension_config_dump, ObjectIdGetDatum(table),
								   PointerGetDatum(cstring_to_text("")));
	}
	PG_FINALLY();
	{
		creating_extension = false;
		CurrentExtensionObject = InvalidOid;
	}
	PG_END_TRY();
}

static bool
is_adopted(Oid table)
{
	return OidIsValid(getExtensionOfObject(RelationRelationId, table));
}

/*
 * idem_adopt_partition(part): it belongs to the extension from now on, as if
 * its script had made it, and pg_dump saves its rows.
 */
Datum
idem_adopt_partition(PG_FUNCTION_ARGS)
{
	Oid			table = table_argument(fcinfo);

	if (!is_adopted(table))
		alter_extension(1, table);
	have_rows_dumped(table);
	PG_RETURN_VOID();
}

/* idem_disown_partition(part): so that it can be dropped alone. */
Datum
idem_disown_partition(PG_FUNCTION_ARGS)
{
	Oid			table = table_argument(fcinfo);

	if (is_adopted(table))
		alter_extension(-1, table);
	PG_RETURN_VOID();
}
