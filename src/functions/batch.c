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
#include "utils/memutils.h"
#include "utils/tuplestore.h"

#include "base/compat.h"
#include "functions/answer.h"
#include "functions/arguments.h"
#include "operation/operation.h"
#include "seal/fingerprint.h"

SQL_FUNCTION(idem_begin_batch);
SQL_FUNCTION(idem_complete_batch);

/* the names of a batch */
typedef struct Batch
{
	int			count;
	OperationName *names;
} Batch;

/* a value for each name, or none at all */
typedef struct Values
{
	Datum	   *values;			/* NULL: none were given */
	bool	   *nulls;
} Values;

static Values
values_argument(FunctionCallInfo fcinfo, int argument, Oid type, const char *name, const Batch *batch)
{
	Values		given = {0};
	int			count;

	if (PG_ARGISNULL(argument))
		return given;
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(argument), type, -1, false, TYPALIGN_INT,
					  &given.values, &given.nulls, &count);
	if (count != batch->count)
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_BAD_ARGUMENT),
				 errmsg("%s must have as many elements as keys", name),
				 errdetail("There are %d, and %d keys.", count, batch->count)));
	return given;
}

static bool
has_value(const Values *given, int i)
{
	return given->values != NULL && !given->nulls[i];
}

static Batch
batch_arguments(FunctionCallInfo fcinfo, int keys, int scope)
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
	return batch;
}

/* The fingerprints of requests, or the hashes that the caller gave; NULL: neither. */
static bytea **
fingerprints_arguments(FunctionCallInfo fcinfo, int requests, int request_hashes, const Batch *batch)
{
	Values		whole = values_argument(fcinfo, requests, JSONBOID, "requests", batch);
	Values		hashes = values_argument(fcinfo, request_hashes, BYTEAOID, "request_hashes", batch);
	bytea	  **fingerprints = palloc0(batch->count * sizeof(bytea *));

	for (int i = 0; i < batch->count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (has_value(&whole, i) && has_value(&hashes, i))
			refuse_request_and_hash();
		if (has_value(&hashes, i))
			fingerprints[i] = checked_hash(hashes.values[i]);
		else if (has_value(&whole, i))
			fingerprints[i] = fingerprint_of(DatumGetJsonbP(whole.values[i]));
	}
	return fingerprints;
}

/* Each key has a memory of its own: to seal or open a response takes several times its size. */
static MemoryContext
memory_of_key(void)
{
	return AllocSetContextCreate(CurrentMemoryContext, "idempotency batch", ALLOCSET_DEFAULT_SIZES);
}

static void
begin_key(const BeginRequest *request, ReturnSetInfo *result)
{
	Answer		answer = operation_begin(request);

	answer_to_tuplestore(&answer, result->setResult, result->setDesc);
}

static void
complete_key(const OperationName *name, const Values *responses, int i)
{
	EndRequest	request = {
		.name = *name,
		.status = STATUS_COMPLETED
	};

	if (has_value(responses, i))
		request.response.payload = PG_DETOAST_DATUM_PACKED(responses->values[i]);
	(void) operation_end(&request);
}

/* idem_begin_batch(keys, requests, scope, request_hashes, max_attempts) */
Datum
idem_begin_batch(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	Batch		batch;
	bytea	  **fingerprints;
	int32		max_attempts;
	MemoryContext key = memory_of_key();
	MemoryContext caller = CurrentMemoryContext;

	require_writable("idem_begin_batch()");
	batch = batch_arguments(fcinfo, 0, 2);
	fingerprints = fingerprints_arguments(fcinfo, 1, 3, &batch);
	max_attempts = optional_count(fcinfo, 4, "max_attempts", NOT_ASKED);
	InitMaterializedSRF(fcinfo, MAT_SRF_BLESS);
	for (int i = 0; i < batch.count; i++)
	{
		BeginRequest request = {
			.name = batch.names[i],
			.fingerprint = fingerprints[i],
			.max_attempts = max_attempts,
			.answers_mismatch = true
		};

		CHECK_FOR_INTERRUPTS();
		MemoryContextSwitchTo(key);
		begin_key(&request, result);
		MemoryContextSwitchTo(caller);
		MemoryContextReset(key);
	}
	return (Datum) 0;
}

/* idem_complete_batch(keys, responses, scope) */
Datum
idem_complete_batch(PG_FUNCTION_ARGS)
{
	Batch		batch;
	Values		responses;
	MemoryContext key = memory_of_key();
	MemoryContext caller = CurrentMemoryContext;

	require_writable("idem_complete_batch()");
	batch = batch_arguments(fcinfo, 0, 2);
	responses = values_argument(fcinfo, 1, JSONBOID, "responses", &batch);
	for (int i = 0; i < batch.count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		MemoryContextSwitchTo(key);
		complete_key(&batch.names[i], &responses, i);
		MemoryContextSwitchTo(caller);
		MemoryContextReset(key);
	}
	PG_RETURN_INT64(batch.count);
}
