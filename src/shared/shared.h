/*
 * shared.h
 *		What all sessions share in memory, where the library is preloaded.
 */
#ifndef IDEM_SHARED_H
#define IDEM_SHARED_H

#include "postgres.h"

#include "port/atomics.h"
#include "storage/condition_variable.h"

#define WAKE_UPS 128
#ifndef COUNTED_DATABASES
#define COUNTED_DATABASES 256
#endif
/* collectors at a time: one that works, and those that do not react */
#define VISITORS 16

/* what is counted; in the order of the columns of idempotency_stats */
typedef enum Counter
{
	COUNT_ACQUIRED,
	COUNT_REPLAYED_COMPLETED,
	COUNT_REPLAYED_FAILED,
	COUNT_IN_PROGRESS,
	COUNT_MISMATCHES,
	COUNT_TAKEN_OVER,
	COUNT_COMPLETED,
	COUNT_FAILED,
	COUNT_RELEASED,
	COUNT_FORGOTTEN,
	COUNT_LEASES_LOST,
	COUNT_COMMITS_REFUSED,
	COUNT_WAITS,
	COUNT_WAIT_MICROSECONDS,
	COUNT_COLLECTED_ROWS,
	COUNT_SWEEPS,
	/* not sums but the newest value */
	COUNT_LAST_SWEEP_AT,
	COUNT_LAST_SWEEP_MICROSECONDS,
	COUNT_BACKLOG_ROWS,
	/* a sum again: since 1.1, and not of idem_stats() */
	COUNT_ATTEMPTS_LOST
} Counter;
#define COUNTERS (COUNT_ATTEMPTS_LOST + 1)

typedef struct DatabaseCounters
{
	pg_atomic_uint64 word;		/* the database that owns the slot: see stats.c */
	pg_atomic_uint64 counts[COUNTERS];
} DatabaseCounters;

typedef struct Shared
{
	ConditionVariable wake_ups[WAKE_UPS];
	DatabaseCounters databases[COUNTED_DATABASES];
	pg_atomic_uint32 given_back;	/* slots of databases, so far */

	/* see visit.c */
	pg_atomic_uint64 visitors[VISITORS];
	pg_atomic_uint64 visit_result;
} Shared;

extern Shared *shared;			/* NULL: not preloaded */
extern struct LWLock *shared_lock;	/* of the slots of databases */

extern void shared_register(void);

#endif							/* IDEM_SHARED_H */
