/*
 * parts.h
 *		The tables that the store's rows are in: itself, or its partitions.
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
	TimestampTz from;			/* its rows expire at this time or later */
	TimestampTz until;			/* and before this one */
	bool		takes_rest;		/* the rows that belong to no other part */
} Part;

extern void parts_read(Relation store);
extern void parts_read_shards(List *shards);
extern int	parts_count(void);
extern const Part *parts_get(int number);
extern const Part *parts_for(TimestampTz expires_at);
extern bool parts_include(Oid relation);
extern bool parts_include_schema(uint32 hash);
extern bool parts_have_key(const char *schema, const char *table, const char *name);

/* Have all rows expired that it may have?  They count as absent. */
static inline bool
part_is_over(const Part *part, TimestampTz now)
{
	return part->until <= now;
}

#endif							/* IDEM_PARTS_H */
