/*
 * store_kind.h
 *		What differs between the kinds of store: see StoreKind.
 */
#ifndef IDEM_STORE_KIND_H
#define IDEM_STORE_KIND_H

#include "postgres.h"

#include "base/idempotency.h"
#include "schema/catalog.h"
#include "schema/record.h"

/* lock */
extern const Catalog *kind_hold_scope(const Catalog *catalog, const text *scope, LOCKMODE mode);
extern Oid	kind_local_copy(const Catalog *catalog, Oid table);
extern void kind_require_one_node(const Catalog *catalog, const char *function, const char *hint);

/* find */
extern bool kind_find(const Catalog *catalog, const OperationName *name, bool newest,
					  Record *found, RowPosition *position);

/* put */
extern Oid	kind_lock_target(const Catalog *catalog, const Record *record);
extern bool kind_leave_other_table(const Catalog *catalog, const OperationName *name, Oid target,
								   TimestampTz *expected);

/* delete */
extern bool kind_delete(const Catalog *catalog, const OperationName *name, TimestampTz expected);

/* walk */
extern int	kind_swept_tables(const Catalog *catalog);
extern Oid	kind_swept_table(const Catalog *catalog, int number);
extern bool kind_hold_table(const Catalog *catalog, Oid table);

#endif							/* IDEM_STORE_KIND_H */
