/*
 * mark.c
 *		Fences that grow although each node of a cluster has a sequence of its
 *		own.
 *
 * A fence has to be greater than all earlier ones of its operation, also if
 * another node gave them out and their rows are gone.  So each scope has a mark:
 * a row of the store, with an empty key, which moves with the shard.  It says
 * which node gives out the fences of the scope, and up to which number.  A node
 * that finds the mark of another one begins above that number, and makes the
 * mark its own.  A mark is written once for many fences.
 */
#include "postgres.h"

#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "base/idempotency.h"
#include "citus/citus.h"
#include "shared/lock.h"
#include "store/fence.h"
#include "store/mark.h"
#include "store/store.h"

/* how many fences a mark is good for */
#define RESERVED_AHEAD ((int64) 1 << 20)

/* the row with the mark of a scope */
typedef struct Mark
{
	bool		exists;
	Record		record;
} Mark;

static Mark
read_mark(const Catalog *catalog, const OperationName *name)
{
	Mark		mark;

	mark.exists = store_find(catalog, name, &mark.record);
	return mark;
}

static bool
is_own(const Mark *mark)
{
	return mark->exists && mark->record.response.code == citus_node();
}

/* May this node give out fences after the last one? */
static bool
has_room(const Mark *mark, int64 last)
{
	return is_own(mark) && mark->record.fence - last > RESERVED_AHEAD / 2;
}

/* The first to come writes the mark; the others wait for its transaction. */
static void
lock_mark(const Catalog *catalog, const OperationName *name)
{
	uint64		id;
	LOCKTAG		tag = lock_of_operation(name, &catalog->lock_key, &id);

	lock_acquire(&tag);
}

/* The mark is this node's from now on, so many fences above the number. */
static void
write_mark(const Catalog *catalog, const OperationName *name, const Mark *before, int64 number)
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
take_mark(const Catalog *catalog, text *scope)
{
	OperationName name = {.scope = scope,.key = cstring_to_text("")};
	Mark		mark = read_mark(catalog, &name);
	int64		floor = NO_FENCE;

	if (has_room(&mark, fence_last()))
		return NO_FENCE;
	lock_mark(catalog, &name);
	mark = read_mark(catalog, &name);
	if (has_room(&mark, fence_last()))
		return NO_FENCE;
	if (mark.exists && !is_own(&mark))
		floor = mark.record.fence;
	write_mark(catalog, &name, &mark, Max(floor, fence_last()));
	return floor;
}

/* A new fence of an operation of the scope, greater than the one given. */
int64
mark_next_fence(const Catalog *catalog, text *scope, int64 after)
{
	int64		floor = catalog->store_distributed ? take_mark(catalog, scope) : NO_FENCE;

	return fence_next(Max(after, floor));
}
