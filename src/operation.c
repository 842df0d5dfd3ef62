/*
 * operation.c
 *		The life of an operation: what a caller is told, and what becomes of
 *		the record.
 *
 *		(absent) --begin--> owned by the transaction --end--> COMPLETED, FAILED
 *		(absent) --begin with a lease--> PENDING --end--> COMPLETED, FAILED
 *		PENDING, lease run out --begin--> taken over: the next attempt
 *		FAILED, retryable and due --begin--> the next attempt
 *		any record past its expiry counts as absent
 *
 * Every change of a record is made by whoever holds the operation's lock, so
 * judging a record and writing its successor are one step.  Collection alone
 * takes no lock, and deletes only what counts as absent.
 *
 * Times are the clock's, not the transaction's: transactions can be long.
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/xact.h"
#include "common/int.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "lock.h"
#include "operation.h"
#include "settings.h"
#include "stats.h"
#include "store.h"
#include "transaction.h"
#include "wait.h"

/* an operation at hand: its name, its lock, and where everything is */
typedef struct Handle
{
	const Catalog *catalog;
	const OperationName *name;
	uint64		id;
	LOCKTAG		lock;
	Standing	standing;		/* this transaction's */
} Handle;

/* what a begin may do about a record */
typedef enum Verdict
{
	VERDICT_ACQUIRE,
	VERDICT_EXHAUSTED,			/* acquire, but for max_attempts */
	VERDICT_IN_PROGRESS,		/* somebody's lease runs */
	VERDICT_REPLAY
} Verdict;

static Handle
open_operation(const OperationName *name)
{
	Handle		handle;

	handle.catalog = catalog_open(RowExclusiveLock);
	handle.name = name;
	handle.id = lock_id(name, handle.catalog->lock_seed);
	handle.lock = lock_tag(handle.id, LOCK_CLASS_OPERATION);
	handle.standing = transaction_standing(handle.id, name);
	return handle;
}

static void
note(Handle *handle, Standing standing)
{
	transaction_note(handle->id, handle->name, standing);
	handle->standing = standing;
}

/* The operation is ended, and its row is this transaction's. */
static void
note_end(Handle *handle)
{
	Standing	standing = {.phase = PHASE_ENDED,.stored = true,.wrote = true};

	standing.level = GetCurrentTransactionNestLevel();
	note(handle, standing);
}

/*
 * Operations change the database: not on a standby or in a read-only
 * transaction, and not inside code that some privileged user runs unwittingly
 * (an index expression, a materialized view).
 */
void
operation_require_writable(const char *function)
{
	PreventCommandDuringRecovery(function);
	PreventCommandIfReadOnly(function);
	PreventCommandIfParallelMode(function);
	if (InSecurityRestrictedOperation())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("cannot execute %s within security-restricted operation", function)));
}

/* start + duration, where that is still a time. */
static TimestampTz
time_after(TimestampTz start, int64 duration, const char *name)
{
	TimestampTz result;

	if (pg_add_s64_overflow(start, duration, &result) || !IS_VALID_TIMESTAMP(result))
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_BAD_ARGUMENT),
				 errmsg("%s is too long", name)));
	return result;
}

int64
operation_default_retention(void)
{
	return (int64) setting_retention * USECS_PER_SEC;
}

/* A lease outlives the expiry of its record. */
static bool
is_absent(const Record *found, TimestampTz now)
{
	return found->expires_at <= now &&
		!(found->status == STATUS_PENDING && found->lease_expires_at > now);
}

static void
check_fingerprint(const OperationName *name, const bytea *stored, const bytea *given)
{
	if (stored == NULL || given == NULL ||
		(VARSIZE_ANY_EXHDR(stored) == VARSIZE_ANY_EXHDR(given) &&
		 memcmp(VARDATA_ANY(stored), VARDATA_ANY(given), VARSIZE_ANY_EXHDR(given)) == 0))
		return;
	stats_count(COUNT_MISMATCHES);
	ereport(ERROR,
			(errcode(ERRCODE_IDEM_MISMATCH),
			 errmsg("operation \"%s\" of scope \"%s\" was begun before with a different request",
					text_to_cstring(name->key), text_to_cstring(name->scope)),
			 errhint("Use a new key for a new request, and send the same request with the same key.")));
}

