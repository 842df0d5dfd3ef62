/*
 * answer.c
 *		An answer as a value of type idem_operation, and back.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/typcache.h"

#include "base/compat.h"
#include "functions/answer.h"
#include "functions/arguments.h"
#include "schema/catalog.h"

/* in the order of CREATE TYPE idem_operation */
typedef enum AnswerColumn
{
	ANSWER_OUTCOME,
	ANSWER_SCOPE,
	ANSWER_IDEMPOTENCY_KEY,
	ANSWER_ATTEMPT,
	ANSWER_TAKEN_OVER,
	ANSWER_REPLAYED,
	ANSWER_FENCE,
	ANSWER_LEASE_EXPIRES_AT,
	ANSWER_RETRY_AFTER,
	ANSWER_RESPONSE_CODE,
	ANSWER_RESPONSE_HEADERS,
	ANSWER_RESPONSE_PAYLOAD,
	ANSWER_RESPONSE_BODY,
	ANSWER_CREATED_AT,
	ANSWER_UPDATED_AT,
	ANSWER_EXPIRES_AT
} AnswerColumn;
#define ANSWER_COLUMNS 16

typedef struct Columns
{
	Datum		values[ANSWER_COLUMNS];
	bool		nulls[ANSWER_COLUMNS];
	Interval	retry_after;	/* what a value points to */
} Columns;

static void
set_column(Columns *columns, AnswerColumn column, Datum value, bool is_null)
{
	columns->values[column] = value;
	columns->nulls[column] = is_null;
}

static void
set_time_column(Columns *columns, AnswerColumn column, TimestampTz time)
{
	set_column(columns, column, TimestampTzGetDatum(time), time == NO_TIME);
}

static void
set_pointer_column(Columns *columns, AnswerColumn column, const void *pointer)
{
	set_column(columns, column, PointerGetDatum(pointer), pointer == NULL);
}

static void
set_operation_columns(Columns *columns, const Answer *answer)
{
	const Record *record = &answer->record;

	columns->retry_after = (Interval) {.time = answer->retry_after};
	set_column(columns, ANSWER_OUTCOME, ObjectIdGetDatum(answer->catalog->outcome_labels[answer->outcome]), false);
	set_pointer_column(columns, ANSWER_SCOPE, record->name.scope);
	set_pointer_column(columns, ANSWER_IDEMPOTENCY_KEY, record->name.key);
	set_column(columns, ANSWER_ATTEMPT, Int32GetDatum(record->attempt), record->attempt == 0);
	set_column(columns, ANSWER_TAKEN_OVER, BoolGetDatum(answer->taken_over), false);
	set_column(columns, ANSWER_REPLAYED, BoolGetDatum(answer->replayed), false);
	set_column(columns, ANSWER_FENCE, Int64GetDatum(record->fence), record->fence == NO_FENCE);
	set_time_column(columns, ANSWER_LEASE_EXPIRES_AT, record->lease_expires_at);
	set_column(columns, ANSWER_RETRY_AFTER, IntervalPGetDatum(&columns->retry_after), !answer->has_retry_after);
	set_time_column(columns, ANSWER_CREATED_AT, record->created_at);
	set_time_column(columns, ANSWER_UPDATED_AT, record->updated_at);
	set_time_column(columns, ANSWER_EXPIRES_AT, record->expires_at);
}

static void
set_response_columns(Columns *columns, const Response *response)
{
	set_column(columns, ANSWER_RESPONSE_CODE, Int32GetDatum(response->code), !response->has_code);
	set_pointer_column(columns, ANSWER_RESPONSE_HEADERS, response->headers);
	set_pointer_column(columns, ANSWER_RESPONSE_PAYLOAD, response->payload);
	set_pointer_column(columns, ANSWER_RESPONSE_BODY, response->body);
}

