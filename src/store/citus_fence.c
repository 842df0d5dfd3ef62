/*
 * citus_fence.c
 *		Fences that grow although each node of a cluster has a sequence of its
 *		own.
 *
 * A fence has to be greater than all earlier ones of its operation, also if
 * another node gave them out and their rows are gone.  So each scope has a Citus
 * fence: a row of the store, with an empty key, which moves with the shard.  It names
 * the node that gives out the fences of the scope, and the number up to which it may
 * do so.  A node that finds the Citus fence of another one begins above that number,
 * and makes the row its own.  The row is written once for many fences.
 */
#include "postgres.h"

#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "base/idempotency.h"
#include "citus/citus.h"
#include "shared/advisory_lock.h"
#include "store/citus_fence.h"
#include "store/fence.h"
#include "store/store.h"

/* how many fences one version of the row allows */
#define RESERVED_AHEAD ((int64) 1 << 20)

/* the Citus fence of a scope */
typedef struct CitusFence
{
	bool		exists;
	Record		record;
} CitusFence;

static CitusFence
read_citus_fence(const Catalog *catalog, const OperationName *name)
{
	CitusFence	row;

	row.exists = store_find(catalog, name, &row.record);
	return row;
}

static bool
is_own(const CitusFence *row)
{
	return row->exists && row->record.response.code == citus_node();
}

/* May this node give out fences after the last one? */
static bool
has_room(const CitusFence *row, int64 last)
{
	return is_own(row) && row->record.fence - last > RESERVED_AHEAD / 2;
}

/* The first to come writes the row; the others wait for its transaction. */
static void
lock_citus_fence(const Catalog *catalog, const OperationName *name)
{
	uint64		id;
	LOCKTAG		tag = lock_of_operation(name, &catalog->lock_key, &id);

	lock_acquire(&tag);
}

/* From now on this node gives out the fences above the number. */
static void
write_citus_fence(const Catalog *catalog, const OperationName *name, const CitusFence *before, int64 number)
{
	TimestampTz now = GetCurrentTimestamp();
	Record		record = {
		.name = *name,
		.status = STATUS_COMPLETED,
		.attempt = 1,
		.fence = number + RESERVED_AHEAD,
		.lease_expires_at = NO_TIME,
		.retry_at = NO_TIME,
		.created_at = before->exists ? before->record.created_at : now,
		.updated_at = now,
		.expires_at = DT_NOEND
	};

	record.response.has_code = true;
	record.response.code = citus_node();
	store_put(catalog, &record, before->exists ? before->record.updated_at : NO_TIME);
}

/* The number that all earlier fences of the scope do not exceed, if the sequence may not know them. */
static int64
take_citus_fence(const Catalog *catalog, text *scope)
{
	OperationName name = {.scope = scope,.key = cstring_to_text("")};
	CitusFence	row = read_citus_fence(catalog, &name);
	int64		floor = NO_FENCE;

	if (has_room(&row, fence_last()))
		return NO_FENCE;
	lock_citus_fence(catalog, &name);
	row = read_citus_fence(catalog, &name);
	if (has_room(&row, fence_last()))
		return NO_FENCE;
	if (row.exists && !is_own(&row))
		floor = row.record.fence;
	write_citus_fence(catalog, &name, &row, Max(floor, fence_last()));
	return floor;
}

/* A new fence of an operation of the scope, greater than the one given. */
int64
citus_fence_next(const Catalog *catalog, text *scope, int64 after)
{
	int64		floor = catalog->store_kind == STORE_DISTRIBUTED ? take_citus_fence(catalog, scope) : NO_FENCE;

	return fence_next(Max(after, floor));
}
