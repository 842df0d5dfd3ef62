/*
 * rotation.c
 *		Rotates the ring of tables: collection empties a table when all that is in it
 *		has expired, and gives it the next range.
 *
 * The content of a table decides, not its range, nor the clock alone: rows may be
 * where they do not belong.  They are read while no writer has the table, and it is
 * emptied under the same locks.  TRUNCATE takes no longer for a million rows than for
 * one.  It gives the table another file, and so all sessions hear of the new range
 * before they write to it; that is why an empty table is truncated, too.
 *
 * Whatever needs a lock that is not free is left for the next time: nobody may
 * wait long because of collection.
 */
#include "postgres.h"

#include "access/table.h"
#include "catalog/catalog.h"
#include "catalog/dependency.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "commands/tablecmds.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "base/fault.h"
#include "base/subtransaction.h"
#include "collector/rotation.h"
#include "schema/catalog.h"
#include "schema/store_tables.h"
#include "store/bulk.h"
#include "store/fence.h"
#include "store/statement.h"

/* how long others wait behind collection at most, in ms; NOWAIT would fail while a writer queues */
#define PATIENCE "10"

/* a table that may be due */
typedef struct Rotation
{
	const Catalog *catalog;
	char		name[NAMEDATALEN];
	Oid			table;
	Oid			long_values;	/* its TOAST table */
	bool		has_range;
	bool		is_leaving;		/* no range will follow */
	bool		is_over;		/* false: it is rotated only if it is empty */
	TimestampTz cutoff;			/* a record that expires later keeps the table */

	/* what became of it */
	bool		is_done;
	int64		removed;
	TimestampTz kept_until;		/* 0: nothing keeps it */
} Rotation;

/* ---- the rows of idempotency_ring ---- */

/* Only the ring is qualified: these texts are parsed with pg_catalog as search_path. */
#define ON_RING .table = TABLE_RING,.in_pg_catalog = true

static void
change_ring(const Catalog *catalog, Statement *statement, Datum *values)
{
	(void) statement_run(statement, catalog, values, NULL, InvalidSnapshot);
	statement_finish();
}

/*
 * Notes which transactions hold the store.  A table without a range waits for them
 * before it gets one, or is dropped: they may not know the table, or still write to it.
 */
static Statement wait_for_others = {
	"UPDATE %1$s.idempotency_ring SET waits_for = ARRAY("
	"SELECT DISTINCT l.virtualtransaction FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_database d ON d.oid = l.database"
	" WHERE l.locktype = 'relation' AND l.relation = $1 AND d.datname = pg_catalog.current_database()"
	" AND l.pid IS DISTINCT FROM pg_catalog.pg_backend_pid()"
	" AND (waits_for IS NULL OR l.virtualtransaction = ANY (waits_for)))"
	" WHERE range_start IS NULL AND waits_for IS DISTINCT FROM '{}'",
	1, {OIDOID}, ON_RING
};

/*
 * The ring with what is known of all its tables.  Ranges that follow one another end
 * before the horizon; one that starts at twice the distance was given while the clock
 * was wrong.
 */
#define RING \
	"(SELECT *, least(period / 2, interval '5 minutes') AS margin, pg_catalog.clock_timestamp() AS at," \
	" count(*) OVER () * greatest(max(period) OVER (), max(range_end - range_start) OVER ()) AS horizon" \
	" FROM %1$s.idempotency_ring) r"

static Statement find_due = {
	"SELECT name, range_start IS NOT NULL, leaving, at - margin, coalesce(greatest(range_end, kept_until) <= at - margin, true)"
	" FROM " RING
	" WHERE (leaving OR (kept_until > at - margin) IS NOT TRUE) AND CASE WHEN range_start IS NULL THEN waits_for = '{}'"
	" ELSE range_end <= at - margin OR leaving OR range_start > at + 2 * horizon END"
	" ORDER BY range_end, name",
	ON_RING
};

static Statement give_next_range = {
	"UPDATE %1$s.idempotency_ring own SET (range_start, range_end) = (SELECT start, start + own.period FROM ("
	"SELECT greatest(max(range_end) FILTER (WHERE range_start <= at + horizon), pg_catalog.clock_timestamp()) AS start"
	" FROM " RING ") next WHERE NOT own.leaving),"
	" kept_until = NULL, waits_for = NULL WHERE name = $1",
	1, {NAMEOID}, ON_RING
};

static Statement keep_until = {
	"UPDATE %1$s.idempotency_ring SET kept_until = least($2, pg_catalog.clock_timestamp() + period) WHERE name = $1",
	2, {NAMEOID, TIMESTAMPTZOID}, ON_RING
};

static Statement forget_table = {
	"DELETE FROM %1$s.idempotency_ring WHERE name = $1",
	1, {NAMEOID}, ON_RING
};

static Statement set_use = {
	"UPDATE %1$s.idempotency_ring SET in_use = $1 WHERE in_use <> $1",
	1, {BOOLOID}, ON_RING
};

