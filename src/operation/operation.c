/*
 * operation.c
 *		An operation during a call: what is known of it, and the answers to its
 *		caller.  begin.c, end.c, lease.c and release.c change it.
 *
 *		(absent) --begin--> owned by the transaction --end--> COMPLETED, FAILED
 *		(absent) --begin with a lease--> PENDING --end--> COMPLETED, FAILED
 *		PENDING, lease run out --begin--> taken over: the next attempt
 *		FAILED, retryable and due --begin--> the next attempt
 *		any record past its expiry counts as absent
 *
 * Only a session that holds the operation's lock changes the record, so
 * reading a record and writing its successor are one step.  Collection and
 * idem_reseal alone take no lock.  The first deletes only what counts as absent;
 * the second changes how a response is sealed, and nothing else.
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/xact.h"
#include "common/int.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "operation/operation_internal.h"
#include "seal/seal.h"
#include "shared/advisory_lock.h"
#include "shared/lost_attempts.h"
#include "shared/stats.h"
#include "store/store.h"
#include "store/store_kind.h"

/* ---- an operation during a call ---- */

/*
 * The operation, if the caller may use its scope.  From here on begin and end
 * may rely on the policy, the lock's tag and the state in the handle, and
 * ask for none of them again.  The store stays locked in that mode.
 */
void
handle_open(Handle *handle, const OperationName *name, LOCKMODE mode)
{
	handle->catalog = kind_hold_scope(catalog_open(mode), name->scope, mode);
	scope_require(handle->catalog, name->scope, &handle->policy);
	handle->name = name;
	handle->lock = lock_of_operation(name, &handle->catalog->lock_key, &handle->id);
	handle->state = journal_state(handle->id, name);
}

/*
 * Notes that this transaction has ended the operation and written its row.  wakes: its
 * COMMIT wakes the sessions that wait for the lease.  COMMIT also forgets the lost
 * attempts, and not this function: a failed savepoint of another transaction releases the
 * lock first, and that transaction counts its lost attempt later.
 */
void
handle_note_end(const Handle *handle, bool wakes)
{
	OperationState	state = {.phase = PHASE_ENDED,.wrote = true,.wakes = wakes,.forgets = true,.stored_at = NO_TIME};

	state.level = GetCurrentTransactionNestLevel();
	journal_set(handle->id, handle->name, state);
}

/* start + duration; an error if that is no valid time. */
TimestampTz
time_after(TimestampTz start, int64 duration, const char *name)
{
	TimestampTz result;

	if (pg_add_s64_overflow(start, duration, &result) || !IS_VALID_TIMESTAMP(result))
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_BAD_ARGUMENT),
				 errmsg("%s is too long", name)));
	return result;
}

/*
 * Gives a record a lease from its last update on, no longer than the policy of
 * its scope allows.  The record is kept for the retention after the lease, so
 * that the next owner gets taken_over = true.
 */
void
set_lease(const Handle *handle, Record *record, int64 lease)
{
	record->lease_expires_at = time_after(record->updated_at, policy_lease(&handle->policy, lease), "lease");
	record->expires_at = time_after(record->lease_expires_at,
									policy_retention(&handle->policy, 0), "lease");
}

/* Bytes of payload, headers or body, uncompressed. */
static int64
value_size(struct varlena *value)
{
	return value == NULL ? 0 : toast_raw_datum_size(PointerGetDatum(value)) - VARHDRSZ;
}

/* Bytes of payload, headers and body together. */
int64
response_size(const Response *response)
{
	return value_size(response->payload) + value_size(response->headers) + value_size(response->body);
}

/* A response, or a note of progress, is larger than the scope allows. */
pg_noreturn void
too_large(const Handle *handle, const Response *response, const char *what)
{
	int64		size = response_size(response);

	ereport(ERROR,
			(errcode(ERRCODE_IDEM_TOO_LARGE),
			 handle->policy.has_max_response_size ?
			 errmsg("%s of " INT64_FORMAT " bytes is larger than the policy of scope \"%s\" allows",
					what, size, text_to_cstring(handle->name->scope)) :
			 errmsg("%s of " INT64_FORMAT " bytes is larger than idempotency.max_response_size",
					what, size),
			 errdetail("The limit is %d bytes for payload, headers and body together.",
					   handle->policy.max_response_size),
			 errhint("Store the %s elsewhere and a reference to it here, or raise the limit.", what)));
}

