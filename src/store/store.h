/*
 * store.h
 *		The record of an operation: looked up, stored, deleted.
 */
#ifndef IDEM_STORE_H
#define IDEM_STORE_H

#include "postgres.h"

#include "base/idempotency.h"
#include "schema/catalog.h"

extern bool store_find(const Catalog *catalog, const OperationName *name, Record *found);
extern bool store_peek(const Catalog *catalog, const OperationName *name, Record *found);
extern void store_put(const Catalog *catalog, const Record *record, TimestampTz expected);
extern void store_reseal(const Catalog *catalog, Oid table, const Record *record);
extern void store_delete(const Catalog *catalog, const OperationName *name, TimestampTz expected);

#endif							/* IDEM_STORE_H */
