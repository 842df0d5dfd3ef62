/*
 * catalog.h
 *		Which objects of this database are the extension's.
 */
#ifndef IDEM_CATALOG_H
#define IDEM_CATALOG_H

#include "postgres.h"

#include "nodes/pg_list.h"
#include "storage/lockdefs.h"

#include "idempotency.h"

typedef struct Catalog
{
	char		schema[NAMEDATALEN];
	Oid			store;			/* idempotency_store */
	Oid			store_owner;
	Oid			key;			/* its primary key */
	List	   *key_names;		/* of it, and of its parts on partitions: char * */
	bool		store_plain;	/* direct access does all that SQL would */
	Oid			fences;			/* idempotency_fence */
	Oid			scopes;			/* idempotency_scope */
	uint64		lock_seed;
	Oid			status_type;	/* idempotency_status */
	Oid			outcome_type;	/* idem_outcome */
	Oid			operation_type; /* idem_operation */
	Oid			status_labels[STATUS_LABELS];
	Oid			outcome_labels[OUTCOME_LABELS];
	uint64		generation;		/* changes with anything above */
} Catalog;

extern const Catalog *catalog_open(LOCKMODE mode);
extern const Catalog *catalog_open_if_free(LOCKMODE mode);
extern const Catalog *catalog_known(void);
extern void catalog_register(void);

#endif							/* IDEM_CATALOG_H */