/* What a begin may do about a record that is not absent. */
static Verdict
judge(const Record *found, int32 max_attempts, TimestampTz now)
{
	switch (found->status)
	{
		case STATUS_COMPLETED:
			return VERDICT_REPLAY;
		case STATUS_FAILED:
			if (found->retry_at == NO_TIME || found->retry_at > now)
				return VERDICT_REPLAY;
			break;
		case STATUS_PENDING:
			if (found->lease_expires_at > now)
				return VERDICT_IN_PROGRESS;
			break;
	}
	return max_attempts > 0 && found->attempt >= max_attempts ?
		VERDICT_EXHAUSTED : VERDICT_ACQUIRE;
}

static void
set_retry_after(Answer *answer, TimestampTz due, TimestampTz now)
{
	answer->has_retry_after = due != NO_TIME;
	answer->retry_after = answer->has_retry_after ? Max(due - now, 0) : 0;
}

/* The stored end of an operation. */
static Answer
replay(const Record *found, TimestampTz now)
{
	Answer		answer = {.record = *found,.replayed = true};

	answer.outcome = found->status == STATUS_COMPLETED ? OUTCOME_COMPLETED : OUTCOME_FAILED;
	set_retry_after(&answer, found->retry_at, now);
	return answer;
}

/*
 * Somebody else owns the operation.  Of a lease the caller is told how long
 * it runs, but not its fence: the fence is what makes an owner.
 */
static Answer
in_progress(const OperationName *name, const Record *found, TimestampTz now)
{
	Answer		answer = {.outcome = OUTCOME_IN_PROGRESS};

	if (found == NULL)
	{
		answer.record = (Record)
		{
			.name = *name,.lease_expires_at = NO_TIME,.created_at = NO_TIME,
				.updated_at = NO_TIME,.expires_at = NO_TIME
		};
		return answer;
	}
	answer.record = *found;
	answer.record.fence = NO_FENCE;
	memset(&answer.record.response, 0, sizeof(Response));
	set_retry_after(&answer, found->lease_expires_at, now);
	return answer;
}

/* What this transaction itself has begun. */
static Answer
in_progress_here(const Handle *handle, TimestampTz now)
{
	Record		own = {
		.name = *handle->name,
		.status = STATUS_PENDING,
		.attempt = handle->standing.attempt,
		.lease_expires_at = handle->standing.lease_expires_at,
		.created_at = handle->standing.created_at,
		.updated_at = handle->standing.created_at,
		.expires_at = NO_TIME
	};

	return in_progress(handle->name, &own, now);
}

/*
 * The record that an acquired operation has from now on.  It succeeds the one
 * found, if that still counts.
 */
static Record
next_attempt(const BeginRequest *request, const Record *before, TimestampTz now)
{
	Record		record = {
		.name = request->name,
		.status = STATUS_PENDING,
		.attempt = 1,
		.request_hash = request->request_hash,
		.lease_expires_at = NO_TIME,
		.retry_at = NO_TIME,
		.created_at = now,
		.updated_at = now,
		.expires_at = NO_TIME
	};

	if (before != NULL)
	{
		record.created_at = before->created_at;
		if (record.request_hash == NULL)
			record.request_hash = before->request_hash;
		if (pg_add_s32_overflow(before->attempt, 1, &record.attempt))
			record.attempt = before->attempt;
	}
	return record;
}

static void
write_record(const Handle *handle, const Record *record, bool stored)
{
	if (stored)
		store_put(handle->catalog, record);
	else
		store_insert(handle->catalog, record);
}

