/*
 * release.c
 *		The release of an operation, idem_forget and idem_forget_failed.
 *
 * A release undoes the begin and nothing else: if an earlier attempt may have
 * had effects in other systems, the next begin must still have taken_over = true.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "operation/operation_internal.h"
#include "operation/operation_owner.h"
#include "schema/table_owner.h"
#include "seal/seal.h"
#include "shared/advisory_lock.h"
#include "shared/lost_attempts.h"
#include "shared/stats.h"
#include "store/citus_fence.h"
#include "store/failed_operations.h"
#include "store/fence.h"
#include "store/store.h"
#include "store/store_kind.h"
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

/* Removes a record under the operation's lock; called as the owner of the store. */
static void
delete_record(const Handle *handle, const Record *record)
{
	fence_keep(record->fence);
	store_delete(handle->catalog, handle->name, record->updated_at);
}

/* Notes that this transaction has removed the record. */
static void
note_forgotten(const Handle *handle)
{
	OperationState	forgotten = {.phase = PHASE_NONE,.wrote = true,.forgets = true,.stored_at = NO_TIME};

	ForceSyncCommit();
	forgotten.level = GetCurrentTransactionNestLevel();
	journal_set(handle->id, handle->name, forgotten);
	stats_count(COUNT_FORGOTTEN);
}

/*
 * Remove the record of an operation that nobody owns, so that it may run
 * again.  False where there is none: one that has expired counts as absent,
 * and is removed all the same.
 */
bool
operation_forget(const OperationName *name)
{
	Handle		handle;
	Record		record;
	Caller		caller;
	bool		exists;

	handle_open(&handle, name, RowExclusiveLock);
	/* an operator calls this: the owner's code must not run with the operator's rights */
	caller = table_owner_enter_call(handle.catalog->store_owner);
	exists = find_unowned(&handle, &record);
	if (exists)
		delete_record(&handle, &record);
	table_owner_leave(&caller);
	if (!exists)
	{
		/* no record, but maybe attempts: there is nothing that a rollback would bring back */
		lost_attempts_forget(handle.id);
		return false;
	}
	note_forgotten(&handle);
	return !is_absent(&record, GetCurrentTimestamp());
}

/*
 * Takes the lock of an operation that has failed and that nobody has begun again
 * since it was found: what has completed meanwhile must not run twice.
 */
static bool
lock_failed(const Handle *handle, TimestampTz failed_at, Record *found)
{
	if (handle->state.phase != PHASE_NONE)
		return false;
	handle_reserve(handle);
	if (!lock_acquire_now(&handle->lock))
		return false;
	if (store_find(handle->catalog, handle->name, found) &&
		found->status == STATUS_FAILED && found->updated_at == failed_at)
		return true;
	lock_release(&handle->lock);
	return false;
}

static bool
forget_failed(text *scope, const FailedOperation *failed)
{
	OperationName name = {.scope = scope,.key = failed->key};
	Handle		handle;
	Record		record;
	Caller		caller;
	bool		is_ours;

	handle_open(&handle, &name, RowExclusiveLock);
	caller = table_owner_enter_call(handle.catalog->store_owner);
	is_ours = lock_failed(&handle, failed->failed_at, &record);
	if (is_ours)
		delete_record(&handle, &record);
	table_owner_leave(&caller);
	if (is_ours)
		note_forgotten(&handle);
	return is_ours;
}

/*
 * Removes the records of failures of one scope, and notes who did it and why.
 * Those that somebody is about to try again are passed over.  Returns how many
 * it removed.
 */
int64
operation_forget_failed(const ForgetRequest *request)
{
	const Catalog *catalog = catalog_open(RowExclusiveLock);
	const char *role = GetUserNameFromId(GetUserId(), false);
	FailedOperation *failed;
	Caller		caller;
	Policy		policy;
	int64		count;
	int64		forgotten = 0;

	kind_require_one_node(catalog, "idem_forget_failed()", "Call idem_forget for each operation.");
	scope_require(catalog, request->scope, &policy);
	caller = table_owner_enter_call(catalog->store_owner);
	count = failed_find(catalog, request, &failed);
	table_owner_leave(&caller);
	for (int64 i = 0; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (forget_failed(request->scope, &failed[i]))
			forgotten++;
	}
	if (forgotten == 0)
		return 0;
	catalog = catalog_open(RowExclusiveLock);
	caller = table_owner_enter_call(catalog->store_owner);
	failed_note_forgotten(catalog, request, forgotten, role);
	table_owner_leave(&caller);
	return forgotten;
}