/* InvalidOid is idem_outcome. */
static bool
is_as_made(TupleDesc descriptor, const Catalog *catalog)
{
	static const Oid types[ANSWER_COLUMNS] = {
		InvalidOid, TEXTOID, TEXTOID, INT4OID, BOOLOID, BOOLOID, INT8OID, TIMESTAMPTZOID,
		INTERVALOID, INT4OID, JSONBOID, JSONBOID, BYTEAOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID
	};

	if (descriptor->natts != ANSWER_COLUMNS)
		return false;
	for (int i = 0; i < ANSWER_COLUMNS; i++)
	{
		if (TupleDescAttr(descriptor, i)->atttypid != (OidIsValid(types[i]) ? types[i] : catalog->outcome_type))
			return false;
	}
	return true;
}

static void
check_descriptor(TupleDesc descriptor, const Catalog *catalog)
{
	if (!is_as_made(descriptor, catalog))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("type idem_operation has been changed"),
				 errhint("Restore what was changed. DROP EXTENSION would remove all records, and operations would run again.")));
}

/* The columns point into the answer and into themselves. */
static void
fill_columns(Columns *columns, const Answer *answer, TupleDesc descriptor)
{
	check_descriptor(descriptor, answer->catalog);
	set_operation_columns(columns, answer);
	set_response_columns(columns, &answer->record.response);
}

Datum
answer_to_datum(const Answer *answer)
{
	TupleDesc	descriptor = lookup_rowtype_tupdesc(answer->catalog->operation_type, -1);
	Columns		columns;
	Datum		result;

	fill_columns(&columns, answer, descriptor);
	result = HeapTupleGetDatum(heap_form_tuple(descriptor, columns.values, columns.nulls));
	ReleaseTupleDesc(descriptor);
	return result;
}

void
answer_to_tuplestore(const Answer *answer, Tuplestorestate *store, TupleDesc descriptor)
{
	Columns		columns;

	fill_columns(&columns, answer, descriptor);
	tuplestore_putvalues(store, descriptor, columns.values, columns.nulls);
}

/*
 * The name and the fence of an operation that idem_begin answered.  The
 * caller may end it only if the outcome was ACQUIRED.
 */
OperationName
name_of_operation(Datum operation, int64 *fence)
{
	const Catalog *catalog = catalog_known();
	HeapTupleHeader tuple = composite_of_datum(operation);
	TupleDesc	descriptor = lookup_rowtype_tupdesc(catalog->operation_type, -1);
	Datum		outcome;
	Datum		scope;
	Datum		key;
	Datum		number;
	bool		is_null[4];
	OperationName name;

	check_descriptor(descriptor, catalog);
	ReleaseTupleDesc(descriptor);
	outcome = GetAttributeByNum(tuple, ANSWER_OUTCOME + 1, &is_null[0]);
	scope = GetAttributeByNum(tuple, ANSWER_SCOPE + 1, &is_null[1]);
	key = GetAttributeByNum(tuple, ANSWER_IDEMPOTENCY_KEY + 1, &is_null[2]);
	number = GetAttributeByNum(tuple, ANSWER_FENCE + 1, &is_null[3]);
	if (is_null[0] || is_null[1] || is_null[2])
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_BAD_ARGUMENT),
				 errmsg("operation must be what idem_begin returned")));
	name.scope = DatumGetTextPP(scope);
	name.key = DatumGetTextPP(key);
	check_name(name.key, "key", false);
	check_name(name.scope, "scope", true);
	if (DatumGetObjectId(outcome) != catalog->outcome_labels[OUTCOME_ACQUIRED])
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_NOT_OWNED),
				 errmsg("operation \"%s\" of scope \"%s\" was not acquired",
						text_to_cstring(name.key), text_to_cstring(name.scope)),
				 errhint("Go on only if the outcome of idem_begin is ACQUIRED.")));
	*fence = is_null[3] ? NO_FENCE : checked_fence(DatumGetInt64(number));
	return name;
}