static void
change_row(const Rotation *rotation, Statement *statement)
{
	Datum		values[2] = {CStringGetDatum(rotation->name), TimestampTzGetDatum(rotation->kept_until)};

	change_ring(rotation->catalog, statement, values);
}

static Datum
column(int row, int number)
{
	bool		is_null;

	return statement_column(row, number, &is_null);
}

/* The table of that name, which inherits from the store. */
static Oid
member_named(const Catalog *catalog, const char *name)
{
	for (int i = 0; i < store_tables_count(); i++)
	{
		Oid			table = store_tables_get(i)->oid;
		char	   *found = table != catalog->tables[TABLE_STORE] ? get_rel_name(table) : NULL;

		if (found != NULL && strcmp(found, name) == 0)
			return table;
	}
	return InvalidOid;
}

static List *
rotations_due(const Catalog *catalog)
{
	MemoryContext context = CurrentMemoryContext;
	List	   *due = NIL;
	uint64		count = statement_run(&find_due, catalog, NULL, NULL, InvalidSnapshot);

	for (uint64 i = 0; i < count; i++)
	{
		Rotation   *rotation = MemoryContextAllocZero(context, sizeof(Rotation));
		MemoryContext inner = MemoryContextSwitchTo(context);

		rotation->catalog = catalog;
		strlcpy(rotation->name, NameStr(*DatumGetName(column(i, 1))), NAMEDATALEN);
		rotation->has_range = DatumGetBool(column(i, 2));
		rotation->is_leaving = DatumGetBool(column(i, 3));
		rotation->cutoff = DatumGetTimestampTz(column(i, 4));
		rotation->is_over = DatumGetBool(column(i, 5));
		rotation->table = member_named(catalog, rotation->name);
		due = lappend(due, rotation);
		MemoryContextSwitchTo(inner);
	}
	statement_finish();
	return due;
}

/* ---- one table ---- */

/* Has the sequence reached the fence?  If it is free, it catches up. */
static bool
is_kept(int64 fence)
{
	if (fence > fence_last())
		fence_keep_if_free(fence);
	return fence <= fence_last();
}

static bool
has_pages(Oid table)
{
	Relation	opened = table_open(table, AccessShareLock);
	bool		has = RelationGetNumberOfBlocks(opened) > 0;

	table_close(opened, AccessShareLock);
	return has;
}

/*
 * Keeps writers out, and lets readers in.  false: a reader has the table, and TRUNCATE
 * would have to wait for it; or autovacuum works on its TOAST table.
 */
static bool
lock_out_writers(const Rotation *rotation)
{
	if (!ConditionalLockRelationOid(rotation->table, AccessExclusiveLock))
		return false;
	UnlockRelationOid(rotation->table, AccessExclusiveLock);
	if (!ConditionalLockRelationOid(rotation->table, ShareLock))
		return false;
	if (!OidIsValid(rotation->long_values) || ConditionalLockRelationOid(rotation->long_values, ShareLock))
		return true;
	UnlockRelationOid(rotation->table, ShareLock);
	return false;
}

static void
let_writers_in(const Rotation *rotation)
{
	UnlockRelationOid(rotation->table, ShareLock);
	if (OidIsValid(rotation->long_values))
		UnlockRelationOid(rotation->long_values, ShareLock);
}

/*
 * By the OID: between a name and the command that resolves it again, the owner of the schema
 * could give the name to a table of his own.
 */
static void
empty_table(Oid table)
{
	Relation	opened = table_open(table, NoLock);
	List	   *oids = list_make1_oid(table);

	CheckTableNotInUse(opened, "TRUNCATE");
	execute_truncate(list_make1(opened), oids, RelationIsLogicallyLogged(opened) ? oids : NIL);
	table_close(opened, NoLock);
}

static void
drop_table(Oid table)
{
	ObjectAddress address;

	ObjectAddressSet(address, RelationRelationId, table);
	performDeletion(&address, DROP_RESTRICT, 0);
}

/* Called while writers are locked out and no record of the table is needed. */
static void
empty_or_drop(Rotation *rotation)
{
	LockRelationOid(rotation->table, AccessExclusiveLock);
	if (OidIsValid(rotation->long_values))
		LockRelationOid(rotation->long_values, AccessExclusiveLock);
	if (rotation->is_leaving && !rotation->has_range)
	{
		drop_table(rotation->table);
		change_row(rotation, &forget_table);
	}
	else
	{
		empty_table(rotation->table);
		change_row(rotation, &give_next_range);
	}
	rotation->is_done = true;
}

static void
try_rotation(void *argument)
{
	Rotation   *rotation = argument;
	Content		content;

	if ((!rotation->is_over && has_pages(rotation->table)) || !lock_out_writers(rotation))
		return;
	content = bulk_content(rotation->catalog, rotation->table);
	FAULT_POINT("ring-read");
	if (content.needed_until > rotation->cutoff)
		rotation->kept_until = content.needed_until;
	if (rotation->kept_until != 0 || !is_kept(content.fence))
	{
		let_writers_in(rotation);
		return;
	}
	empty_or_drop(rotation);
	rotation->removed = content.rows;
}

