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

/* an operation, and what is known of it before anything is looked up */
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
	VERDICT_IN_PROGRESS,		/* somebody's lease runs */
	VERDICT_IN_TRANSACTION,		/* an open transaction owns it, and has written nothing yet */
	VERDICT_MISMATCH,
	VERDICT_REPLAY
} Verdict;

extern Handle handle_open(const OperationName *name, LOCKMODE mode);
extern void handle_reserve(const Handle *handle);
extern void handle_note(Handle *handle, Standing standing);
extern void handle_note_end(Handle *handle);
extern TimestampTz time_after(TimestampTz start, int64 duration, const char *name);
extern void set_lease(const Handle *handle, Record *record, int64 lease);

extern bool is_absent(const Record *found, TimestampTz now);
extern Verdict decide(const Facts *facts);

extern Answer bare_answer(Outcome outcome, const OperationName *name);
extern Answer replay(const Record *found, TimestampTz now);
extern Answer in_progress(const OperationName *name, const Record *found, TimestampTz now);
extern Answer in_progress_here(const Handle *handle, TimestampTz now);

#endif							/* IDEM_OPERATION_INTERNAL_H */
