/*
 * begin.c
 *		The begin of an operation: acquires it, or answers how it ended or that
 *		it is in progress.
 *
 * A begin gathers once (the handle, the lock, the record), decides once
 * (decide() of operation.c, which asks nobody), and writes once.
 *
 * Times are the clock's, not the transaction's: transactions can be long.
 */
#include "postgres.h"

#include "access/xact.h"
#include "common/int.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "fault.h"
#include "fence.h"
#include "fingerprint.h"
#include "json.h"
#include "lock.h"
#include "mark.h"
#include "operation_internal.h"
#include "seal.h"
#include "stats.h"
#include "store.h"
#include "wait.h"

/* did the last begin of this session answer from the store? */
static bool told_an_end = false;

/* the row of the name, if there is one */
typedef struct Lookup
{
	bool		exists;
	Record		record;
} Lookup;

static bool
is_same_request(const BeginRequest *request, const Digest *stored)
{
	return digest_matches(&request->name, stored, request->fingerprint);
}

/* The answer has nothing of the other request's operation. */
static Answer
answer_mismatch(const BeginRequest *request)
{
	const OperationName *name = &request->name;

	if (request->tells_mismatch)
		return bare_answer(OUTCOME_MISMATCH, name);
	stats_count(COUNT_MISMATCHES);
	ereport(ERROR,
			(errcode(ERRCODE_IDEM_MISMATCH),
			 errmsg("operation \"%s\" of scope \"%s\" was begun before with a different request",
					text_to_cstring(name->key), text_to_cstring(name->scope)),
			 errhint("Use a new key for a new request, and send the same request with the same key.")));
}

/*
 * The record that an acquired operation has from now on.  It replaces the
 * record that was found, if that has not expired.
 */
static Record
next_attempt(const BeginRequest *request, const Record *before, TimestampTz now)
{
	Record		record = {
		.name = request->name,
		.status = STATUS_PENDING,
		.attempt = 1,
		.request = digest_of(&request->name, request->fingerprint),
		.lease_expires_at = NO_TIME,
		.retry_at = NO_TIME,
		.created_at = now,
		.updated_at = now,
		.expires_at = NO_TIME
	};

	if (before != NULL)
	{
		record.created_at = before->created_at;
		if (record.request.bytes == NULL)
			record.request = before->request;
		if (pg_add_s32_overflow(before->attempt, 1, &record.attempt))
			record.attempt = before->attempt;
	}
	return record;
}

/* A lease is written at once, and durable when COMMIT returns. */
static void
write_lease(const Handle *handle, const BeginRequest *request, const Record *found, Record *record)
{
	record->fence = mark_next_fence(handle->catalog, request->name.scope, found ? found->fence : NO_FENCE);
	set_lease(handle, record, request->lease);
	store_put(handle->catalog, record, found ? found->updated_at : NO_TIME);
	ForceSyncCommit();
}

/*
 * The caller owns the operation, whose lock is held.  Nothing is written for a
 * transaction-bound one.  A row that counts as absent is replaced, too.
 */
static Answer
acquire_operation(const Handle *handle, const BeginRequest *request, const Facts *facts, const Record *found)
{
	const Record *before = facts->found;
	Answer		answer = {
		.outcome = OUTCOME_ACQUIRED,
		.taken_over = before != NULL && before->status == STATUS_PENDING,
		.record = next_attempt(request, before, facts->now)
	};
	Standing	standing = {
		.phase = PHASE_PENDING,
		.level = GetCurrentTransactionNestLevel(),
		.locked = handle->standing.locked,
		.wrote = handle->standing.wrote,
		.stored_at = found ? found->updated_at : NO_TIME
	};

	FAULT_POINT("begin-judged");
	handle_reserve(handle);
	if (request->lease > 0)
	{
		write_lease(handle, request, found, &answer.record);
		if (answer.taken_over)
			FAULT_POINT("taken-over");
		standing.wrote = true;
		standing.stored_at = answer.record.updated_at;
	}
	else if (found != NULL)
		fence_keep(found->fence);	/* its end replaces the row */
	standing.attempt = answer.record.attempt;
	standing.fence = answer.record.fence;
	standing.request = answer.record.request;
	standing.lease_expires_at = answer.record.lease_expires_at;
	standing.created_at = answer.record.created_at;
	transaction_note(handle->id, handle->name, &standing);
	return answer;
}

/* {"reason": "attempts exhausted", "attempts": N} */
static Response
exhausted_response(int32 attempts)
{
	JsonMember	members[] = {
		{"reason",.text = "attempts exhausted"},
		{"attempts",.number = int64_to_numeric(attempts)}
	};

	return (Response) {.payload = (struct varlena *) json_object_of(members, lengthof(members))};
}

/* The attempt would be one too many: the operation has failed for good. */
static Answer
exhaust_operation(const Handle *handle, const Record *found, TimestampTz now)
{
	Record		record = *found;

	handle_reserve(handle);
	record.status = STATUS_FAILED;
	/*
	 * this failure does not end the attempt with that fence: its owner gets
	 * ID409
	 */
	record.fence = NO_FENCE;
	fence_keep(found->fence);
	record.lease_expires_at = NO_TIME;
	record.retry_at = NO_TIME;
	record.response = exhausted_response(found->attempt);
	record.updated_at = now;
	record.expires_at = time_after(now, policy_retention(&handle->policy, 0), "retention");
	store_put(handle->catalog, &record, found->updated_at);
	ForceSyncCommit();
	stats_count(COUNT_FAILED);
	handle_note_end(handle, false);
	return replay(&record, now);
}

/*
 * Looks the operation up, and gathers what decides.  With the lock held, the
 * answer is final.
 */