/*
 * True for an error that a change of the ring by its owner can cause, or a full disk, as an
 * empty file needs pages: collection goes on.
 */
static bool
is_about_ring(int sqlstate)
{
	return sqlstate == ERRCODE_DISK_FULL ||
		(ERRCODE_TO_CATEGORY(sqlstate) != ERRCODE_OPERATOR_INTERVENTION &&
		 ERRCODE_TO_CATEGORY(sqlstate) != ERRCODE_INSUFFICIENT_RESOURCES);
}

/*
 * Runs the function in a subtransaction, and returns whether it succeeded.  An error
 * undoes it and gives a warning; a busy lock gives none.  The warning has no detail, as
 * that may have values of rows in it.
 */
static bool
try_to(void (*run) (void *), void *argument)
{
	Subtransaction work = {run, is_about_ring, argument};
	ErrorData  *error;

	if (subtransaction_run(&work, &error))
		return true;
	if (error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
		ereport(WARNING,
				(errcode(error->sqlerrcode),
				 errmsg("could not rotate the ring of the store: %s", error->message),
				 errhint("Collection goes on without it, and tries again the next time.")));
	return false;
}

static void
keep_table(Rotation *rotation)
{
	ereport(WARNING,
			(errmsg("table \"%s\" of the store has records that expire after its range", rotation->name),
			 errdetail("The last one expires at %s. The table is emptied after that.",
					   timestamptz_to_str(rotation->kept_until)),
			 errhint("Somebody has changed or loaded records. View idempotency_partitions shows when the table is looked at again.")));
	change_row(rotation, &keep_until);
}

static void
rotate_table(Rotation *rotation)
{
	Relation	table = table_open(rotation->table, AccessShareLock);

	rotation->long_values = table->rd_rel->reltoastrelid;
	table_close(table, AccessShareLock);
	if (!try_to(try_rotation, rotation))
	{
		rotation->is_done = false;
		rotation->removed = 0;
	}
	else if (rotation->kept_until != 0)
		keep_table(rotation);
}

/* ---- all of them ---- */

/* Records whether the ring gets new records.  It gets none while a table of the store needs SQL. */
static void
record_use(const Catalog *catalog)
{
	Datum		values[1] = {BoolGetDatum(catalog->store_plain)};
	uint64		changed = statement_run(&set_use, catalog, values, NULL, InvalidSnapshot);

	statement_finish();
	if (changed > 0 && !catalog->store_plain)
		ereport(WARNING,
				(errmsg("the ring of the store is not used for new records"),
				 errdetail("The store, or a table of its ring, has a trigger, a rule, row security, or a further column, check, NOT NULL or index. New records go to the store itself."),
				 errhint("Remove it, or call idem_unpartition_store().")));
}

typedef struct Round
{
	const Catalog *catalog;
	int			max_rotations;
	int			rotated;
	int64		removed;
} Round;

/* A table with rows is the last one, as its locks are held until COMMIT. */
static void
rotate_tables(void *argument)
{
	Round	   *round = argument;
	Datum		values[1] = {ObjectIdGetDatum(round->catalog->tables[TABLE_STORE])};
	ListCell   *cell;

	record_use(round->catalog);
	change_ring(round->catalog, &wait_for_others, values);
	foreach(cell, rotations_due(round->catalog))
	{
		Rotation   *rotation = lfirst(cell);

		if (round->rotated >= round->max_rotations || round->removed > 0)
			return;
		if (OidIsValid(rotation->table) &&
			OidIsValid(store_table_subscription(rotation->table, round->catalog->store_owner)))
			continue;			/* the publisher empties it */
		if (OidIsValid(rotation->table))
			rotate_table(rotation);
		else if (rotation->is_leaving)
			change_row(rotation, &forget_table);
		round->rotated += rotation->is_done;
		round->removed += rotation->removed;
	}
}

/*
 * Rotates up to max_rotations tables and returns the number of removed rows.  Called
 * as the owner of the store, in a transaction that is for collection alone.
 */
int64
rotate_ring(const Catalog *catalog, int max_rotations, int *rotated)
{
	Round		round = {.catalog = catalog,.max_rotations = max_rotations};
	int			nest_level = NewGUCNestLevel();

	/* version 1.0 of the extension has no ring */
	if (OidIsValid(catalog->tables[TABLE_RING]))
	{
		(void) set_config_option("lock_timeout", PATIENCE, PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_SAVE, true, 0, false);
		if (!try_to(rotate_tables, &round))
			round.rotated = round.removed = 0;
	}
	AtEOXact_GUC(true, nest_level);
	*rotated += round.rotated;
	return round.removed;
}
