/*
 * end.c
 *		The end of an operation: completed, failed or released; and a lease
 *		that is made longer.
 *
 * Without a fence these are for what this very transaction began, with one
 * for that attempt, from any session.
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/xact.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "fault.h"
#include "handle.h"
#include "operation.h"
#include "stats.h"
#include "store.h"
#include "verdict.h"

static void
not_owned(const OperationName *name)
{
	ereport(ERROR,
			(errcode(ERRCODE_IDEM_NOT_OWNED),
			 errmsg("operation \"%s\" of scope \"%s\" is not owned by this transaction",
					text_to_cstring(name->key), text_to_cstring(name->scope)),
			 errhint("Call idem_begin in this transaction and go on only if it answers ACQUIRED, or give the fence of a leased operation.")));
}

static void
lease_lost(const OperationName *name)
{
	stats_count(COUNT_LEASES_LOST);
	ereport(ERROR,
			(errcode(ERRCODE_IDEM_LEASE_LOST),
			 errmsg("lease of operation \"%s\" of scope \"%s\" was lost",
					text_to_cstring(name->key), text_to_cstring(name->scope)),
			 errdetail("The fence is no longer current: the operation was taken over, ended or released."),
			 errhint("Call idem_begin to learn what became of the operation.")));
}

/* Bytes of one part of a response, uncompressed. */
static int64
part_size(struct varlena *part)
{
	return part == NULL ? 0 : toast_raw_datum_size(PointerGetDatum(part)) - VARHDRSZ;
}

static void
check_response(const Handle *handle, const Response *response)
{
	int64		size = part_size(response->payload) + part_size(response->headers) +
		part_size(response->body);
	int32		limit = policy_max_response_size(&handle->policy);

	if (size > limit)
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_TOO_LARGE),
				 handle->policy.has_max_response_size ?
				 errmsg("response of " INT64_FORMAT " bytes is larger than the policy of scope \"%s\" allows",
						size, text_to_cstring(handle->name->scope)) :
				 errmsg("response of " INT64_FORMAT " bytes is larger than idempotency.max_response_size",
						size),
				 errdetail("The limit is %d bytes for payload, headers and body together.", limit),
				 errhint("Store the response elsewhere and a reference to it here, or raise the limit.")));
}

/* Takes the lock of an operation that is ended by its fence. */
static void
lock_by_fence(Handle *handle, int64 fence)
{
	/* this transaction may have taken it over without a lease */
	if (handle->standing.phase == PHASE_PENDING && handle->standing.fence != fence)
		lease_lost(handle->name);
	handle_reserve(handle);
	lock_acquire(&handle->lock);
}

static bool
is_current(const Record *record, int64 fence)
{
	return record->fence == fence || !GUARD("fence");
}

/* The fence that an end without one means: that of this transaction's begin. */
static int64
owned_fence(const Handle *handle)
{
	if (handle->standing.phase != PHASE_PENDING)
		not_owned(handle->name);
	return handle->standing.fence;
}

/* Makes a record the ended one that was asked for, and counts that. */
static void
set_end(const Handle *handle, Record *record, const EndRequest *request)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz from = now;

	record->status = request->status;
	record->response = request->response;
	record->lease_expires_at = NO_TIME;
	record->retry_at = NO_TIME;
	record->updated_at = now;
	/* a failure to be tried again is remembered for longer than its pause */
	if (request->retryable)
		from = record->retry_at = time_after(now, request->retry_after, "retry_after");
	record->expires_at = time_after(from, policy_retention(&handle->policy, request->retention), "retention");
	stats_count(record->status == STATUS_COMPLETED ? COUNT_COMPLETED : COUNT_FAILED);
}

/* The one row that a transaction-bound operation costs. */
static Record
end_owned(Handle *handle, const EndRequest *request)
{
	Record		record = {
		.name = request->name,
		.attempt = handle->standing.attempt,
		.request = handle->standing.request,
		.fence = NO_FENCE,
		.created_at = handle->standing.created_at
	};

	set_end(handle, &record, request);
	FAULT_POINT("end-judged");
	store_put(handle->catalog, &record, handle->standing.stored_at);
	handle_note_end(handle);
	return record;
}

