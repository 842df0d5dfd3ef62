/*
 * begin.c
 *		The begin of an operation: acquires it, or answers how it ended or that
 *		it is in progress.
 *
 * A begin gathers in one struct all that it has to know, decides once, and
 * writes once.  decide() reads nothing but that struct: there the
 * state machine of operation.c can be read as a whole.
 *
 * Times are the clock's, not the transaction's: transactions can be long.
 */
#include "postgres.h"

#include "access/xact.h"
#include "common/int.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "base/fault.h"
#include "base/json.h"
#include "operation/operation_internal.h"
#include "seal/fingerprint.h"
#include "shared/advisory_lock.h"
#include "shared/lost_attempts.h"
#include "shared/stats.h"
#include "shared/wait.h"
#include "store/citus_fence.h"
#include "store/fence.h"
#include "store/store.h"
#include "transaction/rollback.h"

/* a try that takes no lock */
#define WITHOUT_LOCK ((int64) -1)

/* true if the last begin of this session was a replay */
static bool last_was_replay = false;

/*
 * All that decides what a begin does.  The first part is gathered once.  The
 * second part is gathered anew by each try, and final if the lock is held.
 */
typedef struct Begin
{
	const BeginRequest *request;
	Handle		handle;
	int32		max_attempts;	/* 0: no limit */
	int32		max_lost_attempts;	/* 0: no limit */

	bool		locked;			/* this try has the operation's lock */
	TimestampTz now;
	bool		exists;			/* there is a row of the name */
	Record		row;
	const Record *found;		/* the row; NULL: there is none, or it has expired */
	bool		same_request;	/* the request equals that of the earlier begin */
	int32		lost_attempts;	/* 0 without a limit for them */
} Begin;

typedef enum Verdict
{
	VERDICT_ACQUIRE,
	VERDICT_BEGUN_HERE,			/* by this transaction */
	VERDICT_EXHAUSTED,			/* no attempt is left */
	VERDICT_LOST,				/* too many attempts were lost */
	VERDICT_IN_PROGRESS,		/* another session's lease runs */
	VERDICT_IN_TRANSACTION,		/* an open transaction owns it, and has written nothing yet */
	VERDICT_MISMATCH,
	VERDICT_REPLAY
} Verdict;

/* ---- gathering ---- */

/* Known before the operation is looked up: no try asks for it again. */
static void
gather_operation(Begin *begin, const BeginRequest *request)
{
	begin->request = request;
	handle_open(&begin->handle, &request->name, RowExclusiveLock);
	begin->max_attempts = policy_max_attempts(&begin->handle.policy, request->max_attempts);
	begin->max_lost_attempts = begin->handle.policy.max_lost_attempts;
}

/* Looks the operation up. */
static void
gather_record(Begin *begin)
{
	begin->exists = store_find(begin->handle.catalog, begin->handle.name, &begin->row);
	begin->now = GetCurrentTimestamp();
	begin->found = NULL;
	begin->same_request = true;
	begin->lost_attempts = begin->max_lost_attempts > 0 ? lost_attempts_of(begin->handle.id) : 0;
	if (begin->exists && !is_absent(&begin->row, begin->now))
	{
		begin->found = &begin->row;
		begin->same_request = digest_matches(begin->handle.name, &begin->row.request,
											 begin->request->fingerprint);
	}
}

/* ---- deciding ---- */

static bool
is_exhausted(const Begin *begin)
{
	return begin->max_attempts > 0 && begin->found != NULL &&
		begin->found->attempt >= begin->max_attempts;
}

static bool
is_lost_too_often(const Begin *begin)
{
	return begin->max_lost_attempts > 0 && begin->lost_attempts >= begin->max_lost_attempts;
}

/*
 * The action of the begin.  Without the lock, the answer can only be that of another
 * owner: a replay, a mismatch or IN_PROGRESS.
 */
static Verdict
decide(const Begin *begin)
{
	const Record *found = begin->found;

	if (!begin->same_request)
		return VERDICT_MISMATCH;
	if (begin->handle.state.phase == PHASE_PENDING)
		return VERDICT_BEGUN_HERE;
	if (found != NULL)
	{
		switch (found->status)
		{
			case STATUS_COMPLETED:
				return VERDICT_REPLAY;
			case STATUS_FAILED:
				if (found->retry_at == NO_TIME || found->retry_at > begin->now)
					return VERDICT_REPLAY;
				break;
			case STATUS_PENDING:
				if (found->lease_expires_at > begin->now)
					return VERDICT_IN_PROGRESS;
				break;
		}
	}
	if (!begin->locked)
		return VERDICT_IN_TRANSACTION;
	if (is_exhausted(begin))
		return VERDICT_EXHAUSTED;
	return is_lost_too_often(begin) ? VERDICT_LOST : VERDICT_ACQUIRE;
}

