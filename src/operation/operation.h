/*
 * operation.h
 *		The life of an operation: requests and answers.
 *		begin.c, end.c, lease.c, release.c and operation.c do it.
 *
 * They rely on arguments.c: names, durations and fences have been checked, and
 * the function may run here.  Their callers need not clean up after an error.
 */
#ifndef IDEM_OPERATION_H
#define IDEM_OPERATION_H

#include "postgres.h"

#include "base/idempotency.h"
#include "schema/catalog.h"
#include "store/failed_operations.h"

#define NOT_ASKED (-1)

/* the arguments of idem_begin */
typedef struct BeginRequest
{
	OperationName name;
	bytea	   *fingerprint;	/* NULL: none */
	int64		lease;			/* microseconds; 0: transaction-bound */
	int64		wait;			/* microseconds */
	int32		max_attempts;	/* 0: no limit; NOT_ASKED: the policy or the setting decides */
	bool		answers_mismatch; /* answers MISMATCH, where others get ID422 */
} BeginRequest;

/* how an operation is to end */
typedef struct EndRequest
{
	OperationName name;
	int64		fence;			/* NO_FENCE: what this transaction began */
	Status		status;			/* COMPLETED or FAILED */
	Response	response;
	bool		retryable;
	int64		retry_after;	/* microseconds */
	int64		retention;		/* microseconds; 0: the policy or the setting decides */
	bool		cut_to_size;	/* an error that idem_call has caught */
} EndRequest;

/* the answer to a caller */
typedef struct Answer
{
	const Catalog *catalog;		/* the objects that the operation was found in */
	Outcome		outcome;
	bool		taken_over;
	bool		replayed;
	bool		has_retry_after;
	int64		retry_after;	/* microseconds */
	Record		record;
} Answer;

extern Answer operation_begin(const BeginRequest *request);
extern Answer operation_end(const EndRequest *request);
extern bool operation_release(const OperationName *name, int64 fence);
extern bool operation_forget(const OperationName *name);
extern int64 operation_forget_failed(const ForgetRequest *request);
extern TimestampTz operation_extend(const OperationName *name, int64 fence, int64 lease);
extern TimestampTz operation_progress(const OperationName *name, int64 fence, int64 lease,
									  struct varlena *note);
extern int32 operation_lost_attempts(const OperationName *name);
extern bool operation_lookup(const OperationName *name, Answer *answer);

#endif							/* IDEM_OPERATION_H */
