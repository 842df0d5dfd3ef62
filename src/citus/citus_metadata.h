/*
 * citus_metadata.h
 *		What the tables of Citus say of a cluster.
 */
#ifndef IDEM_CITUS_METADATA_H
#define IDEM_CITUS_METADATA_H

#include "postgres.h"

#include "access/attnum.h"

#define COORDINATOR 0			/* the number of this node */

/* how Citus has distributed a table */
typedef struct Distribution
{
	bool		exists;
	char		method;
	char		replication;
	int32		colocation;
	AttrNumber	column;
} Distribution;

/* One shard of a table. */
typedef struct Shard
{
	int64		id;
	int32		first_hash;
	int32		last_hash;
	Oid			table;			/* InvalidOid: it is on another node */
} Shard;

extern int32 citus_read_node(void);
extern Distribution citus_read_distribution(Oid table);
extern Shard *citus_read_shards(Oid table, int32 node, int *count);
extern Oid	citus_replica(Oid table);

#endif							/* IDEM_CITUS_METADATA_H */