static Facts
gather_facts(const Handle *handle, const BeginRequest *request, bool locked, Lookup *lookup)
{
	Facts		facts = {.locked = locked};

	lookup->exists = store_find(handle->catalog, &request->name, &lookup->record);
	facts.now = GetCurrentTimestamp();
	facts.max_attempts = policy_max_attempts(&handle->policy, request->max_attempts);
	if (lookup->exists && !is_absent(&lookup->record, facts.now))
	{
		facts.found = &lookup->record;
		facts.same_request = is_same_request(request, &lookup->record.request);
	}
	return facts;
}

/* Does what was decided: at most one row is written, and one standing noted. */
static Answer
carry_out(Verdict verdict, const Handle *handle, const BeginRequest *request,
		  const Facts *facts, Lookup *lookup)
{
	switch (verdict)
	{
		case VERDICT_ACQUIRE:
			return acquire_operation(handle, request, facts, lookup->exists ? &lookup->record : NULL);
		case VERDICT_EXHAUSTED:
			return exhaust_operation(handle, &lookup->record, facts->now);
		case VERDICT_REPLAY:
			unseal_record(&lookup->record);
			return replay(&lookup->record, facts->now);
		case VERDICT_IN_PROGRESS:
			return in_progress(&request->name, facts->found, facts->now);
		case VERDICT_MISMATCH:
			return answer_mismatch(request);
		case VERDICT_IN_TRANSACTION:
			break;
	}
	return in_progress(&request->name, NULL, facts->now);
}

/* Gathers, decides and carries out; does the transaction keep the lock for that? */
static Answer
answer_begin(const Handle *handle, const BeginRequest *request, bool locked, bool *keeps_lock)
{
	Lookup		lookup;
	Facts		facts = gather_facts(handle, request, locked, &lookup);
	Verdict		verdict = decide(&facts);

	*keeps_lock = verdict == VERDICT_ACQUIRE || verdict == VERDICT_EXHAUSTED;
	return carry_out(verdict, handle, request, &facts, &lookup);
}

/* One try: with the lock if it comes free in that time, else without. */
static Answer
try_begin(const Handle *handle, const BeginRequest *request, int64 lock_wait, bool *locked)
{
	bool		keeps_lock;
	Answer		answer;

	*locked = lock_wait > 0 ?
		lock_acquire_within(&handle->lock, lock_wait) : lock_acquire_now(&handle->lock);
	if (*locked)
		FAULT_POINT("begin-locked");
	answer = answer_begin(handle, request, *locked, &keeps_lock);
	/* a caller that only gets a replay releases the lock at once */
	if (*locked && !keeps_lock)
		lock_release(&handle->lock);
	return answer;
}

/*
 * Waits for the present owner and tries again, until the operation has ended,
 * is ours, or the time is up.  The wait for an open transaction is in the lock
 * manager; the wait for a lease lasts until it ends.
 */
static Answer
begin_until(const Handle *handle, const BeginRequest *request, bool locked)
{
	Deadline	deadline = deadline_after(request->wait);
	LeaseWait	lease_wait = lease_wait_prepare(handle->id);
	int64		left = request->wait;
	Answer		answer;

	for (;;)
	{
		answer = try_begin(handle, request, locked ? 0 : left, &locked);
		left = deadline_left(&deadline);
		if (answer.outcome != OUTCOME_IN_PROGRESS || left <= 0)
			break;
		if (locked)
			lease_wait_sleep(&lease_wait, Min(answer.retry_after, left));
	}
	lease_wait_end();
	stats_count(COUNT_WAITS);
	stats_add(COUNT_WAIT_MICROSECONDS, request->wait - left);
	return answer;
}

static void
count_answer(const Answer *answer)
{
	static const Counter counters[OUTCOME_LABELS] = {
		[OUTCOME_ACQUIRED] = COUNT_ACQUIRED,
		[OUTCOME_IN_PROGRESS] = COUNT_IN_PROGRESS,
		[OUTCOME_COMPLETED] = COUNT_REPLAYED_COMPLETED,
		[OUTCOME_FAILED] = COUNT_REPLAYED_FAILED,
		[OUTCOME_MISMATCH] = COUNT_MISMATCHES
	};

	stats_count(counters[answer->outcome]);
	if (answer->taken_over)
		stats_count(COUNT_TAKEN_OVER);
}

/*
 * A replay needs no lock.  Retries come in bursts: if the last begin of this
 * session was a replay, the next one probably is, too.  Such a session looks
 * before it asks for the lock.
 */
static bool
told_at_a_glance(const Handle *handle, const BeginRequest *request, Answer *answer)
{
	bool		keeps_lock;

	if (!told_an_end)
		return false;
	*answer = answer_begin(handle, request, false, &keeps_lock);
	return answer->replayed || answer->outcome == OUTCOME_MISMATCH;
}

static Answer
begin_operation(const BeginRequest *request)
{
	Handle		handle = handle_open(&request->name, RowExclusiveLock);
	Answer		answer;
	bool		locked;

	if (handle.standing.phase == PHASE_PENDING)
	{
		if (!is_same_request(request, &handle.standing.request))
			return answer_mismatch(request);
		return in_progress_here(&handle, GetCurrentTimestamp());
	}
	if (told_at_a_glance(&handle, request, &answer))
		return answer;
	answer = try_begin(&handle, request, 0, &locked);
	if (answer.outcome == OUTCOME_IN_PROGRESS && request->wait > 0)
		answer = begin_until(&handle, request, locked);
	told_an_end = answer.replayed;
	return answer;
}

/* Acquire an operation, or answer how it ended or that it is in progress. */
Answer
operation_begin(const BeginRequest *request)
{
	Answer		answer = begin_operation(request);

	count_answer(&answer);
	return answer;
}
