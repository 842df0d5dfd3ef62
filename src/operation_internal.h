/*
 * operation_internal.h
 *		What begin.c, end.c, owner.c and release.c share of an operation.
 */
#ifndef IDEM_OPERATION_INTERNAL_H
#define IDEM_OPERATION_INTERNAL_H

#include "postgres.h"

#include "storage/lock.h"

#include "operation.h"
#include "scope.h"
#include "transaction.h"

/*
 * An operation, and what is known of it before anything is looked up.  It is
 * gathered once, by handle_open, and does not change.
 */
typedef struct Handle
{
	const Catalog *catalog;
	const OperationName *name;
	uint64		id;
	LOCKTAG		lock;
	Standing	standing;		/* this transaction's */
	Policy		policy;			/* of its scope */
} Handle;

/* all that decides what a begin does */
typedef struct Facts
{
	const Record *found;		/* NULL: there is none, or it counts as absent */
	bool		same_request;	/* as that of the record that was found */
	bool		locked;			/* the caller holds the operation's lock */
	int32		max_attempts;	/* 0: no limit */
	TimestampTz now;
} Facts;

typedef enum Verdict
{
	VERDICT_ACQUIRE,
	VERDICT_EXHAUSTED,			/* acquire, but for max_attempts */
	VERDICT_IN_PROGRESS,		/* another session's lease runs */
	VERDICT_IN_TRANSACTION,		/* an open transaction owns it, and has written nothing yet */
	VERDICT_MISMATCH,
	VERDICT_REPLAY
} Verdict;

extern Handle handle_open(const OperationName *name, LOCKMODE mode);
extern void handle_note_end(const Handle *handle, bool wakes);
extern TimestampTz time_after(TimestampTz start, int64 duration, const char *name);
extern void set_lease(const Handle *handle, Record *record, int64 lease);

extern bool is_absent(const Record *found, TimestampTz now);
extern Verdict decide(const Facts *facts);

extern Answer bare_answer(Outcome outcome, const OperationName *name);
extern Answer replay(const Record *found, TimestampTz now);
extern Answer in_progress(const OperationName *name, const Record *found, TimestampTz now);
extern Answer in_progress_here(const Handle *handle, TimestampTz now);

/* Makes sure that this transaction may hold the operation's lock until its end. */
static inline void
handle_reserve(const Handle *handle)
{
	transaction_reserve(standing_holds_lock(&handle->standing) ? 0 : 1);
}

#endif							/* IDEM_OPERATION_INTERNAL_H */
