/*
 * operation.h
 *		The life of an operation: what may be asked, and the answer.
 *		begin.c and end.c do it.
 */
#ifndef IDEM_OPERATION_H
#define IDEM_OPERATION_H

#include "postgres.h"

#include "catalog.h"
#include "idempotency.h"

/* what idem_begin was asked */
typedef struct BeginRequest
{
	OperationName name;
	bytea	   *request_hash;	/* NULL: no fingerprint */
	int64		lease;			/* microseconds; 0: transaction-bound */
	int64		wait;			/* microseconds */
	int32		max_attempts;	/* 0: no limit */
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
	int64		retention;		/* microseconds */
} EndRequest;

/* what a caller is told of an operation */
typedef struct Answer
{
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
extern TimestampTz operation_extend(const OperationName *name, int64 fence, int64 lease);
extern bool operation_lookup(const OperationName *name, Answer *answer);
extern void operation_check_response(const Response *response);

#endif							/* IDEM_OPERATION_H */
