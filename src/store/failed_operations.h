/*
 * failed_operations.h
 *		Failures of a scope, and the table that says who has forgotten some.
 */
#ifndef IDEM_FAILED_OPERATIONS_H
#define IDEM_FAILED_OPERATIONS_H

#include "postgres.h"

#include "schema/catalog.h"

typedef struct FailedOperation
{
	text	   *key;
	TimestampTz failed_at;		/* updated_at of its record */
} FailedOperation;

/* which of them, and why: what an operator says */
typedef struct ForgetRequest
{
	text	   *scope;
	text	   *cause;			/* as idempotency_failures shows it; NULL: any */
	text	   *reason;
	int64		max_rows;
} ForgetRequest;

extern int64 failed_find(const Catalog *catalog, const ForgetRequest *request, FailedOperation **found);
extern void failed_note_forgotten(const Catalog *catalog, const ForgetRequest *request, int64 operations,
								  const char *role);

#endif							/* IDEM_FAILED_OPERATIONS_H */
