/*
 * record.h
 *		A row of the store as values and nulls in the order of its columns.
 */
#ifndef IDEM_RECORD_H
#define IDEM_RECORD_H

#include "postgres.h"

#include "access/tupdesc.h"

#include "catalog.h"
#include "idempotency.h"

/* in the order of CREATE TABLE idempotency_store */
typedef enum RecordColumn
{
	COLUMN_CREATED_AT,
	COLUMN_UPDATED_AT,
	COLUMN_EXPIRES_AT,
	COLUMN_LEASE_EXPIRES_AT,
	COLUMN_RETRY_AT,
	COLUMN_FENCE,
	COLUMN_STATUS,
	COLUMN_ATTEMPT,
	COLUMN_RESPONSE_CODE,
	COLUMN_SCOPE,
	COLUMN_IDEMPOTENCY_KEY,
	COLUMN_REQUEST_HASH,
	COLUMN_RESPONSE_HEADERS,
	COLUMN_RESPONSE_PAYLOAD,
	COLUMN_RESPONSE_BODY,
	COLUMN_HASH_KEY,
	COLUMN_SEAL_KEY,
	COLUMN_SEALED
} RecordColumn;
#define RECORD_COLUMNS 18

/* their types; InvalidOid is idempotency_status */
#define RECORD_TYPES \
	TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID, \
	INT8OID, InvalidOid, INT4OID, INT4OID, TEXTOID, TEXTOID, BYTEAOID, \
	JSONBOID, JSONBOID, BYTEAOID, TEXTOID, TEXTOID, BYTEAOID

extern bool record_is_column(Form_pg_attribute attribute, RecordColumn column);
extern bool record_matches(TupleDesc descriptor, Oid status_type);
extern bool record_fits(TupleDesc descriptor, Oid status_type);
extern void record_to_columns(const Catalog *catalog, const Record *record,
							  Datum *values, bool *nulls);
extern void record_from_columns(const Catalog *catalog, const Datum *values,
								const bool *nulls, Record *record);

#endif							/* IDEM_RECORD_H */
