/*
 * transaction.h
 *		What this transaction has begun and ended.
 */
#ifndef IDEM_TRANSACTION_H
#define IDEM_TRANSACTION_H

#include "postgres.h"

#include "idempotency.h"

typedef enum Phase
{
	PHASE_NONE,					/* never begun, or given up again */
	PHASE_PENDING,				/* begun by this transaction */
	PHASE_ENDED					/* ended by this transaction */
} Phase;

/* where this transaction stands with one operation */
typedef struct Standing
{
	Phase		phase;
	int			level;			/* nesting level that begun it */
	bool		locked;			/* given up, but not its lock */
	bool		wrote;			/* this transaction wrote or deleted the row */
	TimestampTz stored_at;		/* of the row that has the name; NO_TIME: none */
	int32		attempt;
	int64		fence;			/* NO_FENCE: transaction-bound */
	Digest		request;
	TimestampTz lease_expires_at;
	TimestampTz created_at;
} Standing;

extern void transaction_register(void);
extern Standing transaction_standing(uint64 id, const OperationName *name);
extern void transaction_note(uint64 id, const OperationName *name, Standing standing);
extern void transaction_note_locks(int count);
extern void transaction_wake_at_commit(uint64 id);
extern bool transaction_holds_lock(const Standing *standing);
extern void transaction_reserve(int count);

#endif							/* IDEM_TRANSACTION_H */
