/*
 * citus.h
 *		A store that is distributed over the nodes of a Citus cluster.
 */
#ifndef IDEM_CITUS_H
#define IDEM_CITUS_H

#include "postgres.h"

#include "nodes/pg_list.h"
#include "nodes/primnodes.h"
#include "utils/rel.h"

#include "base/compat.h"

/* the column that Citus distributes the store by: the scope, as the type of the tenants */
#define TENANT_COLUMN "tenant"

extern bool citus_leaves_unused(Oid store);
extern bool citus_read_store(Relation store);
extern List *citus_local_shards(void);
extern void citus_enter(const text *scope);
extern Oid	citus_shard(const text *scope);
extern bool citus_hold_shard(Oid table);
extern Datum citus_tenant(const text *scope);
extern Const *citus_tenant_const(const text *scope);
extern Oid	citus_tenant_type(void);
extern int32 citus_node(void);
extern bool citus_is_preloaded(void);
pg_noreturn extern void citus_refuse(const char *function, const char *hint);

#endif							/* IDEM_CITUS_H */
