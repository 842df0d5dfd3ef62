/*
 * journal.h
 *		The begins and ends of this transaction, and a limit on its locks.
 */
#ifndef IDEM_JOURNAL_H
#define IDEM_JOURNAL_H

#include "postgres.h"

#include "base/idempotency.h"

typedef enum Phase
{
	PHASE_NONE,					/* never begun, or released */
	PHASE_PENDING,				/* begun by this transaction */
	PHASE_ENDED					/* ended by this transaction */
} Phase;

/* the state of one operation in this transaction */
typedef struct OperationState
{
	Phase		phase;
	int			level;			/* the nesting level that began it */
	bool		locked;			/* released, but the lock is still held */
	bool		wrote;			/* this transaction wrote or deleted the row */
	bool		wakes;			/* COMMIT wakes those who wait for its lease */
	bool		forgets;		/* COMMIT forgets its lost attempts */
	TimestampTz stored_at;		/* of the row that has the name; NO_TIME: none */
	int32		attempt;
	int64		fence;			/* NO_FENCE: transaction-bound */
	Digest		request;
	TimestampTz lease_expires_at;
	TimestampTz created_at;
} OperationState;

typedef struct Entry Entry;

extern OperationState journal_state(uint64 id, const OperationName *name);
extern Entry *journal_next(const Entry *entry);
extern const OperationState *entry_state(const Entry *entry);
extern const OperationName *entry_name(const Entry *entry);
extern uint64 entry_id(const Entry *entry);
extern void journal_set(uint64 id, const OperationName *name, OperationState state);
extern void journal_add_locks(int count);
extern void journal_reserve(int locks);
extern void journal_close(void);
extern bool journal_is_closed(void);
extern bool journal_has_unfinished(void);
extern bool journal_is_empty(void);
extern void journal_forget(void);

static inline bool
same_text(const text *a, const text *b)
{
	int			length = VARSIZE_ANY_EXHDR(a);

	return length == (int) VARSIZE_ANY_EXHDR(b) &&
		memcmp(VARDATA_ANY(a), VARDATA_ANY(b), length) == 0;
}

/* Does the operation's lock stay with this transaction? */
static inline bool
state_holds_lock(const OperationState *state)
{
	return state->phase != PHASE_NONE || state->wrote || state->locked;
}

/* Does it keep the transaction from committing? */
static inline bool
state_is_unfinished(const OperationState *state)
{
	return state->phase == PHASE_PENDING && state->fence == NO_FENCE;
}

#endif							/* IDEM_JOURNAL_H */
