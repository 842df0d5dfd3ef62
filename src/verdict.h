/*
 * verdict.h
 *		What a record means to a caller.
 */
#ifndef IDEM_VERDICT_H
#define IDEM_VERDICT_H

#include "postgres.h"

#include "idempotency.h"
#include "operation.h"

/* what a begin may do about a record */
typedef enum Verdict
{
	VERDICT_ACQUIRE,
	VERDICT_EXHAUSTED,			/* acquire, but for max_attempts */
	VERDICT_IN_PROGRESS,		/* somebody's lease runs */
	VERDICT_REPLAY
} Verdict;

extern bool is_absent(const Record *found, TimestampTz now);
extern Verdict judge(const Record *found, int32 max_attempts, TimestampTz now);
extern Answer bare_answer(Outcome outcome, const OperationName *name);
extern Answer replay(const Record *found, TimestampTz now);
extern Answer in_progress(const OperationName *name, const Record *found, TimestampTz now);

#endif							/* IDEM_VERDICT_H */
