/*
 * record.c
 *		A row of the store as values and nulls in the order of its columns.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "record.h"

static const char *const names[RECORD_COLUMNS] =
{
	[COLUMN_CREATED_AT] = "created_at",
	[COLUMN_UPDATED_AT] = "updated_at",
	[COLUMN_EXPIRES_AT] = "expires_at",
	[COLUMN_LEASE_EXPIRES_AT] = "lease_expires_at",
	[COLUMN_RETRY_AT] = "retry_at",
	[COLUMN_FENCE] = "fence",
	[COLUMN_STATUS] = "status",
	[COLUMN_ATTEMPT] = "attempt",
	[COLUMN_RESPONSE_CODE] = "response_code",
	[COLUMN_SCOPE] = "scope",
	[COLUMN_IDEMPOTENCY_KEY] = "idempotency_key",
	[COLUMN_REQUEST_HASH] = "request_hash",
	[COLUMN_RESPONSE_HEADERS] = "response_headers",
	[COLUMN_RESPONSE_PAYLOAD] = "response_payload",
	[COLUMN_RESPONSE_BODY] = "response_body",
	[COLUMN_HASH_KEY] = "hash_key",
	[COLUMN_SEAL_KEY] = "seal_key",
	[COLUMN_SEALED] = "sealed",
};
static const Oid types[RECORD_COLUMNS] = {RECORD_TYPES};

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

/* Has the table these columns, whatever others it has? */
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

/* The script has made these, and no others, NOT NULL. */
static bool
is_always_set(RecordColumn column)
{
	switch (column)
	{
		case COLUMN_CREATED_AT:
		case COLUMN_UPDATED_AT:
		case COLUMN_EXPIRES_AT:
		case COLUMN_STATUS:
		case COLUMN_ATTEMPT:
		case COLUMN_SCOPE:
		case COLUMN_IDEMPOTENCY_KEY:
			return true;
		default:
			return false;
	}
}

/* Has the table these columns, in this order, no others, and no further NOT NULL? */
bool
record_matches(TupleDesc descriptor, Oid status_type)
{
	if (descriptor->natts != RECORD_COLUMNS)
		return false;
	for (int i = 0; i < RECORD_COLUMNS; i++)
	{
		Form_pg_attribute attribute = TupleDescAttr(descriptor, i);

		if (!is_column(attribute, i, status_type) || (attribute->attnotnull && !is_always_set(i)))
			return false;
	}
	return true;
}

static void
put_pointer(Datum *value, bool *is_null, const void *pointer)
{
	*value = PointerGetDatum(pointer);
	*is_null = pointer == NULL;
}

static void
put_time(Datum *value, bool *is_null, TimestampTz time)
{
	*value = TimestampTzGetDatum(time);
	*is_null = time == NO_TIME;
}

