/*
 * advisory_lock.c
 *		Advisory locks of a class of our own: their tags, taking and releasing.
 *
 * An operation's lock makes begin exclusive.  A session that holds the lock
 * and then looks the key up with a fresh snapshot sees every committed record,
 * because a commit becomes visible before its locks are released.  Two names
 * with the same lock id wait for each other without need; nothing worse can
 * happen, as the store's primary key decides.
 */
#include "postgres.h"

#include <limits.h>

#include "access/xact.h"
#include "storage/proc.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/resowner.h"

#include "base/compat.h"
#include "base/subtransaction.h"
#include "shared/advisory_lock.h"

/* A test builds with fewer bits, so that different names have one lock id. */
#ifndef LOCK_ID_MASK
#define LOCK_ID_MASK PG_UINT64_MAX
#endif

/* kind, length, and two names of characters of at most 4 bytes */
#define ENOUGH_FOR_NAMES (1 + sizeof(uint32) + (size_t) 2 * 4 * MAX_NAME_CHARACTERS)

/*
 * pg_locks shows lock ids to every role.  So they are made with a secret key
 * of the database: a role that sees ids, even of names that it has chosen,
 * learns nothing of other names and cannot choose names that share an id.
 * The kind of the name and the length of its scope come first, so that no
 * two names are the same bytes.
 */
static uint64
lock_id(char kind, const char *scope, uint32 scope_length, const text *name, const SipHashKey *key)
{
	char		short_message[ENOUGH_FOR_NAMES];
	Size		length = 1 + sizeof(scope_length) + scope_length + VARSIZE_ANY_EXHDR(name);
	char	   *message = length <= sizeof(short_message) ? short_message : palloc(length);
	char	   *next = message;

	*next++ = kind;
	memcpy(next, &scope_length, sizeof(scope_length));
	next += sizeof(scope_length);
	memcpy(next, scope, scope_length);
	next += scope_length;
	memcpy(next, VARDATA_ANY(name), VARSIZE_ANY_EXHDR(name));
	return siphash(key, message, length) & LOCK_ID_MASK;
}

uint64
lock_id_of_resource(const text *resource, const SipHashKey *key)
{
	return lock_id('r', "", 0, resource, key);
}

/* The lock of an operation, and its id, by which the journal knows the operation. */
LOCKTAG
lock_of_operation(const OperationName *name, const SipHashKey *key, uint64 *id)
{
	*id = lock_id('o', VARDATA_ANY(name->scope), VARSIZE_ANY_EXHDR(name->scope), name->key, key);
	return lock_tag(*id, LOCK_CLASS_OPERATION);
}

/*
 * Locks belong to the (sub)transaction, not to the portal of the statement
 * that took them: a later statement must be able to release them.
 */
static bool
acquire_for_transaction(const LOCKTAG *tag, bool dont_wait)
{
	ResourceOwner statement = CurrentResourceOwner;
	LockAcquireResult result;

	CurrentResourceOwner = CurTransactionResourceOwner;
	result = LockAcquire(tag, ExclusiveLock, false, dont_wait);
	CurrentResourceOwner = statement;
	return result != LOCKACQUIRE_NOT_AVAIL;
}

/*
 * Takes the lock if no other session has it.  While the caller has the lock of an
 * operation, no other session begins, ends or extends that operation.
 */
bool
lock_acquire_now(const LOCKTAG *tag)
{
	return acquire_for_transaction(tag, true);
}

/* Takes the lock, and waits as long as necessary. */
void
lock_acquire(const LOCKTAG *tag)
{
	(void) acquire_for_transaction(tag, false);
}

/* Releases the lock once, before the transaction ends. */
void
lock_release(const LOCKTAG *tag)
{
	ResourceOwner statement = CurrentResourceOwner;

	CurrentResourceOwner = CurTransactionResourceOwner;
	(void) LockRelease(tag, ExclusiveLock, false);
	CurrentResourceOwner = statement;
}

typedef struct TimedLock
{
	const LOCKTAG *tag;
	int			milliseconds;
} TimedLock;

/* Waits with lock_timeout set, and restores the caller's own afterwards. */
static void
acquire_with_timeout(void *argument)
{
	const TimedLock *timed = argument;
	char		value[12];
	int			nest_level = NewGUCNestLevel();

	pg_ltoa(timed->milliseconds, value);
	(void) set_config_option("lock_timeout", value, PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	lock_acquire(timed->tag);
	AtEOXact_GUC(true, nest_level);
}

static bool
is_timeout(int sqlstate)
{
	return sqlstate == ERRCODE_LOCK_NOT_AVAILABLE;
}

static bool
is_no_error(int sqlstate)
{
	return false;
}

/*
 * Takes the lock if it comes free in that time.  If the caller's lock_timeout
 * is shorter and runs out, that is an error, as everywhere.
 *
 * The server ends a timed wait with an error, so it happens in a
 * subtransaction: running out of time leaves the caller's transaction usable.
 */
bool
lock_acquire_within(const LOCKTAG *tag, int64 microseconds)
{
	int			milliseconds = (int) Min(microseconds / 1000 + 1, INT_MAX);
	bool		ours = LockTimeout == 0 || milliseconds < LockTimeout;
	TimedLock	timed = {.tag = tag,.milliseconds = ours ? milliseconds : LockTimeout};
	Subtransaction work = {acquire_with_timeout, ours ? is_timeout : is_no_error, &timed};

	return subtransaction_run(&work, NULL);
}
