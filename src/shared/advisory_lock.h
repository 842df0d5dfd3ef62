/*
 * advisory_lock.h
 *		Advisory locks of a class of our own: their tags, taking and releasing.
 */
#ifndef IDEM_ADVISORY_LOCK_H
#define IDEM_ADVISORY_LOCK_H

#include "postgres.h"

#include "miscadmin.h"
#include "storage/lock.h"

#include "base/idempotency.h"
#include "base/siphash.h"

/*
 * Every class of advisory lock that we use, as the last field of the tag.
 * SQL users have 1 and 2, Citus has 4 to 16.
 */
#define LOCK_CLASS_OPERATION 0x1DE0
#define LOCK_CLASS_RESOURCE 0x1DE1
#define LOCK_CLASS_SWEEP 0x1DE2

extern LOCKTAG lock_of_operation(const OperationName *name, const SipHashKey *key, uint64 *id);
extern uint64 lock_id_of_resource(const text *resource, const SipHashKey *key);
extern bool lock_acquire_now(const LOCKTAG *tag);
extern void lock_acquire(const LOCKTAG *tag);
extern bool lock_acquire_within(const LOCKTAG *tag, int64 microseconds);
extern void lock_release(const LOCKTAG *tag);

static inline LOCKTAG
lock_tag(uint64 id, uint16 lock_class)
{
	LOCKTAG		tag;

	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, (uint32) (id >> 32), (uint32) id, lock_class);
	return tag;
}

#endif							/* IDEM_ADVISORY_LOCK_H */