/* ---- carrying out ---- */

/*
 * The record that an acquired operation has from now on.  It replaces the
 * record that was found, if that has not expired, and has the note of its owner.
 */
static Record
next_attempt(const Begin *begin)
{
	const Record *before = begin->found;
	Record		record = {
		.name = begin->request->name,
		.status = STATUS_PENDING,
		.attempt = 1,
		.request = digest_of(begin->handle.name, begin->request->fingerprint),
		.lease_expires_at = NO_TIME,
		.retry_at = NO_TIME,
		.created_at = begin->now,
		.updated_at = begin->now,
		.expires_at = NO_TIME
	};

	if (before != NULL)
	{
		record.created_at = before->created_at;
		if (record.request.bytes == NULL)
			record.request = before->request;
		if (pg_add_s32_overflow(before->attempt, 1, &record.attempt))
			record.attempt = before->attempt;
		record.response.payload = progress_of(before);
	}
	return record;
}

/* A lease is written at once, and durable when COMMIT returns. */
static void
write_lease(const Begin *begin, Record *record)
{
	const Record *row = begin->exists ? &begin->row : NULL;

	record->fence = citus_fence_next(begin->handle.catalog, begin->handle.name->scope,
									row ? row->fence : NO_FENCE);
	set_lease(&begin->handle, record, begin->request->lease);
	store_put(begin->handle.catalog, record, row ? row->updated_at : NO_TIME);
	ForceSyncCommit();
}

/*
 * The caller owns the operation, whose lock is held.  Nothing is written for a
 * transaction-bound one.  A row that counts as absent is replaced, too.
 */
static Answer
acquire_operation(const Begin *begin)
{
	const Handle *handle = &begin->handle;
	const Record *before = begin->found;
	Answer		answer = {
		.outcome = OUTCOME_ACQUIRED,
		.taken_over = before != NULL && before->status == STATUS_PENDING,
		.record = next_attempt(begin)
	};
	OperationState	state = {
		.phase = PHASE_PENDING,
		.level = GetCurrentTransactionNestLevel(),
		.locked = handle->state.locked,
		.wrote = handle->state.wrote,
		.stored_at = begin->exists ? begin->row.updated_at : NO_TIME
	};

	FAULT_POINT("begin-decided");
	handle_reserve(handle);
	if (begin->request->lease > 0)
	{
		write_lease(begin, &answer.record);
		if (answer.taken_over)
			FAULT_POINT("taken-over");
		state.wrote = true;
		state.stored_at = answer.record.updated_at;
	}
	else if (begin->exists)
		fence_keep(begin->row.fence);	/* its end replaces the row */
	state.attempt = answer.record.attempt;
	state.fence = answer.record.fence;
	state.request = answer.record.request;
	state.lease_expires_at = answer.record.lease_expires_at;
	state.created_at = answer.record.created_at;
	journal_set(handle->id, handle->name, state);
	rollback_note_begin(handle->id, begin->max_lost_attempts);
	return answer;
}

/* {"reason": "attempts exhausted", "attempts": N}, or of lost ones */
static Response
final_response(char *reason, char *what, int32 attempts)
{
	JsonMember	members[] = {
		{"reason",.text = reason},
		{what,.number = int64_to_numeric(attempts)}
	};

	return (Response) {.payload = (struct varlena *) json_object_of(members, lengthof(members))};
}

/*
 * The attempt would be one too many: the operation has failed for good.  Where only
 * lost attempts came before, there is no record yet.
 */
static Answer
refuse_attempt(const Begin *begin, Response response)
{
	const Handle *handle = &begin->handle;
	Record		record = begin->found != NULL ? *begin->found : next_attempt(begin);

	handle_reserve(handle);
	record.status = STATUS_FAILED;
	/*
	 * this failure does not end the attempt with that fence: its owner gets
	 * ID409
	 */
	record.fence = NO_FENCE;
	if (begin->exists)
		fence_keep(begin->row.fence);
	record.lease_expires_at = NO_TIME;
	record.retry_at = NO_TIME;
	record.response = response;
	record.updated_at = begin->now;
	record.expires_at = time_after(begin->now, policy_retention(&handle->policy, 0), "retention");
	store_put(handle->catalog, &record, begin->exists ? begin->row.updated_at : NO_TIME);
	ForceSyncCommit();
	stats_count(COUNT_FAILED);
	handle_note_end(handle, false);
	return replay(&record, begin->now);
}

/* The operation has ended, unless this transaction ended it and rolls back. */
static void
forget_if_ended(const Handle *handle)
{
	if (!handle->state.wrote)
		lost_attempts_forget(handle->id);
}