/* The columns point into the record. */
void
record_to_columns(const Catalog *catalog, const Record *record, Datum *values, bool *nulls)
{
	memset(nulls, false, RECORD_COLUMNS * sizeof(bool));
	values[COLUMN_CREATED_AT] = TimestampTzGetDatum(record->created_at);
	values[COLUMN_UPDATED_AT] = TimestampTzGetDatum(record->updated_at);
	values[COLUMN_EXPIRES_AT] = TimestampTzGetDatum(record->expires_at);
	put_time(&values[COLUMN_LEASE_EXPIRES_AT], &nulls[COLUMN_LEASE_EXPIRES_AT], record->lease_expires_at);
	put_time(&values[COLUMN_RETRY_AT], &nulls[COLUMN_RETRY_AT], record->retry_at);
	values[COLUMN_FENCE] = Int64GetDatum(record->fence);
	nulls[COLUMN_FENCE] = record->fence == NO_FENCE;
	values[COLUMN_STATUS] = ObjectIdGetDatum(catalog->status_labels[record->status]);
	values[COLUMN_ATTEMPT] = Int32GetDatum(record->attempt);
	values[COLUMN_RESPONSE_CODE] = Int32GetDatum(record->response.code);
	nulls[COLUMN_RESPONSE_CODE] = !record->response.has_code;
	values[COLUMN_SCOPE] = PointerGetDatum(record->name.scope);
	values[COLUMN_IDEMPOTENCY_KEY] = PointerGetDatum(record->name.key);
	put_pointer(&values[COLUMN_REQUEST_HASH], &nulls[COLUMN_REQUEST_HASH], record->request.bytes);
	put_pointer(&values[COLUMN_RESPONSE_HEADERS], &nulls[COLUMN_RESPONSE_HEADERS], record->response.headers);
	put_pointer(&values[COLUMN_RESPONSE_PAYLOAD], &nulls[COLUMN_RESPONSE_PAYLOAD], record->response.payload);
	put_pointer(&values[COLUMN_RESPONSE_BODY], &nulls[COLUMN_RESPONSE_BODY], record->response.body);
	put_pointer(&values[COLUMN_HASH_KEY], &nulls[COLUMN_HASH_KEY], record->request.key);
	put_pointer(&values[COLUMN_SEAL_KEY], &nulls[COLUMN_SEAL_KEY], record->response.seal_key);
	put_pointer(&values[COLUMN_SEALED], &nulls[COLUMN_SEALED], record->response.sealed);
}

static TimestampTz
get_time(Datum value, bool is_null)
{
	return is_null ? NO_TIME : DatumGetTimestampTz(value);
}

/* A copy in the current memory context, toasted as it was. */
static void *
get_pointer(Datum value, bool is_null)
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
get_status(const Catalog *catalog, Datum value)
{
	for (int status = 0; status < STATUS_LABELS; status++)
	{
		if (catalog->status_labels[status] == DatumGetObjectId(value))
			return (Status) status;
	}
	elog(ERROR, "unknown status of a stored operation: %u", DatumGetObjectId(value));
}

/* Everything of a row but its name, copied. */
void
record_from_columns(const Catalog *catalog, const Datum *values, const bool *nulls, Record *record)
{
	record->created_at = DatumGetTimestampTz(values[COLUMN_CREATED_AT]);
	record->updated_at = DatumGetTimestampTz(values[COLUMN_UPDATED_AT]);
	record->expires_at = DatumGetTimestampTz(values[COLUMN_EXPIRES_AT]);
	record->lease_expires_at = get_time(values[COLUMN_LEASE_EXPIRES_AT], nulls[COLUMN_LEASE_EXPIRES_AT]);
	record->retry_at = get_time(values[COLUMN_RETRY_AT], nulls[COLUMN_RETRY_AT]);
	record->fence = nulls[COLUMN_FENCE] ? NO_FENCE : DatumGetInt64(values[COLUMN_FENCE]);
	record->status = get_status(catalog, values[COLUMN_STATUS]);
	record->attempt = DatumGetInt32(values[COLUMN_ATTEMPT]);
	record->response.has_code = !nulls[COLUMN_RESPONSE_CODE];
	record->response.code = record->response.has_code ? DatumGetInt32(values[COLUMN_RESPONSE_CODE]) : 0;
	record->request.bytes = get_pointer(values[COLUMN_REQUEST_HASH], nulls[COLUMN_REQUEST_HASH]);
	record->response.headers = get_pointer(values[COLUMN_RESPONSE_HEADERS], nulls[COLUMN_RESPONSE_HEADERS]);
	record->response.payload = get_pointer(values[COLUMN_RESPONSE_PAYLOAD], nulls[COLUMN_RESPONSE_PAYLOAD]);
	record->response.body = get_pointer(values[COLUMN_RESPONSE_BODY], nulls[COLUMN_RESPONSE_BODY]);
	record->request.key = get_pointer(values[COLUMN_HASH_KEY], nulls[COLUMN_HASH_KEY]);
	record->response.seal_key = get_pointer(values[COLUMN_SEAL_KEY], nulls[COLUMN_SEAL_KEY]);
	record->response.sealed = get_pointer(values[COLUMN_SEALED], nulls[COLUMN_SEALED]);
}
