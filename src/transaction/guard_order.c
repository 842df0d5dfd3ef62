/*
 * guard_order.c
 *		Keeps the commit guard in front of the commit callbacks of others.
 *
 * Callbacks run last in, first out.  postgres_fdw registers its own at the
 * first remote use of a session, and commits remotely in it.  So a guard that
 * was registered before that would refuse what has already happened elsewhere.
 * It has to be registered last when the transaction commits.
 *
 * Therefore COMMIT and PREPARE TRANSACTION register it anew.  Where no such
 * statement comes, the end of each statement does: of a single one, of several
 * that were sent as one, in a procedure that may commit, and in deferred
 * triggers, which run after COMMIT was given.
 *
 * One kind of callback still comes before the guard: one that is registered
 * after the last statement of a transaction, by a C function that the fast
 * path of the protocol calls without BEGIN, or by an expression of a deferred
 * trigger that needs no statement.
 */
#include "postgres.h"

#include "executor/executor.h"
#include "tcop/pquery.h"
#include "tcop/utility.h"

#include "base/compat.h"
#include "transaction/guard_order.h"

/* how the transaction will end, as far as it is known */
typedef enum Ending
{
	ENDING_UNKNOWN,				/* any statement may be the last one */
	ENDING_BY_COMMIT,			/* it began with BEGIN, so a COMMIT comes */
	ENDING_NOW					/* after the COMMIT command, while deferred triggers run */
} Ending;

static XactCallback guard;
static bool (*would_refuse) (void);	/* a COMMIT at this moment */
static bool used = false;		/* this transaction began or ended an operation */
static Ending ending = ENDING_UNKNOWN;

/* registrations are numbered; the lasting one has the number 0 */
static uintptr_t newest = 0;
static bool newest_stands = false;

static ExecutorEnd_hook_type previous_end = NULL;
static ProcessUtility_hook_type previous_utility = NULL;

static void *
registration_of(uintptr_t number)
{
	return (void *) number;
}

/*
 * May a registration be removed?  From 16 on not while callbacks run: the
 * server has already read which one comes next.  A portal that has a snapshot
 * shows that none runs: COMMIT in a procedure removes the snapshot first.
 */
static bool
may_unregister(void)
{
	return !CALLBACK_MAY_UNREGISTER_ITSELF ||
		(ActivePortal != NULL && ActivePortal->portalSnapshot != NULL);
}

/*
 * Registers the new one first: if there is no memory for it, the old one
 * stays.
 */
static void
register_last(void)
{
	RegisterXactCallback(guard, registration_of(newest + 1));
	newest++;
	if (newest_stands && may_unregister())
		UnregisterXactCallback(guard, registration_of(newest - 1));
	newest_stands = true;
}

static bool
is_needed(void)
{
	switch (ending)
	{
		case ENDING_BY_COMMIT:
			return false;
		case ENDING_NOW:
			return would_refuse();
		case ENDING_UNKNOWN:
			break;
	}
	return used;
}

/* Is the statement a part of a query that has not ended yet? */
static bool
is_nested(const QueryDesc *query)
{
	return ActivePortal != NULL && ActivePortal->stmts != NIL &&
		linitial_node(PlannedStmt, ActivePortal->stmts)->commandType != CMD_UTILITY &&
		query->sourceText != ActivePortal->sourceText;
}

static void
after_query(QueryDesc *query)
{
	/* before the calls below, which free the query */
	bool		renews = is_needed() && !is_nested(query);

	if (previous_end)
		previous_end(query);
	else
		standard_ExecutorEnd(query);
	if (renews)
		register_last();
}

static bool
is_transaction_statement(const PlannedStmt *statement, TransactionStmtKind kind, TransactionStmtKind other)
{
	const TransactionStmt *transaction = (const TransactionStmt *) statement->utilityStmt;

	return IsA(transaction, TransactionStmt) && (transaction->kind == kind || transaction->kind == other);
}

static void
around_utility(PlannedStmt *statement, const char *text, bool read_only_tree,
			   ProcessUtilityContext context, ParamListInfo parameters,
			   QueryEnvironment *environment, DestReceiver *receiver, QueryCompletion *completion)
{
	bool		begins = is_transaction_statement(statement, TRANS_STMT_BEGIN, TRANS_STMT_START);
	/* not if it has failed: its callbacks have run, so nothing would reset "ending" */
	bool		ends = !IsAbortedTransactionBlockState() &&
		is_transaction_statement(statement, TRANS_STMT_COMMIT, TRANS_STMT_PREPARE);

	if (ends)
	{
		ending = ENDING_NOW;
		if (used)
			register_last();
	}
	(previous_utility ? previous_utility : standard_ProcessUtility)
		(statement, text, read_only_tree, context, parameters, environment, receiver, completion);
	if (begins)
		ending = ENDING_BY_COMMIT;
	else if (!ends && is_needed())
		register_last();
}

/* The transaction is about to begin or end an operation. */
void
guard_use(void)
{
	used = true;
	/* a call by the fast path of the protocol: no statement will end */
	if (ActivePortal == NULL)
		register_last();
}

/* The transaction has ended. */
void
guard_forget(void *registered)
{
	used = false;
	ending = ENDING_UNKNOWN;
	if (!CALLBACK_MAY_UNREGISTER_ITSELF || registered == registration_of(0))
		return;
	UnregisterXactCallback(guard, registered);
	newest_stands = false;
}

/*
 * The registration for the whole session: it catches a begin in the commit
 * callback of another extension, which the renewed registration would miss.
 */
void
guard_register(XactCallback callback, bool (*refuses) (void))
{
	guard = callback;
	would_refuse = refuses;
	/* if a step fails, all steps are tried again */
	UnregisterXactCallback(callback, registration_of(0));
	RegisterXactCallback(callback, registration_of(0));
	previous_end = ExecutorEnd_hook;
	ExecutorEnd_hook = after_query;
	previous_utility = ProcessUtility_hook;
	ProcessUtility_hook = around_utility;
}
