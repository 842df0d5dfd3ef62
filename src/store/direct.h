/*
 * direct.h
 *		The hot statements on the store without the executor.
 */
#ifndef IDEM_DIRECT_H
#define IDEM_DIRECT_H

#include "postgres.h"

#include "access/tableam.h"
#include "utils/snapshot.h"

#include "base/idempotency.h"
#include "schema/catalog.h"

extern bool direct_is_empty(Oid table);
extern bool direct_find(const Catalog *catalog, Oid table, const OperationName *name,
						Snapshot snapshot, Record *found, ItemPointer version);
extern void direct_insert(const Catalog *catalog, Oid table, const Record *record);
extern TM_Result direct_change(const Catalog *catalog, Oid table, const OperationName *name,
							   const Record *record, TimestampTz expected);

#endif							/* IDEM_DIRECT_H */
