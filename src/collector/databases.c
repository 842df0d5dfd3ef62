/*
 * databases.c
 *		Which databases there are, and which the collector is to visit.
 *
 * The launcher remembers failures of a database until it is dropped.
 * Functions here allocate in the caller's memory context and free nothing.
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "lib/stringinfo.h"
#include "storage/lock.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"
#include "utils/varlena.h"

#include "base/compat.h"
#include "base/settings.h"
#include "collector/databases.h"

static List *databases = NIL;	/* of Database */

static bool
every_database_is_wanted(void)
{
	return strcmp(setting_gc_databases, "*") == 0;
}

/* The names in idempotency.gc_databases; they point into list. */
static List *
wanted_names(char *list)
{
	List	   *names = NIL;

	(void) SplitIdentifierString(list, ',', &names);
	return names;
}

bool
database_is_wanted(const Database *database)
{
	char	   *list = pstrdup(setting_gc_databases);
	ListCell   *cell;
	bool		wanted = every_database_is_wanted();

	if (!wanted)
	{
		foreach(cell, wanted_names(list))
			wanted = wanted || strcmp((char *) lfirst(cell), database->name) == 0;
	}
	return wanted;
}

static Database *
find_database(Oid oid)
{
	ListCell   *cell;

	foreach(cell, databases)
	{
		Database   *database = lfirst(cell);

		if (database->oid == oid)
			return database;
	}
	return NULL;
}

static void
note_database(Form_pg_database form, MemoryContext context)
{
	Database   *database = find_database(form->oid);
	MemoryContext caller;

	if (database == NULL)
	{
		caller = MemoryContextSwitchTo(context);
		database = palloc0(sizeof(Database));
		database->oid = form->oid;
		databases = lappend(databases, database);
		MemoryContextSwitchTo(caller);
	}
	strlcpy(database->name, NameStr(form->datname), NAMEDATALEN);
	database->present = true;
	database->may_visit = form->datallowconn && !form->datistemplate &&
		form->datconnlimit != DATCONNLIMIT_INVALID_DB;
}

static void
note_databases(MemoryContext context)
{
	Relation	catalog;
	TableScanDesc scan;
	HeapTuple	tuple;

	StartTransactionCommand();
	(void) GetTransactionSnapshot();
	catalog = table_open(DatabaseRelationId, AccessShareLock);
	scan = table_beginscan_catalog(catalog, 0, NULL);
	while (HeapTupleIsValid(tuple = heap_getnext(scan, ForwardScanDirection)))
		note_database((Form_pg_database) GETSTRUCT(tuple), context);
	table_endscan(scan);
	table_close(catalog, AccessShareLock);
	CommitTransactionCommand();
}

/*
 * Brings the list in the context up to date: adds new databases, and forgets
 * those that are gone.
 */
List *
databases_read(MemoryContext context)
{
	ListCell   *cell;

	foreach(cell, databases)
		((Database *) lfirst(cell))->present = false;
	note_databases(context);
	foreach(cell, databases)
	{
		Database   *database = lfirst(cell);

		if (!database->present)
		{
			databases = foreach_delete_current(databases, cell);
			pfree(database);
		}
	}
	return databases;
}

/* Does another session drop, rename, move or copy it?  Each has a lock on it meanwhile. */
bool
database_is_locked(Oid oid)
{
	LOCKTAG		tag;
	int			holders = 0;

	SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, oid, 0);
	(void) GetLockConflicts(&tag, RowExclusiveLock, &holders);
	return holders > 0;
}

bool
database_exists(Oid oid)
{
	return find_database(oid) != NULL;
}

static bool
name_exists(const char *name)
{
	ListCell   *cell;

	foreach(cell, databases)
	{
		if (strcmp(((Database *) lfirst(cell))->name, name) == 0)
			return true;
	}
	return false;
}

/*
 * Reports names that no database has: a spelling mistake would leave a
 * database without collection.
 */
void
databases_warn_of_unknown_names(void)
{
	char	   *list = pstrdup(setting_gc_databases);
	StringInfoData unknown;
	ListCell   *cell;

	if (every_database_is_wanted())
		return;
	initStringInfo(&unknown);
	foreach(cell, wanted_names(list))
	{
		if (!name_exists(lfirst(cell)))
			appendStringInfo(&unknown, "%s\"%s\"", unknown.len > 0 ? ", " : "", (char *) lfirst(cell));
	}
	if (unknown.len > 0)
		ereport(WARNING,
				(errcode(ERRCODE_UNDEFINED_DATABASE),
				 errmsg("\"idempotency.gc_databases\" names databases that do not exist: %s", unknown.data),
				 errhint("Names are folded to lower case unless they are in double quotes.")));
}
