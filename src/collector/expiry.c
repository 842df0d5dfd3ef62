/*
 * expiry.c
 *		The care for a store that is partitioned by expiry: collection empties
 *		the partitions that are over, and has new ones made ahead of time.
 *
 * The rows of a partition that is over count as absent, so no session reads or
 * locks it any more.  TRUNCATE takes no longer for a million rows than for one.
 * Whatever needs a lock that is not free is left for the next time: nobody may
 * wait because of collection, and so collection does not wait either.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xact.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "base/subtransaction.h"
#include "collector/expiry.h"
#include "schema/catalog.h"
#include "schema/parts.h"
#include "store/bulk.h"
#include "store/fence.h"
#include "store/statement.h"

#define TEND_FUNCTION "idem_tend_partitions"

/* Has the sequence reached the fence?  If it is free, it catches up. */
static bool
is_kept(int64 fence)
{
	if (fence > fence_last())
		fence_keep_if_free(fence);
	return fence <= fence_last();
}

/* what the care for the partitions needs, and what it has done */
typedef struct Care
{
	const Catalog *catalog;
	Oid			part;			/* to be emptied */
	int64		removed;
} Care;

static bool
is_empty(Oid part)
{
	Relation	table = table_open(part, AccessShareLock);
	bool		empty = RelationGetNumberOfBlocks(table) == 0;

	table_close(table, AccessShareLock);
	return empty;
}

/*
 * Locks what TRUNCATE locks.  Autovacuum may be at the long values alone, so they
 * come first: whoever has the part makes others wait.
 */
static bool
lock_if_free(Oid part)
{
	Relation	table = table_open(part, AccessShareLock);
	Oid			long_values = table->rd_rel->reltoastrelid;

	table_close(table, AccessShareLock);
	return (!OidIsValid(long_values) || ConditionalLockRelationOid(long_values, AccessExclusiveLock)) &&
		ConditionalLockRelationOid(part, AccessExclusiveLock);
}

/* Empties a partition that is over; returns how many rows it had. */
static int64
empty_part(const Catalog *catalog, Oid part, TimestampTz now)
{
	Content		content;

	/* if we waited here, for VACUUM FULL say, others would wait for us */
	if (!ConditionalLockRelationOid(part, RowExclusiveLock) || is_empty(part))
		return 0;
	content = bulk_content(catalog, part, now);
	if (content.is_leased || !is_kept(content.fence) || !lock_if_free(part))
		return 0;
	statement_command(psprintf("TRUNCATE ONLY %s",
						 quote_qualified_identifier(get_namespace_name(get_rel_namespace(part)),
													get_rel_name(part))));
	return content.rows;
}

/* The partitions that are over, as the list of parts may change meanwhile. */
static List *
parts_over(TimestampTz now)
{
	List	   *over = NIL;

	for (int i = 0; i < parts_count(); i++)
	{
		const Part *part = parts_get(i);

		if (!part->takes_rest && part_is_over(part, now))
			over = lappend_oid(over, part->table);
	}
	return over;
}

/* Makes the partitions of the time to come, and drops what nobody needs. */
static void
make_ahead(void *argument)
{
	const char *schema = ((Care *) argument)->catalog->schema;

	/* version 1.0 of the extension has no such function */
	if (OidIsValid(catalog_find_function(schema, TEND_FUNCTION, 0, NULL)))
		statement_command(psprintf("SELECT %s()", quote_qualified_identifier(schema, TEND_FUNCTION)));
}

static void
empty_one(void *argument)
{
	Care	   *care = argument;

	care->removed = empty_part(care->catalog, care->part, GetCurrentTimestamp());
}

/* Is it an error of the partitions, as their owner may have changed them? */
static bool
is_about_parts(int sqlstate)
{
	return ERRCODE_TO_CATEGORY(sqlstate) != ERRCODE_OPERATOR_INTERVENTION &&
		ERRCODE_TO_CATEGORY(sqlstate) != ERRCODE_INSUFFICIENT_RESOURCES;
}

/*
 * Returns how many rows are gone.  If it fails, none, and the rest of collection
 * goes on; that a lock is not free is no trouble.  The error's detail may have
 * values of rows in it, so it is not shown.
 */
static int64
try_to(void (*run) (void *), const Catalog *catalog, Oid part)
{
	Care		care = {catalog, part, 0};
	Subtransaction work = {run, is_about_parts, &care};
	ErrorData  *error;

	if (subtransaction_run(&work, &error))
		return care.removed;
	if (error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
		ereport(WARNING,
				(errcode(error->sqlerrcode),
				 errmsg("could not care for the partitions of the store: %s", error->message),
				 errhint("Collection goes on without it, and tries again the next time.")));
	return 0;
}

/*
 * Called as the owner of the store; empties so many partitions that have rows, and
 * returns how many rows are gone.  A transaction with an old snapshot empties none:
 * TRUNCATE would take rows, too, that it does not see.
 */
int64
expiry_tend(const Catalog *catalog, int max_parts)
{
	List	   *over = IsolationUsesXactSnapshot() ? NIL : parts_over(GetCurrentTimestamp());
	int64		removed = 0;
	ListCell   *cell;

	foreach(cell, over)
	{
		int64		rows = max_parts > 0 ? try_to(empty_one, catalog, lfirst_oid(cell)) : 0;

		removed += rows;
		max_parts -= rows > 0;
	}
	(void) try_to(make_ahead, catalog, InvalidOid);
	return removed;
}
