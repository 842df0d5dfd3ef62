/*
 * operation_owner.c
 *		Which sessions may end an operation, and which error all others get.
 *
 * An owner is the transaction that began the operation, or a session with the
 * fence of an attempt that is current and has not ended.  No attempt ends
 * twice: the transaction that repeats an end may have repeated its writes, and
 * they must not be committed a second time.
 */
#include "postgres.h"

#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "base/settings.h"
#include "operation/operation_owner.h"
#include "shared/advisory_lock.h"
#include "shared/stats.h"
#include "store/store.h"
#include "transaction/transaction.h"

/* Raises the error of an end without a begin; with a hint if the begin named another scope. */
static void
not_owned(const OperationName *name)
{
	const OperationName *begun = transaction_begun_with_key(name);

	ereport(ERROR,
			(errcode(ERRCODE_IDEM_NOT_OWNED),
			 errmsg("operation \"%s\" of scope \"%s\" is not owned by this transaction",
					text_to_cstring(name->key), text_to_cstring(name->scope)),
			 begun == NULL ? 0 :
			 errdetail("This transaction has begun an operation of this key in scope \"%s\".",
					   text_to_cstring(begun->scope)),
			 begun == NULL ?
			 errhint("Call idem_begin in this transaction, go on only if its outcome is ACQUIRED, and end the operation once. For a leased operation, give the fence.") :
			 errhint("Use the same scope as in idem_begin.")));
}

/* The fence of an end without a fence: that of this transaction's begin. */
int64
operation_owner_fence(const Handle *handle)
{
	if (handle->state.phase != PHASE_PENDING)
		not_owned(handle->name);
	return handle->state.fence;
}

/* A sentence about the end of an attempt; it shows nothing of a response. */
static char *
how_it_ended(int64 fence, const Record *found)
{
	bool		same = found != NULL && found->fence == fence;
	const char *at = found ? timestamptz_to_str(found->updated_at) : NULL;

	if (found == NULL)
		return pstrdup("There is no record: the attempt was released, forgotten or collected, or never begun.");
	switch (found->status)
	{
		case STATUS_COMPLETED:
			return psprintf(same ? "The operation was completed at %s." :
							"Another attempt completed the operation at %s.", at);
		case STATUS_FAILED:
			return psprintf(same ? "The operation failed at %s." :
							"In another attempt, or because no attempt was left, the operation failed at %s.", at);
		case STATUS_PENDING:
			break;
	}
	/* a release writes a lease that is over already */
	return pstrdup(found->lease_expires_at <= found->updated_at ?
				   "The last attempt was released." : "Another attempt is current.");
}

static void
lease_lost(const Handle *handle, const char *detail)
{
	stats_count(COUNT_LEASES_LOST);
	ereport(ERROR,
			(errcode(ERRCODE_IDEM_LEASE_LOST),
			 errmsg("lease of operation \"%s\" of scope \"%s\" was lost",
					text_to_cstring(handle->name->key), text_to_cstring(handle->name->scope)),
			 errdetail_internal("%s", detail),
			 errhint("Roll back, and call idem_begin again: its outcome says how the operation ended.")));
}

static void
not_free(const Handle *handle)
{
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("operation \"%s\" of scope \"%s\" is in use by another transaction",
					text_to_cstring(handle->name->key), text_to_cstring(handle->name->scope)),
			 errdetail("Its lock was not free within %d ms, and nothing was written.", setting_end_wait),
			 errhint("Retry the transaction. View idempotency_in_flight shows the owners of operations. Setting idempotency.end_wait is how long an end by fence waits.")));
}

/* Takes the lock of an operation that is ended by its fence, in bounded time. */
static void
lock_by_fence(const Handle *handle)
{
	handle_reserve(handle);
	if (!lock_acquire_now(&handle->lock) &&
		!(setting_end_wait > 0 &&
		  lock_acquire_within(&handle->lock, (int64) setting_end_wait * 1000)))
		not_free(handle);
}

/*
 * Has this transaction, without a lease, taken over the attempt with that
 * fence?
 */
static bool
is_taken_over_here(const Handle *handle, int64 fence)
{
	return handle->state.phase == PHASE_PENDING && handle->state.fence != fence;
}

static bool
is_current(const Record *record, int64 fence)
{
	return record->fence == fence && record->status == STATUS_PENDING;
}

/*
 * True if the fence is that of an attempt which has not ended.  Then the caller holds
 * the operation's lock, and *found is its record.
 */
bool
operation_owner_find(const Handle *handle, int64 fence, Record *found)
{
	if (is_taken_over_here(handle, fence))
		return false;
	lock_by_fence(handle);
	if (store_find(handle->catalog, handle->name, found) && is_current(found, fence))
		return true;
	lock_release(&handle->lock);
	return false;
}

/* The same, but raises ID409 instead of false; the detail says how the attempt ended. */
void
operation_owner_require(const Handle *handle, int64 fence, Record *found)
{
	bool		exists;

	if (is_taken_over_here(handle, fence))
		lease_lost(handle, "This transaction has begun another attempt.");
	lock_by_fence(handle);
	exists = store_find(handle->catalog, handle->name, found);
	if (!exists || !is_current(found, fence))
		lease_lost(handle, how_it_ended(fence, exists ? found : NULL));
}