/* A lease is written at once, and durable when COMMIT returns. */
static void
write_lease(const Handle *handle, const BeginRequest *request, const Record *found, Record *record)
{
	int64		retention = operation_default_retention();

	record->fence = store_next_fence(handle->catalog, found ? found->fence : NO_FENCE);
	record->lease_expires_at = time_after(record->updated_at, request->lease, "lease");
	record->expires_at = Max(time_after(record->updated_at, retention, "idempotency.retention"),
							 record->lease_expires_at);
	write_record(handle, record, found != NULL);
	ForceSyncCommit();
}

/*
 * The caller owns the operation, whose lock is held.  Nothing is written for a
 * transaction-bound one.
 */
static Answer
acquired(Handle *handle, const BeginRequest *request, const Record *found, TimestampTz now)
{
	const Record *before = found && !is_absent(found, now) ? found : NULL;
	Answer		answer = {
		.outcome = OUTCOME_ACQUIRED,
		.taken_over = before != NULL && before->status == STATUS_PENDING,
		.record = next_attempt(request, before, now)
	};
	Standing	standing = {
		.phase = PHASE_PENDING,
		.level = GetCurrentTransactionNestLevel(),
		.stored = found != NULL,
		.wrote = handle->standing.wrote
	};

	if (request->lease > 0)
	{
		write_lease(handle, request, found, &answer.record);
		standing.stored = standing.wrote = true;
	}
	standing.attempt = answer.record.attempt;
	standing.fence = answer.record.fence;
	standing.request_hash = answer.record.request_hash;
	standing.lease_expires_at = answer.record.lease_expires_at;
	standing.created_at = answer.record.created_at;
	note(handle, standing);
	return answer;
}

static void
push_string(JsonbParseState **state, JsonbIteratorToken token, const char *string)
{
	JsonbValue	value = {.type = jbvString};

	value.val.string.val = unconstify(char *, string);
	value.val.string.len = strlen(string);
	(void) pushJsonbValue(state, token, &value);
}

/* {"reason": "attempts exhausted", "attempts": N} */
static Response
exhausted_response(int32 attempts)
{
	JsonbParseState *state = NULL;
	Response	response = {0};
	JsonbValue	count = {.type = jbvNumeric};

	(void) pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	push_string(&state, WJB_KEY, "reason");
	push_string(&state, WJB_VALUE, "attempts exhausted");
	push_string(&state, WJB_KEY, "attempts");
	count.val.numeric = int64_to_numeric(attempts);
	(void) pushJsonbValue(&state, WJB_VALUE, &count);
	response.payload = (struct varlena *)
		JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_OBJECT, NULL));
	return response;
}

/* The attempt would be one too many: the operation has failed for good. */
static Answer
exhausted(Handle *handle, const Record *found, TimestampTz now)
{
	Record		record = *found;

	record.status = STATUS_FAILED;
	record.lease_expires_at = NO_TIME;
	record.retry_at = NO_TIME;
	record.response = exhausted_response(found->attempt);
	record.updated_at = now;
	record.expires_at = time_after(now, operation_default_retention(), "idempotency.retention");
	store_put(handle->catalog, &record);
	ForceSyncCommit();
	note_end(handle);
	return replay(&record, now);
}

/*
 * One look at the store.  Where the lock is held, this decides; without it
 * only an end can be told, or that the operation is in progress.
 */
static Answer
look(Handle *handle, const BeginRequest *request, bool locked)
{
	Record		record;
	bool		exists = store_find(handle->catalog, &request->name, &record);
	const Record *found = exists ? &record : NULL;
	TimestampTz now = GetCurrentTimestamp();
	Verdict		verdict = VERDICT_ACQUIRE;

	if (found != NULL && !is_absent(found, now))
	{
		check_fingerprint(&request->name, found->request_hash, request->request_hash);
		verdict = judge(found, request->max_attempts, now);
	}

	switch (verdict)
	{
		case VERDICT_REPLAY:
			return replay(found, now);
		case VERDICT_IN_PROGRESS:
			return in_progress(&request->name, found, now);
		case VERDICT_EXHAUSTED:
			if (locked)
				return exhausted(handle, found, now);
			break;
		case VERDICT_ACQUIRE:
			if (locked)
				return acquired(handle, request, found, now);
			break;
	}
	/* an open transaction has it, and has written nothing yet */
	return in_progress(&request->name, NULL, now);
}

