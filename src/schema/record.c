/*
 * record.c
 *		A row of the store as values and nulls in the order of its columns.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "schema/record.h"

#define COLUMN_NAME(number, id, name, type, is_set) [COLUMN_##id] = #name,
#define COLUMN_IS_SET(number, id, name, type, is_set) [COLUMN_##id] = (is_set),

static const char *const names[] = {RECORD_COLUMN_LIST(COLUMN_NAME, COLUMN_NAME)};
static const Oid types[] = {RECORD_TYPES};
static const bool is_always_set[] = {RECORD_COLUMN_LIST(COLUMN_IS_SET, COLUMN_IS_SET)};

/* Does the column have this name? */
bool
record_is_column(Form_pg_attribute attribute, RecordColumn column)
{
	return !attribute->attisdropped && strcmp(NameStr(attribute->attname), names[column]) == 0;
}

static bool
is_column(Form_pg_attribute attribute, RecordColumn column, Oid status_type)
{
	return record_is_column(attribute, column) && attribute->attgenerated == '\0' &&
		attribute->atttypid == (OidIsValid(types[column]) ? types[column] : status_type);
}

/* Does the table have these columns, perhaps among others? */
bool
record_fits(TupleDesc descriptor, Oid status_type)
{
	for (int column = 0; column < RECORD_COLUMNS; column++)
	{
		int			i = 0;

		while (i < descriptor->natts && !is_column(TupleDescAttr(descriptor, i), column, status_type))
			i++;
		if (i == descriptor->natts)
			return false;
	}
	return true;
}

/* How many columns does the table have behind these? */
int
record_further(TupleDesc descriptor)
{
	int			further = 0;

	for (int i = RECORD_COLUMNS; i < descriptor->natts; i++)
		further += TupleDescAttr(descriptor, i)->attisdropped ? 0 : 1;
	return further;
}

/* Does the table begin with exactly these columns, in this order, and no further NOT NULL? */
bool
record_matches(TupleDesc descriptor, Oid status_type)
{
	if (descriptor->natts < RECORD_COLUMNS)
		return false;
	for (int i = 0; i < RECORD_COLUMNS; i++)
	{
		Form_pg_attribute attribute = TupleDescAttr(descriptor, i);

		if (!is_column(attribute, i, status_type) || (attribute->attnotnull && !is_always_set[i]))
			return false;
	}
	return true;
}

static void
pointer_to_column(Datum *value, bool *is_null, const void *pointer)
{
	*value = PointerGetDatum(pointer);
	*is_null = pointer == NULL;
}

static void
time_to_column(Datum *value, bool *is_null, TimestampTz time)
{
	*value = TimestampTzGetDatum(time);
	*is_null = time == NO_TIME;
}

/* The columns point into the record. */
void
record_to_columns(const Oid *status_labels, const Record *record, Datum *values, bool *nulls)
{
	memset(nulls, false, RECORD_COLUMNS * sizeof(bool));
	values[COLUMN_CREATED_AT] = TimestampTzGetDatum(record->created_at);
	values[COLUMN_UPDATED_AT] = TimestampTzGetDatum(record->updated_at);
	values[COLUMN_EXPIRES_AT] = TimestampTzGetDatum(record->expires_at);
	time_to_column(&values[COLUMN_LEASE_EXPIRES_AT], &nulls[COLUMN_LEASE_EXPIRES_AT], record->lease_expires_at);
	time_to_column(&values[COLUMN_RETRY_AT], &nulls[COLUMN_RETRY_AT], record->retry_at);
	values[COLUMN_FENCE] = Int64GetDatum(record->fence);
	nulls[COLUMN_FENCE] = record->fence == NO_FENCE;
	values[COLUMN_STATUS] = ObjectIdGetDatum(status_labels[record->status]);
	values[COLUMN_ATTEMPT] = Int32GetDatum(record->attempt);
	values[COLUMN_RESPONSE_CODE] = Int32GetDatum(record->response.code);
	nulls[COLUMN_RESPONSE_CODE] = !record->response.has_code;
	values[COLUMN_SCOPE] = PointerGetDatum(record->name.scope);
	values[COLUMN_IDEMPOTENCY_KEY] = PointerGetDatum(record->name.key);
	pointer_to_column(&values[COLUMN_REQUEST_HASH], &nulls[COLUMN_REQUEST_HASH], record->request.bytes);
	pointer_to_column(&values[COLUMN_RESPONSE_HEADERS], &nulls[COLUMN_RESPONSE_HEADERS], record->response.headers);
	pointer_to_column(&values[COLUMN_RESPONSE_PAYLOAD], &nulls[COLUMN_RESPONSE_PAYLOAD], record->response.payload);
	pointer_to_column(&values[COLUMN_RESPONSE_BODY], &nulls[COLUMN_RESPONSE_BODY], record->response.body);
	pointer_to_column(&values[COLUMN_HASH_KEY], &nulls[COLUMN_HASH_KEY], record->request.key);
	pointer_to_column(&values[COLUMN_SEAL_KEY], &nulls[COLUMN_SEAL_KEY], record->response.seal_key);
	pointer_to_column(&values[COLUMN_SEALED], &nulls[COLUMN_SEALED], record->response.sealed);
}

