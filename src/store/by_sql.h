/*
 * by_sql.h
 *		The record of an operation by SQL statements: looked up, stored, deleted.
 */
#ifndef IDEM_BY_SQL_H
#define IDEM_BY_SQL_H

#include "postgres.h"

#include "utils/snapshot.h"

#include "base/idempotency.h"
#include "schema/catalog.h"
#include "schema/record.h"

extern bool by_sql_find(const Catalog *catalog, Oid table, const OperationName *name, Snapshot snapshot,
						Record *found, RowPosition *position);
extern void by_sql_insert(const Catalog *catalog, const Record *record);
extern bool by_sql_upsert(const Catalog *catalog, const Record *record, TimestampTz expected);
extern bool by_sql_update(const Catalog *catalog, Oid table, const Record *record);
extern bool by_sql_delete(const Catalog *catalog, Oid table, const OperationName *name, TimestampTz expected);

#endif							/* IDEM_BY_SQL_H */
