/*
 * idempotency.h
 *		The words that every file shares: the name of an operation, its record,
 *		its outcome, and the error codes.
 */
#ifndef IDEMPOTENCY_H
#define IDEMPOTENCY_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "storage/itemptr.h"

#define EXTENSION_NAME "idempotency"
/* of the library, as META.json has it */
#define LIBRARY_VERSION "1.1.0"

/* limits of the contract, in characters and bytes */
#define MAX_NAME_CHARACTERS 255
#define FINGERPRINT_BYTES 32

/* The three digits are the HTTP status that fits. */
#define ERRCODE_IDEM_BAD_ARGUMENT MAKE_SQLSTATE('I', 'D', '4', '0', '0')
#define ERRCODE_IDEM_FORBIDDEN MAKE_SQLSTATE('I', 'D', '4', '0', '3')
#define ERRCODE_IDEM_NOT_OWNED MAKE_SQLSTATE('I', 'D', '4', '0', '4')
#define ERRCODE_IDEM_LEASE_LOST MAKE_SQLSTATE('I', 'D', '4', '0', '9')
#define ERRCODE_IDEM_TOO_LARGE MAKE_SQLSTATE('I', 'D', '4', '1', '3')
#define ERRCODE_IDEM_MISDIRECTED MAKE_SQLSTATE('I', 'D', '4', '2', '1')
#define ERRCODE_IDEM_MISMATCH MAKE_SQLSTATE('I', 'D', '4', '2', '2')
#define ERRCODE_IDEM_UNFINISHED MAKE_SQLSTATE('I', 'D', '4', '2', '8')

/* in the order of the labels of the enum types */
typedef enum Status
{
	STATUS_PENDING,
	STATUS_COMPLETED,
	STATUS_FAILED
} Status;
#define STATUS_LABELS 3

typedef enum Outcome
{
	OUTCOME_ACQUIRED,
	OUTCOME_IN_PROGRESS,
	OUTCOME_COMPLETED,
	OUTCOME_FAILED,
	OUTCOME_MISMATCH
} Outcome;
#define OUTCOME_LABELS 5

/* names an operation */
typedef struct OperationName
{
	text	   *scope;
	text	   *key;
} OperationName;

/* the response that idem_complete or idem_fail stores; NULL is SQL NULL */
typedef struct Response
{
	bool		has_code;
	int32		code;
	struct varlena *headers;	/* jsonb */
	struct varlena *payload;	/* jsonb */
	struct varlena *body;		/* bytea */
	bytea	   *sealed;			/* all three, encrypted; they are NULL then */
	text	   *seal_key;		/* name of the key */
} Response;

/* the stored form of the fingerprint of a request */
typedef struct Digest
{
	bytea	   *bytes;			/* NULL: none was given */
	text	   *key;			/* name of the key of an HMAC; NULL: the fingerprint itself */
} Digest;

/* absent values of a record: no column of the store can have these */
#define NO_TIME (DT_NOBEGIN + 1)
#define NO_FENCE ((int64) 0)

/* a row of the store */
typedef struct Record
{
	OperationName name;
	Status		status;
	int32		attempt;
	Digest		request;
	int64		fence;			/* NO_FENCE: transaction-bound */
	TimestampTz lease_expires_at;	/* NO_TIME: no lease */
	TimestampTz retry_at;		/* NO_TIME: never again */
	Response	response;
	TimestampTz created_at;
	TimestampTz updated_at;
	TimestampTz expires_at;
} Record;

#endif							/* IDEMPOTENCY_H */