/* Carries the decision out: writes at most one row, and changes the journal once at most. */
static Answer
carry_out(const Begin *begin, Verdict verdict)
{
	switch (verdict)
	{
		case VERDICT_ACQUIRE:
			return acquire_operation(begin);
		case VERDICT_EXHAUSTED:
			return refuse_attempt(begin, final_response("attempts exhausted", "attempts", begin->row.attempt));
		case VERDICT_LOST:
			return refuse_attempt(begin, final_response("attempts lost", "lost_attempts", begin->lost_attempts));
		case VERDICT_REPLAY:
			forget_if_ended(&begin->handle);
			return replay_stored(begin->found, begin->now);
		case VERDICT_IN_PROGRESS:
			return in_progress(begin->handle.name, begin->found, begin->now);
		case VERDICT_MISMATCH:
			return mismatch(begin->handle.name, begin->request->answers_mismatch);
		case VERDICT_BEGUN_HERE:
			return in_progress_here(&begin->handle, begin->now);
		case VERDICT_IN_TRANSACTION:
			break;
	}
	return in_progress(begin->handle.name, NULL, begin->now);
}

/* ---- trying, and waiting ---- */

/* Takes the lock if it comes free in that time. */
static bool
take_lock(const Begin *begin, int64 lock_wait)
{
	bool		taken = lock_wait > 0 ?
		lock_acquire_within(&begin->handle.lock, lock_wait) : lock_acquire_now(&begin->handle.lock);

	if (taken)
		FAULT_POINT("begin-locked");
	return taken;
}

/* One try: with the lock if it comes free in that time, else without. */
static Answer
try_begin(Begin *begin, int64 lock_wait)
{
	Verdict		verdict;
	Answer		answer;

	begin->locked = lock_wait != WITHOUT_LOCK && take_lock(begin, lock_wait);
	gather_record(begin);
	verdict = decide(begin);
	answer = carry_out(begin, verdict);
	/* a caller that only gets a replay releases the lock at once */
	if (begin->locked && verdict != VERDICT_ACQUIRE && verdict != VERDICT_EXHAUSTED && verdict != VERDICT_LOST)
		lock_release(&begin->handle.lock);
	return answer;
}

/*
 * Waits for the present owner and tries again, until the operation has ended,
 * is ours, or the time is up.  The wait for an open transaction is in the lock
 * manager; the wait for a lease lasts until it ends.  Of the tries, which may be
 * very many, only the last one keeps its memory.
 */
static Answer
begin_until(Begin *begin)
{
	int64		wait = begin->request->wait;
	Deadline	deadline = deadline_after(wait);
	LeaseWait	lease_wait = lease_wait_prepare(begin->handle.id);
	int64		left = wait;
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext try = AllocSetContextCreate(caller, "idempotency try", ALLOCSET_SMALL_SIZES);
	Answer		answer;

	for (;;)
	{
		MemoryContextReset(try);
		MemoryContextSwitchTo(try);
		/* the lock was free, so a lease runs: there is no transaction to wait for */
		answer = try_begin(begin, begin->locked ? 0 : left);
		MemoryContextSwitchTo(caller);
		left = deadline_left(&deadline);
		if (answer.outcome != OUTCOME_IN_PROGRESS || left <= 0)
			break;
		if (begin->locked)
			lease_wait_sleep(&lease_wait, Min(answer.retry_after, left));
	}
	lease_wait_end();
	stats_count(COUNT_WAITS);
	stats_add(COUNT_WAIT_MICROSECONDS, wait - left);
	return answer;
}

/*
 * A replay needs no lock.  Retries come in bursts: if the last begin of this
 * session was a replay, the next one probably is, too.  Such a session looks
 * before it asks for the lock.
 */
static Answer
begin_operation(Begin *begin)
{
	Answer		answer;

	if (last_was_replay)
	{
		answer = try_begin(begin, WITHOUT_LOCK);
		if (answer.replayed || answer.outcome == OUTCOME_MISMATCH)
			return answer;
	}
	answer = try_begin(begin, 0);
	if (answer.outcome == OUTCOME_IN_PROGRESS && begin->request->wait > 0)
		answer = begin_until(begin);
	last_was_replay = answer.replayed;
	return answer;
}

/* This transaction has begun the operation: nobody else changes it. */
static Answer
begin_again(Begin *begin)
{
	begin->now = GetCurrentTimestamp();
	begin->found = NULL;
	begin->same_request = digest_matches(begin->handle.name, &begin->handle.state.request,
										 begin->request->fingerprint);
	return carry_out(begin, decide(begin));
}

/* Acquire an operation, or answer how it ended or that it is in progress. */
Answer
operation_begin(const BeginRequest *request)
{
	Begin		begin;
	Answer		answer;

	gather_operation(&begin, request);
	answer = begin.handle.state.phase == PHASE_PENDING ?
		begin_again(&begin) : begin_operation(&begin);
	answer.catalog = begin.handle.catalog;
	stats_count_begin(answer.outcome, answer.taken_over);
	return answer;
}
