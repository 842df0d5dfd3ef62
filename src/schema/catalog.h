/*
 * catalog.h
 *		Finds the objects of the extension in this database.
 */
#ifndef IDEM_CATALOG_H
#define IDEM_CATALOG_H

#include "postgres.h"

#include "storage/lockdefs.h"

#include "base/idempotency.h"
#include "base/siphash.h"

typedef enum CatalogTable
{
	TABLE_STORE,
	TABLE_FENCE,
	TABLE_SCOPE,
	TABLE_SECRET,
	TABLE_STREAM,
	TABLE_SWEEP,
	TABLE_RING,
	TABLE_FORGOTTEN
} CatalogTable;
#define CATALOG_TABLES 8

/* where the rows of the store are; store/store_kind.c knows what follows from it */
typedef enum StoreKind
{
	STORE_ONE_TABLE,			/* in it, or in its partitions if its owner has partitioned it */
	STORE_RING,					/* in it, and in the tables that inherit from it */
	STORE_DISTRIBUTED			/* in shards on the nodes of a Citus cluster */
} StoreKind;

typedef struct Catalog
{
	char		schema[NAMEDATALEN];
	Oid			tables[CATALOG_TABLES];	/* the objects of these names */
	Oid			store_owner;
	StoreKind	store_kind;
	bool		store_plain;	/* direct access does all that SQL would, in every table of it */
	SipHashKey	lock_key;		/* of the lock ids */
	Oid			status_type;	/* idempotency_status */
	Oid			outcome_type;	/* idem_outcome */
	Oid			operation_type; /* idem_operation */
	Oid			status_labels[STATUS_LABELS];
	Oid			outcome_labels[OUTCOME_LABELS];
	uint64		generation;		/* another one when anything above may have changed */
} Catalog;

extern const Catalog *catalog_open(LOCKMODE mode);
extern const Catalog *catalog_open_if_free(LOCKMODE mode);
extern const Catalog *catalog_known(void);
extern bool catalog_is_stale(void);
extern bool catalog_has_function(Oid function);
extern Oid	catalog_find_function(const char *schema, const char *name, int count, const Oid *types);
extern Oid	catalog_lock(CatalogTable table, LOCKMODE mode);
extern void catalog_register(void);

#endif							/* IDEM_CATALOG_H */
