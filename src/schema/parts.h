/*
 * parts.h
 *		The tables that the store's rows are in: itself, and those of its ring.
 */
#ifndef IDEM_PARTS_H
#define IDEM_PARTS_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "nodes/pg_list.h"
#include "utils/rel.h"

/* A table with rows of the store, in the order in which a key is looked up. */
typedef struct Part
{
	Oid			table;
	TimestampTz from;			/* new rows belong here that expire at this time or later */
	TimestampTz until;			/* and before this one; a table without a range gets none */
	bool		is_plain;		/* direct access does all that SQL would */
} Part;

extern void parts_read_store(Relation store, Oid status_type);
extern void parts_read_ring(Relation store, List *children, Oid ring, Oid status_type);
extern void parts_read_shards(List *shards, Oid status_type);
extern int	parts_count(void);
extern const Part *parts_get(int number);
extern bool parts_all_plain(void);
extern Oid	parts_for(TimestampTz expires_at);
extern bool parts_include(Oid relation);
extern bool parts_include_schema(uint32 hash);
extern bool parts_have_key(const char *schema, const char *table, const char *name);

#endif							/* IDEM_PARTS_H */