/* Has the answer left this transaction with something to hold the lock for? */
static bool
keeps_lock(const Handle *handle, const Standing *before)
{
	return handle->standing.phase != before->phase || handle->standing.wrote != before->wrote;
}

/* One try: with the lock if it can be had in that time, else without. */
static Answer
attempt(Handle *handle, const BeginRequest *request, int64 lock_wait, bool *locked)
{
	Standing	before = handle->standing;
	Answer		answer;

	*locked = lock_wait > 0 ?
		lock_acquire_within(&handle->lock, lock_wait) : lock_acquire_now(&handle->lock);
	answer = look(handle, request, *locked);
	/* whoever only replays never keeps others waiting */
	if (*locked && !keeps_lock(handle, &before))
		lock_release(&handle->lock);
	return answer;
}

/*
 * Waits for whoever owns the operation now, tries again, and so on until it
 * has ended, is ours, or the time is up.  An open transaction is waited for in
 * the lock manager, a lease until it ends.
 */
static Answer
attempt_until(Handle *handle, const BeginRequest *request, bool locked)
{
	Deadline	deadline = deadline_after(request->wait);
	LeaseWait	lease_wait = lease_wait_prepare(handle->id);
	int64		left = request->wait;
	Answer		answer;

	for (;;)
	{
		answer = attempt(handle, request, locked ? 0 : left, &locked);
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
		[OUTCOME_FAILED] = COUNT_REPLAYED_FAILED
	};

	stats_count(counters[answer->outcome]);
	if (answer->taken_over)
		stats_count(COUNT_TAKEN_OVER);
}

static Answer
begin(const BeginRequest *request)
{
	Handle		handle = open_operation(&request->name);
	Answer		answer;
	bool		locked;

	if (handle.standing.phase == PHASE_PENDING)
	{
		check_fingerprint(&request->name, handle.standing.request_hash, request->request_hash);
		return in_progress_here(&handle, GetCurrentTimestamp());
	}
	transaction_reserve(1);
	answer = attempt(&handle, request, 0, &locked);
	if (answer.outcome == OUTCOME_IN_PROGRESS && request->wait > 0)
		answer = attempt_until(&handle, request, locked);
	return answer;
}

/* Acquire an operation, or be told how it ended or that it is in progress. */
Answer
operation_begin(const BeginRequest *request)
{
	Answer		answer = begin(request);

	count_answer(&answer);
	return answer;
}

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

void
operation_check_response(const Response *response)
{
	int64		size = part_size(response->payload) + part_size(response->headers) +
		part_size(response->body);

	if (size > setting_max_response_size)
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_TOO_LARGE),
				 errmsg("response of " INT64_FORMAT " bytes is larger than idempotency.max_response_size",
						size),
				 errdetail("The limit is %d bytes for payload, headers and body together.",
						   setting_max_response_size),
				 errhint("Store the response elsewhere and a reference to it here, or raise the limit.")));
}

/* Takes the lock of an operation that is ended by its fence. */
static void
lock_by_fence(Handle *handle, int64 fence)
{
	/* this transaction may have taken it over without a lease */
	if (handle->standing.phase == PHASE_PENDING && handle->standing.fence != fence)
		lease_lost(handle->name);
	transaction_reserve(1);
	lock_acquire(&handle->lock);
}

/* The fence that an end without one means: that of this transaction's begin. */
static int64
owned_fence(const Handle *handle)
{
	if (handle->standing.phase != PHASE_PENDING)
		not_owned(handle->name);
	return handle->standing.fence;
}

/* Makes a record the ended one that was asked for. */
static void
set_end(Record *record, const EndRequest *request)
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
	record->expires_at = time_after(from, request->retention, "retention");
}