/* ---- answers ---- */

static void
set_retry_after(Answer *answer, TimestampTz due, TimestampTz now)
{
	answer->has_retry_after = due != NO_TIME;
	answer->retry_after = due > now ? due - now : 0;
}

/* The end of an operation. */
Answer
replay(const Record *found, TimestampTz now)
{
	Answer		answer = {.record = *found,.replayed = true};

	answer.outcome = found->status == STATUS_COMPLETED ? OUTCOME_COMPLETED : OUTCOME_FAILED;
	set_retry_after(&answer, found->retry_at, now);
	return answer;
}

/* The end of an operation from its stored record; a sealed response is decrypted. */
Answer
replay_stored(const Record *found, TimestampTz now)
{
	Answer		answer = replay(found, now);

	unseal_record(&answer.record);
	return answer;
}

/* The note that the owner of a lease has left; NULL: none. */
struct varlena *
progress_of(const Record *found)
{
	Record		pending = *found;

	if (found->status != STATUS_PENDING)
		return NULL;
	unseal_record(&pending);
	return pending.response.payload;
}

/* An answer without any stored value. */
static Answer
bare_answer(Outcome outcome, const OperationName *name)
{
	return (Answer)
	{
		.outcome = outcome,
			.record = {
			.name = *name,.lease_expires_at = NO_TIME,.created_at = NO_TIME,
				.updated_at = NO_TIME,.expires_at = NO_TIME
		}
	};
}

/*
 * Another session owns the operation.  The answer has the time that is left of
 * its lease, but not its fence: with the fence the caller could end the
 * operation.
 */
Answer
in_progress(const OperationName *name, const Record *found, TimestampTz now)
{
	Answer		answer = bare_answer(OUTCOME_IN_PROGRESS, name);

	if (found == NULL)
		return answer;
	answer.record = *found;
	answer.record.fence = NO_FENCE;
	memset(&answer.record.response, 0, sizeof(Response));
	set_retry_after(&answer, found->lease_expires_at, now);
	return answer;
}

/* The answer for an operation that this transaction has begun. */
Answer
in_progress_here(const Handle *handle, TimestampTz now)
{
	Record		own = {
		.name = *handle->name,
		.status = STATUS_PENDING,
		.attempt = handle->state.attempt,
		.lease_expires_at = handle->state.lease_expires_at,
		.created_at = handle->state.created_at,
		.updated_at = handle->state.created_at,
		.expires_at = NO_TIME
	};

	return in_progress(handle->name, &own, now);
}

/*
 * The key was used with another request.  The answer has nothing of that request's
 * operation; without an answer it is an error.
 */
Answer
mismatch(const OperationName *name, bool is_answered)
{
	if (is_answered)
		return bare_answer(OUTCOME_MISMATCH, name);
	stats_count(COUNT_MISMATCHES);
	ereport(ERROR,
			(errcode(ERRCODE_IDEM_MISMATCH),
			 errmsg("operation \"%s\" of scope \"%s\" was begun before with a different request",
					text_to_cstring(name->key), text_to_cstring(name->scope)),
			 errhint("Use a new key for a new request, and send the same request with the same key.")));
}

/* ---- looking up ---- */

/* Reads the record of an operation; false if there is none. */
bool
operation_lookup(const OperationName *name, Answer *answer)
{
	Handle		handle;
	Record		record;
	bool		exists;
	TimestampTz now;

	handle_open(&handle, name, AccessShareLock);
	exists = store_peek(handle.catalog, name, &record);
	now = GetCurrentTimestamp();
	exists = exists && !is_absent(&record, now);
	if (handle.state.phase == PHASE_PENDING)
		*answer = in_progress_here(&handle, now);
	else if (!exists)
		return false;
	else if (record.status == STATUS_PENDING)
		*answer = in_progress(name, &record, now);
	else
		*answer = replay_stored(&record, now);
	if (exists && answer->outcome == OUTCOME_IN_PROGRESS)
		answer->record.response.payload = progress_of(&record);
	answer->catalog = handle.catalog;
	return true;
}

/* How often an attempt was lost with its transaction since the last end, release or forgetting. */
int32
operation_lost_attempts(const OperationName *name)
{
	Handle		handle;

	handle_open(&handle, name, AccessShareLock);
	return lost_attempts_of(handle.id);
}
