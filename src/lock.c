/*
 * lock.c
 *		Advisory locks of our own class: tags, and how to take them.
 *
 * An operation's lock is what makes begin exclusive: whoever holds it and
 * then looks the key up with a fresh snapshot sees every record that was
 * committed, because a commit becomes visible before its locks are released.
 * Two names with the same lock id wait for each other without need, and never
 * more than that: the store's primary key decides.
 */
#include "postgres.h"

#include "access/xact.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/builtins.h"
#include <limits.h>

#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "compat.h"
#include "fault.h"
#include "lock.h"

/* A test builds with fewer bits, so that different names have one lock id. */
#ifndef LOCK_ID_MASK
#define LOCK_ID_MASK PG_UINT64_MAX
#endif

/*
 * The seed is a secret of the database: pg_locks shows lock ids to every role,
 * and without it they would give guessable keys away.
 */
uint64
lock_id_of_text(const text *value, uint64 seed)
{
	return hash_bytes_extended((const unsigned char *) VARDATA_ANY(value),
							   VARSIZE_ANY_EXHDR(value), seed) & LOCK_ID_MASK;
}

uint64
lock_id(const OperationName *name, uint64 seed)
{
	return lock_id_of_text(name->key, lock_id_of_text(name->scope, seed));
}

LOCKTAG
lock_tag(uint64 id, uint16 lock_class)
{
	LOCKTAG		tag;

	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, (uint32) (id >> 32), (uint32) id, lock_class);
	return tag;
}

/* A test may take the operations' locks out. */
static bool
is_needed(const LOCKTAG *tag)
{
	return GUARD("lock") || tag->locktag_field4 != LOCK_CLASS_OPERATION;
}

/*
 * Locks belong to the (sub)transaction, not to the portal of the statement
 * that took them: a later statement must be able to give them back.
 */
static bool
acquire(const LOCKTAG *tag, bool dont_wait)
{
	ResourceOwner statement = CurrentResourceOwner;
	LockAcquireResult result;

	if (!is_needed(tag))
		return true;
	CurrentResourceOwner = CurTransactionResourceOwner;
	result = LockAcquire(tag, ExclusiveLock, false, dont_wait);
	CurrentResourceOwner = statement;
	return result != LOCKACQUIRE_NOT_AVAIL;
}

/* Takes the lock if nobody else has it. */
bool
lock_acquire_now(const LOCKTAG *tag)
{
	return acquire(tag, true);
}

/* Takes the lock, however long that takes. */
void
lock_acquire(const LOCKTAG *tag)
{
	(void) acquire(tag, false);
}

/* Gives one hold of the lock back, early. */
void
lock_release(const LOCKTAG *tag)
{
	ResourceOwner statement = CurrentResourceOwner;

	if (!is_needed(tag))
		return;
	CurrentResourceOwner = CurTransactionResourceOwner;
	(void) LockRelease(tag, ExclusiveLock, false);
	CurrentResourceOwner = statement;
}

/* Waits with lock_timeout set; the caller's own comes back afterwards. */
static void
acquire_with_timeout(const LOCKTAG *tag, int milliseconds)
{
	char		value[12];
	int			nest_level = NewGUCNestLevel();

	pg_ltoa(milliseconds, value);
	(void) set_config_option("lock_timeout", value, PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	lock_acquire(tag);
	AtEOXact_GUC(true, nest_level);
}

/*
 * Takes the lock, or returns false after that time if "may_fail".
 *
 * The server ends a timed wait with an error, so it happens in a
 * subtransaction: running out of time leaves the caller's transaction usable.
 */
static bool
acquire_in_subtransaction(const LOCKTAG *tag, int milliseconds, bool may_fail)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	volatile bool acquired = true;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		acquire_with_timeout(tag, milliseconds);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		if (!may_fail || error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
			ReThrowError(error);
		FreeErrorData(error);
		acquired = false;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return acquired;
}

/*
 * Takes the lock if it can be had in that time.  A lock_timeout of the caller's
 * that is shorter is an error, as everywhere.
 */
bool
lock_acquire_within(const LOCKTAG *tag, int64 microseconds)
{
	int			milliseconds = (int) Min(microseconds / 1000 + 1, INT_MAX);
	bool		ours = LockTimeout == 0 || milliseconds < LockTimeout;

	return acquire_in_subtransaction(tag, ours ? milliseconds : LockTimeout, ours);
}
