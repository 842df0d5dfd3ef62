/*
 * resource_locks.c
 *		Exclusive locks on entities: all entities of a list, or none.
 *
 * They are taken in the order of their lock ids, and not of their names: two
 * names can share an id.  So two callers never deadlock on each other.
 */
#include "postgres.h"

#include "lib/qunique.h"
#include "storage/lock.h"

#include "base/compat.h"
#include "operation/resource_locks.h"
#include "schema/catalog.h"
#include "shared/advisory_lock.h"
#include "shared/wait.h"
#include "store/store_kind.h"
#include "transaction/journal.h"

static int
compare_ids(const void *a, const void *b)
{
	uint64		left = *(const uint64 *) a;
	uint64		right = *(const uint64 *) b;

	return left < right ? -1 : left > right;
}

/* The lock ids of the names, sorted, each once; returns how many. */
static int
lock_ids(text **names, int count, uint64 *ids)
{
	const SipHashKey *key = &catalog_open(AccessShareLock)->lock_key;

	for (int i = 0; i < count; i++)
		ids[i] = lock_id_of_resource(names[i], key);
	qsort(ids, count, sizeof(uint64), compare_ids);
	return qunique(ids, count, sizeof(uint64), compare_ids);
}

/* Leaves out locks that the transaction holds already. */
static int
not_yet_held(uint64 *ids, int count)
{
	int			kept = 0;

	for (int i = 0; i < count; i++)
	{
		LOCKTAG		tag = lock_tag(ids[i], LOCK_CLASS_RESOURCE);

		if (!lock_held_by_me(&tag, ExclusiveLock))
			ids[kept++] = ids[i];
	}
	return kept;
}

static bool
lock_one(const LOCKTAG *tag, const Deadline *deadline)
{
	int64		left;

	if (lock_acquire_now(tag))
		return true;
	left = deadline_left(deadline);
	return left > 0 && lock_acquire_within(tag, left);
}

static void
unlock_resources(const uint64 *ids, int count)
{
	while (count-- > 0)
	{
		LOCKTAG		tag = lock_tag(ids[count], LOCK_CLASS_RESOURCE);

		lock_release(&tag);
	}
}

/* Locks all of them until the transaction ends, or none. */
bool
resource_lock_all(text **names, int count, int64 wait)
{
	uint64	   *ids = palloc(count * sizeof(uint64));
	Deadline	deadline = deadline_after(wait);

	/* a lock of this name would be another one on each node */
	kind_require_one_node(catalog_open(AccessShareLock), "idem_lock()",
						  "Lock a row of the tenant instead: SELECT ... FOR UPDATE.");
	count = not_yet_held(ids, lock_ids(names, count, ids));
	journal_reserve(count);
	for (int i = 0; i < count; i++)
	{
		LOCKTAG		tag = lock_tag(ids[i], LOCK_CLASS_RESOURCE);

		if (!lock_one(&tag, &deadline))
		{
			unlock_resources(ids, i);
			pfree(ids);
			return false;
		}
	}
	if (count > 0)
		journal_add_locks(count);
	pfree(ids);
	return true;
}
