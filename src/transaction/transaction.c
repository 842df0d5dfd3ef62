/*
 * transaction.c
 *		Refuses COMMIT while an operation of this transaction is unfinished.
 *
 * Until it ends, a transaction-bound operation is only an entry of the journal
 * and a lock.  A rollback to a savepoint takes back the begins and ends after
 * it.
 *
 * The guard only refuses, it never writes: a write at this point would come
 * after the deferred constraints were checked and would get round READ ONLY.
 * Nothing here can fail at COMMIT or ABORT proper.
 */
#include "postgres.h"

#include "access/xact.h"
#include "tcop/pquery.h"
#include "utils/builtins.h"

#include "base/compat.h"
#include "base/fault.h"
#include "shared/lost_attempts.h"
#include "shared/stats.h"
#include "shared/wait.h"
#include "transaction/guard_order.h"
#include "transaction/journal.h"
#include "transaction/rollback.h"
#include "transaction/savepoint.h"
#include "transaction/transaction.h"

/*
 * An operation of that key that this transaction has begun, in whatever
 * scope, and not ended yet; NULL: there is none.
 */
const OperationName *
transaction_begun_with_key(const OperationName *name)
{
	const OperationName *begun = NULL;

	for (const Entry *entry = journal_next(NULL); entry; entry = journal_next(entry))
	{
		if (entry_state(entry)->phase == PHASE_PENDING && same_text(entry_name(entry)->key, name->key))
			begun = entry_name(entry);
	}
	return begun;
}

/*
 * Is the transaction that ends a single statement, sent without BEGIN?  A COMMIT
 * in a procedure is not: the CALL still runs.
 */
static bool
is_autocommit(void)
{
	return !IsTransactionBlock() && ActivePortal == NULL;
}

/* Raises ID428 if the transaction has begun an operation and not ended it. */
void
transaction_require_ended(void)
{
	const char *needs;

	if (!journal_has_unfinished())
		return;
	needs = is_autocommit() ? "begin needs BEGIN ... COMMIT, or a lease: " : "";

	for (const Entry *entry = journal_next(NULL); entry; entry = journal_next(entry))
	{
		const OperationName *name = entry_name(entry);

		if (!state_is_unfinished(entry_state(entry)))
			continue;
		stats_count(COUNT_COMMITS_REFUSED);
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_UNFINISHED),
				 errmsg("%soperation \"%s\" of scope \"%s\" was begun but neither completed, failed nor released",
						needs, text_to_cstring(name->key),
						text_to_cstring(name->scope)),
				 errhint("Call idem_complete, idem_fail or idem_release before COMMIT, in the transaction that called idem_begin, or begin with a lease.")));
	}
}

/* The lock of each operation is still held: its next owner sees no lost attempts. */
static void
forget_lost_attempts(void)
{
	for (const Entry *entry = journal_next(NULL); entry; entry = journal_next(entry))
	{
		if (entry_state(entry)->forgets)
			lost_attempts_forget(entry_id(entry));
	}
}

/* Called when other sessions can see the commit. */
static void
wake_waiters(void)
{
	for (const Entry *entry = journal_next(NULL); entry; entry = journal_next(entry))
	{
		if (entry_state(entry)->wakes)
			lease_wait_wake(entry_id(entry));
	}
}

static void
end_transaction(void *registered)
{
	rollback_forget();
	journal_forget();
	guard_forget(registered);
}

static void
transaction_event(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
		case XACT_EVENT_PRE_PREPARE:
			transaction_require_ended();
			journal_close();
			break;
		case XACT_EVENT_COMMIT:
			if (!journal_is_empty())
				FAULT_POINT("commit-visible");
			wake_waiters();
			pg_fallthrough;
		case XACT_EVENT_PREPARE:
			forget_lost_attempts();
			end_transaction(arg);
			break;
		case XACT_EVENT_ABORT:
			rollback_count();
			end_transaction(arg);
			break;
		case XACT_EVENT_PARALLEL_PRE_COMMIT:
		case XACT_EVENT_PARALLEL_COMMIT:
		case XACT_EVENT_PARALLEL_ABORT:
			/* nothing is ever begun in a parallel worker */
			break;
	}
}

static void
subtransaction_event(SubXactEvent event, SubTransactionId self,
					 SubTransactionId parent, void *arg)
{
	rollback_note_savepoint(event);
	if (event == SUBXACT_EVENT_ABORT_SUB)
		savepoint_undo(GetCurrentTransactionNestLevel());
	else if (event == SUBXACT_EVENT_COMMIT_SUB)
		savepoint_hand_over(GetCurrentTransactionNestLevel());
}

void
transaction_register(void)
{
	/* if a step fails, all steps are tried again */
	UnregisterSubXactCallback(subtransaction_event, NULL);
	RegisterSubXactCallback(subtransaction_event, NULL);
	guard_register(transaction_event, journal_has_unfinished);
	rollback_register();
}
