/*
 * lost_attempts.c
 *		How often the attempt of an operation was lost with its transaction, if
 *		the library is preloaded.
 *
 * The table has a fixed size.  It has parts, each with a lock of its own, and an
 * operation belongs to one part.  A full part forgets the operation whose last
 * lost attempt is the oldest.  So an operation that fails again and again stays, and
 * one that never came back gives its place away, also if its database is gone.
 *
 * An operation is known by the id of its lock.  The count of an operation
 * changes while its lock is held, so the next owner sees it.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

#include "base/compat.h"
#include "base/settings.h"
#include "shared/lost_attempts.h"

#define OPERATIONS_OF_PART 64

typedef struct LostOperation
{
	uint64		id;
	uint64		last_lost;		/* number of its last lost attempt, in the order of its part */
	Oid			database;		/* InvalidOid: the place is free */
	int32		count;
	int32		limit;			/* of the begin that was lost last; 0: none */
} LostOperation;

typedef struct LostPart
{
	pg_atomic_uint32 used;		/* places; read without the lock, too */
	uint64		lost;			/* attempts so far; numbers them */
} LostPart;

static LWLockPadded *locks;
static LostPart *parts = NULL;	/* NULL: nobody counts */
static LostOperation *operations;	/* those of a part are side by side */
static int	part_count;
static int	part_size;

int
lost_attempts_parts(void)
{
	return setting_lost_attempts_tracked == 0 ? 0 :
		Max(setting_lost_attempts_tracked / OPERATIONS_OF_PART, 1);
}

Size
lost_attempts_size(void)
{
	return mul_size(lost_attempts_parts(), sizeof(LostPart)) +
		mul_size(setting_lost_attempts_tracked, sizeof(LostOperation));
}

/* The caller holds AddinShmemInitLock. */
void
lost_attempts_attach(LWLockPadded *part_locks)
{
	char	   *memory;
	bool		found;

	part_count = lost_attempts_parts();
	if (part_count == 0)
		return;
	part_size = setting_lost_attempts_tracked / part_count;
	locks = part_locks;
	memory = ShmemInitStruct("idempotency lost attempts", lost_attempts_size(), &found);
	parts = (LostPart *) memory;
	operations = (LostOperation *) (memory + part_count * sizeof(LostPart));
	if (found)
		return;
	memset(memory, 0, lost_attempts_size());
	for (int i = 0; i < part_count; i++)
		pg_atomic_init_u32(&parts[i].used, 0);
}

bool
lost_attempts_are_counted(void)
{
	return parts != NULL;
}

static int
part_of(uint64 id)
{
	return (int) (id % part_count);
}

static LostOperation *
first_of(int part)
{
	return operations + (Size) part * part_size;
}

/* The caller holds the part's lock.  NULL: none of its attempts was lost. */
static LostOperation *
find_operation(int part, uint64 id)
{
	LostOperation *first = first_of(part);

	for (LostOperation *operation = first; operation < first + part_size; operation++)
	{
		if (operation->id == id && operation->database == MyDatabaseId)
			return operation;
	}
	return NULL;
}

/* A free place of the part, or that of the operation whose last lost attempt is the oldest. */
static LostOperation *
make_place(int part)
{
	LostOperation *first = first_of(part);
	LostOperation *oldest = first;

	for (LostOperation *operation = first; operation < first + part_size; operation++)
	{
		if (!OidIsValid(operation->database))
		{
			pg_atomic_fetch_add_u32(&parts[part].used, 1);
			return operation;
		}
		if (operation->last_lost < oldest->last_lost)
			oldest = operation;
	}
	return oldest;
}

/* How many attempts were lost since they were forgotten. */
int32
lost_attempts_of(uint64 id)
{
	LostOperation *operation;
	int			part;
	int32		count;

	if (parts == NULL)
		return 0;
	part = part_of(id);
	if (pg_atomic_read_u32(&parts[part].used) == 0)
		return 0;
	LWLockAcquire(&locks[part].lock, LW_SHARED);
	operation = find_operation(part, id);
	count = operation ? operation->count : 0;
	LWLockRelease(&locks[part].lock);
	return count;
}

/* Counts one more.  Called while the transaction aborts: nothing here can fail. */
void
lost_attempts_add(uint64 id, int32 limit)
{
	LostOperation *operation;
	int			part;

	if (parts == NULL)
		return;
	part = part_of(id);
	LWLockAcquire(&locks[part].lock, LW_EXCLUSIVE);
	operation = find_operation(part, id);
	if (operation == NULL)
	{
		operation = make_place(part);
		operation->id = id;
		operation->database = MyDatabaseId;
		operation->count = 0;
	}
	operation->last_lost = ++parts[part].lost;
	operation->limit = limit;
	if (operation->count < PG_INT32_MAX)
		operation->count++;
	LWLockRelease(&locks[part].lock);
}

/* Called when the transaction has committed, too: nothing here can fail. */
void
lost_attempts_forget(uint64 id)
{
	LostOperation *operation;
	int			part;

	if (parts == NULL)
		return;
	part = part_of(id);
	if (pg_atomic_read_u32(&parts[part].used) == 0)
		return;
	LWLockAcquire(&locks[part].lock, LW_EXCLUSIVE);
	operation = find_operation(part, id);
	if (operation != NULL)
	{
		operation->database = InvalidOid;
		pg_atomic_fetch_sub_u32(&parts[part].used, 1);
	}
	LWLockRelease(&locks[part].lock);
}

/*
 * How many operations of a database have lost attempts, and how many of them one
 * more would bring to their limit, or are there already.
 */
void
lost_attempts_figures(Oid database, int64 *lost, int64 *near_limit)
{
	*lost = *near_limit = 0;
	for (int part = 0; parts != NULL && part < part_count; part++)
	{
		LostOperation *first = first_of(part);

		if (pg_atomic_read_u32(&parts[part].used) == 0)
			continue;
		LWLockAcquire(&locks[part].lock, LW_SHARED);
		for (LostOperation *operation = first; operation < first + part_size; operation++)
		{
			if (operation->database != database)
				continue;
			(*lost)++;
			if (operation->limit > 0 && operation->count >= operation->limit - 1)
				(*near_limit)++;
		}
		LWLockRelease(&locks[part].lock);
	}
}