static TimestampTz
time_from_column(Datum value, bool is_null)
{
	return is_null ? NO_TIME : DatumGetTimestampTz(value);
}

/* A copy in the current memory context, toasted as it was. */
static void *
copy_from_column(Datum value, bool is_null)
{
	Size		size;
	void	   *copy;

	if (is_null)
		return NULL;
	size = VARSIZE_ANY(DatumGetPointer(value));
	copy = palloc(size);
	memcpy(copy, DatumGetPointer(value), size);
	return copy;
}

static Status
status_from_column(const Oid *status_labels, Datum value)
{
	for (int status = 0; status < STATUS_LABELS; status++)
	{
		if (status_labels[status] == DatumGetObjectId(value))
			return (Status) status;
	}
	elog(ERROR, "unknown status of a stored operation: %u", DatumGetObjectId(value));
}

/* Everything of a row but its name, copied. */
void
record_from_columns(const Oid *status_labels, const Datum *values, const bool *nulls, Record *record)
{
	record->created_at = DatumGetTimestampTz(values[COLUMN_CREATED_AT]);
	record->updated_at = DatumGetTimestampTz(values[COLUMN_UPDATED_AT]);
	record->expires_at = DatumGetTimestampTz(values[COLUMN_EXPIRES_AT]);
	record->lease_expires_at = time_from_column(values[COLUMN_LEASE_EXPIRES_AT], nulls[COLUMN_LEASE_EXPIRES_AT]);
	record->retry_at = time_from_column(values[COLUMN_RETRY_AT], nulls[COLUMN_RETRY_AT]);
	record->fence = nulls[COLUMN_FENCE] ? NO_FENCE : DatumGetInt64(values[COLUMN_FENCE]);
	record->status = status_from_column(status_labels, values[COLUMN_STATUS]);
	record->attempt = DatumGetInt32(values[COLUMN_ATTEMPT]);
	record->response.has_code = !nulls[COLUMN_RESPONSE_CODE];
	record->response.code = record->response.has_code ? DatumGetInt32(values[COLUMN_RESPONSE_CODE]) : 0;
	record->request.bytes = copy_from_column(values[COLUMN_REQUEST_HASH], nulls[COLUMN_REQUEST_HASH]);
	record->response.headers = copy_from_column(values[COLUMN_RESPONSE_HEADERS], nulls[COLUMN_RESPONSE_HEADERS]);
	record->response.payload = copy_from_column(values[COLUMN_RESPONSE_PAYLOAD], nulls[COLUMN_RESPONSE_PAYLOAD]);
	record->response.body = copy_from_column(values[COLUMN_RESPONSE_BODY], nulls[COLUMN_RESPONSE_BODY]);
	record->request.key = copy_from_column(values[COLUMN_HASH_KEY], nulls[COLUMN_HASH_KEY]);
	record->response.seal_key = copy_from_column(values[COLUMN_SEAL_KEY], nulls[COLUMN_SEAL_KEY]);
	record->response.sealed = copy_from_column(values[COLUMN_SEALED], nulls[COLUMN_SEALED]);
}
