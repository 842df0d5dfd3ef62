/*
 * batch.c
 *		Many operations of one scope in one call.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/tuplestore.h"

#include "answer.h"
#include "arguments.h"
#include "compat.h"
#include "fingerprint.h"
#include "handle.h"
#include "operation.h"
#include "transaction.h"

SQL_FUNCTION(idem_begin_batch);
SQL_FUNCTION(idem_complete_batch);

/* the names of a batch, and a jsonb for each, or none at all */
typedef struct Batch
{
	int			count;
	OperationName *names;
	Datum	   *values;			/* NULL: none were given */
	bool	   *nulls;
} Batch;

static void
values_argument(FunctionCallInfo fcinfo, int argument, const char *name, Batch *batch)
{
	int			count;

	if (PG_ARGISNULL(argument))
		return;
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(argument), JSONBOID, -1, false, TYPALIGN_INT,
					  &batch->values, &batch->nulls, &count);
	if (count != batch->count)
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_BAD_ARGUMENT),
				 errmsg("%s must have as many elements as keys", name),
				 errdetail("There are %d, and %d keys.", count, batch->count)));
}

static Batch
batch_arguments(FunctionCallInfo fcinfo, int keys, int scope, int values, const char *values_name)
{
	Batch		batch = {0};
	text	  **texts = text_array(fcinfo, keys, "keys", "key", &batch.count);
	text	   *scope_text = scope_argument(fcinfo, scope);

	batch.names = palloc(batch.count * sizeof(OperationName));
	for (int i = 0; i < batch.count; i++)
		batch.names[i] = (OperationName)
	{
		.scope = scope_text,.key = texts[i]
	};
	values_argument(fcinfo, values, values_name, &batch);
	return batch;
}

/* idem_begin_batch(keys, scope, requests) */
Datum
idem_begin_batch(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	Batch		batch;

	require_writable("idem_begin_batch()");
	batch = batch_arguments(fcinfo, 0, 1, 2, "requests");
	/* refuse the whole of a batch that is too large before it takes a lock */
	transaction_reserve(batch.count);
	InitMaterializedSRF(fcinfo, MAT_SRF_BLESS);
	for (int i = 0; i < batch.count; i++)
	{
		BeginRequest request = {.name = batch.names[i],.max_attempts = NOT_ASKED};
		Answer		answer;

		CHECK_FOR_INTERRUPTS();
		if (batch.values != NULL && !batch.nulls[i])
			request.fingerprint = fingerprint_of(DatumGetJsonbP(batch.values[i]));
		answer = operation_begin(&request);
		answer_to_tuplestore(&answer, result->setResult, result->setDesc);
	}
	return (Datum) 0;
}

/* idem_complete_batch(keys, responses, scope) */
Datum
idem_complete_batch(PG_FUNCTION_ARGS)
{
	Batch		batch;

	require_writable("idem_complete_batch()");
	batch = batch_arguments(fcinfo, 0, 2, 1, "responses");
	for (int i = 0; i < batch.count; i++)
	{
		EndRequest	request = {
			.name = batch.names[i],
			.status = STATUS_COMPLETED
		};

		CHECK_FOR_INTERRUPTS();
		if (batch.values != NULL && !batch.nulls[i])
			request.response.payload = PG_DETOAST_DATUM_PACKED(batch.values[i]);
		(void) operation_end(&request);
	}
	PG_RETURN_INT64(batch.count);
}