/* A leased operation ends if the fence is current; to repeat that is no error. */
static Record
end_leased(Handle *handle, const EndRequest *request, int64 fence)
{
	Record		record;

	lock_by_fence(handle, fence);
	if (!store_find(handle->catalog, handle->name, &record) || !is_current(&record, fence))
		lease_lost(handle->name);
	if (record.status == STATUS_PENDING)
	{
		TimestampTz judged = record.updated_at;

		set_end(handle, &record, request);
		FAULT_POINT("end-judged");
		store_put(handle->catalog, &record, judged);
		ForceSyncCommit();
		transaction_wake_at_commit(handle->id);
		handle_note_end(handle);
	}
	else if (record.status == request->status)
		lock_release(&handle->lock);
	else
		lease_lost(handle->name);
	return record;
}

/* End an operation and store its response. */
Answer
operation_end(const EndRequest *request)
{
	Handle		handle = handle_open(&request->name);
	int64		fence = request->fence;
	Record		record;
	Answer		answer;

	if (!request->cut_to_size)
		check_response(&handle, &request->response);
	if (fence == NO_FENCE)
		fence = owned_fence(&handle);
	record = fence == NO_FENCE ?
		end_owned(&handle, request) : end_leased(&handle, request, fence);
	answer = replay(&record, record.updated_at);
	answer.replayed = false;
	return answer;
}

/*
 * Nothing is left of what this transaction began.  The lock goes at once
 * where no rollback can bring the operation back and no row waits for COMMIT.
 */
static void
release_owned(Handle *handle)
{
	Standing	before = handle->standing;
	Standing	released = {.phase = PHASE_NONE,.wrote = before.wrote,.stored_at = NO_TIME};
	bool		at_once;

	if (before.stored_at != NO_TIME)
	{
		store_delete(handle->catalog, handle->name, before.stored_at);
		released.wrote = true;
	}
	released.level = GetCurrentTransactionNestLevel();
	at_once = !released.wrote && before.level == released.level;
	released.locked = before.locked || !at_once;
	handle_note(handle, released);
	if (at_once)
		lock_release(&handle->lock);
}

static bool
release_leased(Handle *handle, int64 fence)
{
	Standing	released = {.phase = PHASE_NONE,.wrote = true,.stored_at = NO_TIME};
	Record		record;

	if (handle->standing.phase == PHASE_PENDING && handle->standing.fence != fence)
		return false;
	lock_by_fence(handle, fence);
	if (!store_find(handle->catalog, handle->name, &record) ||
		!is_current(&record, fence) || record.status != STATUS_PENDING)
	{
		lock_release(&handle->lock);
		return false;
	}
	store_delete(handle->catalog, handle->name, record.updated_at);
	ForceSyncCommit();
	transaction_wake_at_commit(handle->id);
	released.level = GetCurrentTransactionNestLevel();
	handle_note(handle, released);
	return true;
}

/* Give an operation up as if never begun. */
bool
operation_release(const OperationName *name, int64 fence)
{
	Handle		handle = handle_open(name);

	if (fence == NO_FENCE)
		fence = owned_fence(&handle);
	if (fence == NO_FENCE)
		release_owned(&handle);
	else if (!release_leased(&handle, fence))
		return false;
	stats_count(COUNT_RELEASED);
	return true;
}

/* Let a lease end that long from now, even if it has run out meanwhile. */
TimestampTz
operation_extend(const OperationName *name, int64 fence, int64 lease)
{
	Handle		handle = handle_open(name);
	Standing	standing = handle.standing;
	Record		record;
	TimestampTz judged;

	if (fence == NO_FENCE)
		fence = owned_fence(&handle);
	if (fence == NO_FENCE)
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_BAD_ARGUMENT),
				 errmsg("operation \"%s\" of scope \"%s\" has no lease",
						text_to_cstring(name->key), text_to_cstring(name->scope)),
				 errhint("Its owner is the transaction, for as long as that is open.")));
	lock_by_fence(&handle, fence);
	if (!store_find(handle.catalog, name, &record) ||
		!is_current(&record, fence) || record.status != STATUS_PENDING)
		lease_lost(name);

	judged = record.updated_at;
	record.updated_at = GetCurrentTimestamp();
	set_lease(&handle, &record, lease);
	store_put(handle.catalog, &record, judged);
	ForceSyncCommit();
	standing.wrote = true;
	standing.stored_at = record.updated_at;
	standing.lease_expires_at = record.lease_expires_at;
	handle_note(&handle, standing);
	return record.lease_expires_at;
}
