/*
 * store_tables.h
 *		The tables that the store's rows are in: itself, and those of its ring.
 */
#ifndef IDEM_STORE_TABLES_H
#define IDEM_STORE_TABLES_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "nodes/pg_list.h"
#include "utils/rel.h"

/* A table with rows of the store, in the order in which a key is looked up. */
typedef struct StoreTable
{
	Oid			oid;
	TimestampTz from;			/* new rows belong here that expire at this time or later */
	TimestampTz until;			/* and before this one; a table without a range gets none */
	bool		is_plain;		/* direct access does all that SQL would */
	bool		had_pages;		/* since the list was read */
} StoreTable;

extern void store_tables_read_one(Relation store, Oid status_type);
extern void store_tables_read_ring(Relation store, List *children, Oid ring, Oid status_type);
extern void store_tables_read_shards(List *shards, Oid status_type);
extern int	store_tables_count(void);
extern const StoreTable *store_tables_get(int number);
extern bool store_tables_all_plain(void);
extern bool store_tables_is_plain(Oid table);
extern bool store_tables_had_pages(Oid table);
extern void store_tables_note_pages(Oid table);
extern Oid	store_tables_for(TimestampTz expires_at);
extern bool store_tables_include(Oid relation);
extern bool store_tables_include_schema(uint32 hash);
extern bool store_tables_have_key(const char *schema, const char *table, const char *name);
extern Oid	store_table_subscription(Oid table, Oid owner);

#endif							/* IDEM_STORE_TABLES_H */
