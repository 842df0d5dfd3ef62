/*
 * record.h
 *		A row of the store as values and nulls in the order of its columns.
 */
#ifndef IDEM_RECORD_H
#define IDEM_RECORD_H

#include "postgres.h"

#include "access/tupdesc.h"

#include "base/idempotency.h"

/*
 * Every column of CREATE TABLE idempotency_store, in its order: its number, its
 * name here and there, its type (InvalidOid is idempotency_status), and whether
 * the script made it NOT NULL.  Enum, types, SQL text and checks come from this
 * list, and from no other.  The first column is apart, for texts with commas.
 */
#define RECORD_COLUMN_LIST(FIRST, NEXT) \
	FIRST(1, CREATED_AT, created_at, TIMESTAMPTZOID, true) \
	NEXT(2, UPDATED_AT, updated_at, TIMESTAMPTZOID, true) \
	NEXT(3, EXPIRES_AT, expires_at, TIMESTAMPTZOID, true) \
	NEXT(4, LEASE_EXPIRES_AT, lease_expires_at, TIMESTAMPTZOID, false) \
	NEXT(5, RETRY_AT, retry_at, TIMESTAMPTZOID, false) \
	NEXT(6, FENCE, fence, INT8OID, false) \
	NEXT(7, STATUS, status, InvalidOid, true) \
	NEXT(8, ATTEMPT, attempt, INT4OID, true) \
	NEXT(9, RESPONSE_CODE, response_code, INT4OID, false) \
	NEXT(10, SCOPE, scope, TEXTOID, true) \
	NEXT(11, IDEMPOTENCY_KEY, idempotency_key, TEXTOID, true) \
	NEXT(12, REQUEST_HASH, request_hash, BYTEAOID, false) \
	NEXT(13, RESPONSE_HEADERS, response_headers, JSONBOID, false) \
	NEXT(14, RESPONSE_PAYLOAD, response_payload, JSONBOID, false) \
	NEXT(15, RESPONSE_BODY, response_body, BYTEAOID, false) \
	NEXT(16, HASH_KEY, hash_key, TEXTOID, false) \
	NEXT(17, SEAL_KEY, seal_key, TEXTOID, false) \
	NEXT(18, SEALED, sealed, BYTEAOID, false)

/* their names as SQL text: "created_at, updated_at, …" */
#define RECORD_NAME_FIRST(number, id, name, type, is_set) #name
#define RECORD_NAME_NEXT(number, id, name, type, is_set) ", " #name
#define RECORD_NAMES RECORD_COLUMN_LIST(RECORD_NAME_FIRST, RECORD_NAME_NEXT)

#define RECORD_COLUMN_ID(number, id, name, type, is_set) COLUMN_##id = (number) - 1,
typedef enum RecordColumn
{
	RECORD_COLUMN_LIST(RECORD_COLUMN_ID, RECORD_COLUMN_ID)
	RECORD_COLUMNS				/* how many there are */
} RecordColumn;

/* an initializer for types of parameters */
#define RECORD_COLUMN_TYPE(number, id, name, type, is_set) type,
#define RECORD_TYPES RECORD_COLUMN_LIST(RECORD_COLUMN_TYPE, RECORD_COLUMN_TYPE)

/* where a version of a row is */
typedef struct RowPosition
{
	Oid			table;
	ItemPointerData version;
} RowPosition;

extern bool record_is_column(Form_pg_attribute attribute, RecordColumn column);
extern int	record_further(TupleDesc descriptor);
extern bool record_matches(TupleDesc descriptor, Oid status_type);
extern bool record_fits(TupleDesc descriptor, Oid status_type);
extern void record_to_columns(const Oid *status_labels, const Record *record,
							  Datum *values, bool *nulls);
extern void record_from_columns(const Oid *status_labels, const Datum *values,
								const bool *nulls, Record *record);

#endif							/* IDEM_RECORD_H */
