/*
 * fence.c
 *		Where fences come from: the sequence idempotency_fence.
 *
 * A fence is greater than that of every earlier attempt of its operation, or
 * there is an error.  The sequence alone does not promise that: rows may have
 * been replicated or loaded without it, and its owner may alter it.  So a new
 * fence is compared with that of the row that it replaces.  If the sequence is
 * behind, it catches up; also before a row loses its fence.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_class.h"
#include "catalog/pg_sequence.h"
#include "commands/sequence.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "base/compat.h"
#include "schema/catalog.h"
#include "store/fence.h"

static FormData_pg_sequence
definition_of(Oid sequence)
{
	HeapTuple	tuple = SearchSysCache1(SEQRELID, ObjectIdGetDatum(sequence));
	FormData_pg_sequence definition;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for sequence %u", sequence);
	definition = *(Form_pg_sequence) GETSTRUCT(tuple);
	ReleaseSysCache(tuple);
	return definition;
}

/*
 * Is each number greater than all earlier ones, in all sessions, and after a
 * crash?
 */
static void
require_growing(Oid sequence)
{
	FormData_pg_sequence definition = definition_of(sequence);

	if (definition.seqcache != 1 || definition.seqincrement <= 0 ||
		definition.seqmin <= NO_FENCE || definition.seqcycle)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("sequence \"idempotency_fence\" has been changed"),
				 errdetail("With such a CACHE, INCREMENT, MINVALUE or CYCLE a fence could be smaller than an earlier one."),
				 errhint("Run ALTER SEQUENCE ... CACHE 1 INCREMENT 1 MINVALUE 1 NO CYCLE.")));
	if (get_rel_persistence(sequence) != RELPERSISTENCE_PERMANENT)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("sequence \"idempotency_fence\" is not logged"),
				 errdetail("A crash would set the sequence back."),
				 errhint("Run ALTER SEQUENCE ... SET LOGGED.")));
}

/* The greatest number that has been given out; others may be given out meanwhile. */
static int64
last_number(Relation sequence)
{
	SysScanDesc scan = systable_beginscan(sequence, InvalidOid, false, NULL, 0, NULL);
	HeapTuple	tuple = systable_getnext(scan);
	Form_pg_sequence_data data;
	int64		last;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "sequence %u is empty", RelationGetRelid(sequence));
	data = (Form_pg_sequence_data) GETSTRUCT(tuple);
	last = data->is_called ? data->last_value : Max(data->last_value, 1) - 1;
	systable_endscan(scan);
	return last;
}

/* Only the owner may set a sequence. None of the owner's code runs here. */
static void
set_as_owner(Relation sequence, int64 number)
{
	Oid			user;
	int			context;

	GetUserIdAndSecContext(&user, &context);
	SetUserIdAndSecContext(sequence->rd_rel->relowner, context | SECURITY_LOCAL_USERID_CHANGE);
	(void) DirectFunctionCall2(setval_oid, ObjectIdGetDatum(RelationGetRelid(sequence)),
							   Int64GetDatum(number));
	SetUserIdAndSecContext(user, context);
}

static void
require_room(Oid sequence, int64 fence)
{
	if (fence < definition_of(sequence).seqmax)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_SEQUENCE_GENERATOR_LIMIT_EXCEEDED),
			 errmsg("there is no fence greater than that of the last attempt"),
			 errhint("Sequence \"idempotency_fence\" is at its end, or the row has a fence that did not come from it. The owner of the extension can correct the sequence or the row.")));
}

/*
 * While the lock is held, no session draws or sets a number, so no number can
 * be given out twice.  The new position holds even after a rollback.
 */
static void
catch_up(Relation sequence, int64 fence)
{
	require_room(RelationGetRelid(sequence), fence);
	LockRelation(sequence, ShareRowExclusiveLock);
	if (last_number(sequence) < fence)
		set_as_owner(sequence, fence);
	UnlockRelation(sequence, ShareRowExclusiveLock);
}

/* From now on every new fence is greater than this one, whose row may go. */
void
fence_keep(int64 fence)
{
	Relation	sequence;

	if (fence == NO_FENCE)
		return;
	sequence = table_open(catalog_lock(TABLE_FENCE, AccessShareLock), NoLock);
	if (last_number(sequence) < fence)
		catch_up(sequence, fence);
	table_close(sequence, NoLock);
}

/*
 * The same for the collector, which waits for nobody: if another transaction
 * has drawn a fence and is still open, the sequence stays as it is.  So it does
 * where no greater fence is possible.
 */
void
fence_keep_if_free(int64 fence)
{
	Relation	sequence = table_open(catalog_lock(TABLE_FENCE, AccessShareLock), NoLock);

	if (fence < definition_of(RelationGetRelid(sequence)).seqmax &&
		ConditionalLockRelation(sequence, ShareRowExclusiveLock))
	{
		if (last_number(sequence) < fence)
			set_as_owner(sequence, fence);
		UnlockRelation(sequence, ShareRowExclusiveLock);
	}
	table_close(sequence, NoLock);
}

/* The greatest fence that the sequence knows. */
int64
fence_last(void)
{
	Relation	sequence = table_open(catalog_lock(TABLE_FENCE, AccessShareLock), NoLock);
	int64		last = last_number(sequence);

	table_close(sequence, NoLock);
	return last;
}

/*
 * A new fence, greater than the one given.  The sequence catches up before
 * this transaction has locked it: otherwise two transactions could wait for
 * each other.
 */
int64
fence_next(int64 after)
{
	Oid			sequence;
	int64		fence;

	fence_keep(after);
	sequence = catalog_lock(TABLE_FENCE, RowExclusiveLock);
	require_growing(sequence);
	fence = nextval_internal(sequence, false);
	if (fence <= after)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("sequence \"idempotency_fence\" was set back concurrently"),
				 errhint("Retry the transaction.")));
	return fence;
}
