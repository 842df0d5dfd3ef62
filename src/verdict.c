/*
 * verdict.c
 *		What a record means to a caller.
 *
 *		(absent) --begin--> owned by the transaction --end--> COMPLETED, FAILED
 *		(absent) --begin with a lease--> PENDING --end--> COMPLETED, FAILED
 *		PENDING, lease run out --begin--> taken over: the next attempt
 *		FAILED, retryable and due --begin--> the next attempt
 *		any record past its expiry counts as absent
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "compat.h"
#include "verdict.h"

/* A lease outlives the expiry of its record. */
bool
is_absent(const Record *found, TimestampTz now)
{
	return found->expires_at <= now &&
		!(found->status == STATUS_PENDING && found->lease_expires_at > now);
}

/* What a begin may do about a record that is not absent. */
Verdict
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
	answer->retry_after = due > now ? due - now : 0;
}

/* The stored end of an operation. */
Answer
replay(const Record *found, TimestampTz now)
{
	Answer		answer = {.record = *found,.replayed = true};

	answer.outcome = found->status == STATUS_COMPLETED ? OUTCOME_COMPLETED : OUTCOME_FAILED;
	set_retry_after(&answer, found->retry_at, now);
	return answer;
}

/* An answer with nothing of what is stored. */
Answer
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
