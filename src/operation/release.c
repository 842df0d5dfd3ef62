/*
 * release.c
 *		The release of an operation, and idem_forget.
 *
 * A release undoes the begin and nothing else: if an earlier attempt may have
 * had effects in other systems, the next begin must still have taken_over = true.
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "operation/operation_internal.h"
#include "operation/operation_owner.h"
#include "schema/table_owner.h"
#include "seal/seal.h"
#include "shared/lock.h"
#include "shared/lost_attempts.h"
#include "shared/stats.h"
#include "store/fence.h"
#include "store/citus_fence.h"
#include "store/store.h"
#include "transaction/rollback.h"

/*
 * The row that the begin found, if any, stays as it is.  The lock of the begin
 * is released at once, unless a rollback could bring the operation back.
 */
static void
release_owned(const Handle *handle)
{
	OperationState	before = handle->state;
	OperationState	released = {.phase = PHASE_NONE,.wrote = before.wrote,.stored_at = NO_TIME};
	bool		at_once;

	released.level = GetCurrentTransactionNestLevel();
	at_once = before.level == released.level;
	released.locked = before.locked || !at_once;
	released.forgets = lost_attempts_of(handle->id) > 0;
	journal_set(handle->id, handle->name, released);
	rollback_note_release(handle->id);
	if (at_once)
		lock_release(&handle->lock);
}

/*
 * The release of a later attempt leaves the record of its predecessor:
 * PENDING, with its lease over, with the last note of progress, and with a new
 * fence that no caller knows.
 */
static void
leave_earlier_attempt(const Handle *handle, Record *record)
{
	TimestampTz expected = record->updated_at;

	seal_keep(record);
	record->attempt--;
	record->fence = citus_fence_next(handle->catalog, handle->name->scope, record->fence);
	record->updated_at = GetCurrentTimestamp();
	set_lease(handle, record, 0);
	store_put(handle->catalog, record, expected);
}

static bool
release_leased(const Handle *handle, int64 fence)
{
	OperationState	released = {.phase = PHASE_NONE,.wrote = true,.wakes = true,.forgets = true,.stored_at = NO_TIME};
	Record		record;

	if (!operation_owner_find(handle, fence, &record))
		return false;
	if (record.attempt > 1)
		leave_earlier_attempt(handle, &record);
	else
	{
		fence_keep(fence);
		store_delete(handle->catalog, handle->name, record.updated_at);
	}
	ForceSyncCommit();
	released.level = GetCurrentTransactionNestLevel();
	journal_set(handle->id, handle->name, released);
	rollback_note_release(handle->id);
	return true;
}

/* Undo a begin; false if the attempt is not current. */
bool
operation_release(const OperationName *name, int64 fence)
{
	Handle		handle;

	handle_open(&handle, name, RowExclusiveLock);
	if (fence == NO_FENCE)
		fence = operation_owner_fence(&handle);
	if (fence == NO_FENCE)
		release_owned(&handle);
	else if (!release_leased(&handle, fence))
		return false;
	stats_count(COUNT_RELEASED);
	return true;
}

static void
in_use(const Handle *handle, const char *by_whom)
{
	ereport(ERROR,
			(errcode(ERRCODE_IDEM_LEASE_LOST),
			 errmsg("operation \"%s\" of scope \"%s\" is in use",
					text_to_cstring(handle->name->key), text_to_cstring(handle->name->scope)),
			 errdetail_internal("%s", by_whom),
			 errhint("Call idem_forget again when the operation has no owner.")));
}

/* Takes the lock of an operation that nobody owns; false where it has no record. */
static bool
find_unowned(const Handle *handle, Record *found)
{
	if (handle->state.phase != PHASE_NONE)
		in_use(handle, "This transaction has begun or ended the operation.");
	handle_reserve(handle);
	if (!lock_acquire_now(&handle->lock))
		in_use(handle, "Another transaction owns the operation.");
	if (!store_find(handle->catalog, handle->name, found))
	{
		lock_release(&handle->lock);
		return false;
	}
	if (found->status == STATUS_PENDING && found->lease_expires_at > GetCurrentTimestamp())
		in_use(handle, psprintf("Its lease runs until %s.", timestamptz_to_str(found->lease_expires_at)));
	return true;
}

/*
 * Remove the record of an operation that nobody owns, so that it may run
 * again.  False where there is none: one that has expired counts as absent,
 * and is removed all the same.
 */
bool
operation_forget(const OperationName *name)
{
	OperationState	forgotten = {.phase = PHASE_NONE,.wrote = true,.forgets = true,.stored_at = NO_TIME};
	Handle		handle;
	Record		record;
	Caller		caller;
	bool		exists;

	handle_open(&handle, name, RowExclusiveLock);
	/* an operator calls this: the owner's code must not run with the operator's rights */
	caller = table_owner_enter_call(handle.catalog->store_owner);
	exists = find_unowned(&handle, &record);
	if (exists)
	{
		fence_keep(record.fence);
		store_delete(handle.catalog, name, record.updated_at);
	}
	table_owner_leave(&caller);
	if (!exists)
	{
		/* no record, but maybe attempts: there is nothing that a rollback would bring back */
		lost_attempts_forget(handle.id);
		return false;
	}
	ForceSyncCommit();
	forgotten.level = GetCurrentTransactionNestLevel();
	journal_set(handle.id, name, forgotten);
	stats_count(COUNT_FORGOTTEN);
	return !is_absent(&record, GetCurrentTimestamp());
}
