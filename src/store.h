/*
 * store.h
 *		Every SQL statement on the tables.
 */
#ifndef IDEM_STORE_H
#define IDEM_STORE_H

#include "postgres.h"

#include "storage/block.h"

#include "catalog.h"
#include "idempotency.h"

extern bool store_find(const Catalog *catalog, const OperationName *name, Record *found);
extern bool store_peek(const Catalog *catalog, const OperationName *name, Record *found);
extern void store_put(const Catalog *catalog, const Record *record, TimestampTz judged);
extern void store_delete(const Catalog *catalog, const OperationName *name, TimestampTz judged);
extern int64 store_sweep(const Catalog *catalog, Oid part, ItemPointer from, ItemPointer end,
						 TimestampTz now, int64 max_rows);
extern int64 store_find_unsealed(const Catalog *catalog, Oid part, ItemPointer from, ItemPointer end,
								 text *key, int64 max_rows, Record **records);
extern BlockNumber store_pages(Oid part);

#endif							/* IDEM_STORE_H */