/* The one row that a transaction-bound operation costs. */
static Record
end_owned(Handle *handle, const EndRequest *request)
{
	Record		record = {
		.name = request->name,
		.attempt = handle->standing.attempt,
		.request_hash = handle->standing.request_hash,
		.fence = NO_FENCE,
		.created_at = handle->standing.created_at
	};

	set_end(&record, request);
	write_record(handle, &record, handle->standing.stored);
	note_end(handle);
	return record;
}

/* A leased operation ends if the fence is current; to repeat that is no error. */
static Record
end_leased(Handle *handle, const EndRequest *request, int64 fence)
{
	Record		record;

	lock_by_fence(handle, fence);
	if (!store_find(handle->catalog, handle->name, &record) || record.fence != fence)
		lease_lost(handle->name);
	if (record.status == STATUS_PENDING)
	{
		set_end(&record, request);
		store_put(handle->catalog, &record);
		ForceSyncCommit();
		transaction_wake_at_commit(handle->id);
		note_end(handle);
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
	Handle		handle = open_operation(&request->name);
	int64		fence = request->fence;
	Record		record;
	Answer		answer;

	if (fence == NO_FENCE)
		fence = owned_fence(&handle);
	record = fence == NO_FENCE ?
		end_owned(&handle, request) : end_leased(&handle, request, fence);
	stats_count(request->status == STATUS_COMPLETED ? COUNT_COMPLETED : COUNT_FAILED);
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
	Standing	released = {.phase = PHASE_NONE,.wrote = before.wrote};

	if (before.stored)
	{
		store_delete(handle->catalog, handle->name);
		released.wrote = true;
	}
	released.level = GetCurrentTransactionNestLevel();
	note(handle, released);
	if (!released.wrote && before.level == released.level)
		lock_release(&handle->lock);
}

static bool
release_leased(Handle *handle, int64 fence)
{
	Standing	released = {.phase = PHASE_NONE,.wrote = true};
	Record		record;

	if (handle->standing.phase == PHASE_PENDING && handle->standing.fence != fence)
		return false;
	lock_by_fence(handle, fence);
	if (!store_find(handle->catalog, handle->name, &record) ||
		record.fence != fence || record.status != STATUS_PENDING)
	{
		lock_release(&handle->lock);
		return false;
	}
	store_delete(handle->catalog, handle->name);
	ForceSyncCommit();
	transaction_wake_at_commit(handle->id);
	released.level = GetCurrentTransactionNestLevel();
	note(handle, released);
	return true;
}

/* Give an operation up as if never begun. */
bool
operation_release(const OperationName *name, int64 fence)
{
	Handle		handle = open_operation(name);

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
	Handle		handle = open_operation(name);
	Standing	standing = handle.standing;
	Record		record;

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
		record.fence != fence || record.status != STATUS_PENDING)
		lease_lost(name);

	record.updated_at = GetCurrentTimestamp();
	record.lease_expires_at = time_after(record.updated_at, lease, "lease");
	record.expires_at = Max(record.expires_at, record.lease_expires_at);
	store_put(handle.catalog, &record);
	ForceSyncCommit();
	standing.wrote = true;
	standing.lease_expires_at = record.lease_expires_at;
	note(&handle, standing);
	return record.lease_expires_at;
}

/* What a record says to somebody who does not want to own the operation. */
static Answer
tell(const OperationName *name, const Record *found, TimestampTz now)
{
	return found->status == STATUS_PENDING ?
		in_progress(name, found, now) : replay(found, now);
}

/* What is known of an operation; false where nothing is. */
bool
operation_lookup(const OperationName *name, Answer *answer)
{
	const Catalog *catalog = catalog_open(AccessShareLock);
	Handle		handle = {.catalog = catalog,.name = name};
	TimestampTz now;
	Record		record;
	bool		exists;

	handle.standing = transaction_standing(lock_id(name, catalog->lock_seed), name);
	exists = store_peek(catalog, name, &record);
	now = GetCurrentTimestamp();
	if (handle.standing.phase == PHASE_PENDING)
		*answer = in_progress_here(&handle, now);
	else if (exists && !is_absent(&record, now))
		*answer = tell(name, &record, now);
	else
		return false;
	return true;
}
