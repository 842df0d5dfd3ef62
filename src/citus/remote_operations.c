/*
 * remote_operations.c
 *		Operations that a transaction has begun on other nodes of a cluster.
 *
 * The node that has such an operation refuses the commit if it is unfinished.
 * Citus reports that as an error of its own, so the client would not see which
 * mistake it made.  Therefore COMMIT first asks the nodes, by a call that raises
 * the error of the guard.
 *
 * Nothing here is needed for the guarantees.  So this node may count roughly: it
 * asks too often rather than too seldom.
 */
#include "postgres.h"

#include "access/xact.h"
#include "executor/spi.h"
#include "nodes/pg_list.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "base/compat.h"
#include "citus/remote_operations.h"

/* for each scope with operations on another node, the query that asks its node */
static List *questions = NIL;

/* operations begun, less those that have been ended */
static int	unended = 0;

/* true if the count may be too low: after a batch or a rolled-back savepoint */
static bool uncertain = false;

static ProcessUtility_hook_type previous_utility = NULL;

static bool
is_asked(const char *question)
{
	ListCell   *cell;

	foreach(cell, questions)
	{
		if (strcmp(lfirst(cell), question) == 0)
			return true;
	}
	return false;
}

/* The transaction begins an operation on another node, or many at once. */
void
remote_operation_begun(const char *schema, const text *scope, bool many)
{
	char	   *question = psprintf("SELECT %s.idem_require_ended(%s)", quote_identifier(schema),
									quote_literal_cstr(text_to_cstring(scope)));
	MemoryContext caller;

	unended++;
	uncertain = uncertain || many;
	if (is_asked(question))
		return;
	caller = MemoryContextSwitchTo(TopTransactionContext);
	questions = lappend(questions, pstrdup(question));
	MemoryContextSwitchTo(caller);
}

void
remote_operation_ended(void)
{
	unended--;
}

static void
run(const char *query)
{
	if (SPI_execute(query, false, 0) < 0)
		elog(ERROR, "could not run \"%s\"", query);
}

/*
 * COMMIT has ended the transaction block, but has not committed yet: an error is
 * one of COMMIT.  Deferred triggers are part of the transaction and may end
 * operations, so they run before.
 */
static void
ask_nodes(void)
{
	ListCell   *cell;

	PushActiveSnapshot(GetTransactionSnapshot());
	SPI_connect();
	run("SET CONSTRAINTS ALL IMMEDIATE");
	foreach(cell, questions)
		run(lfirst(cell));
	SPI_finish();
	PopActiveSnapshot();
}

static bool
is_commit(const PlannedStmt *statement)
{
	return IsA(statement->utilityStmt, TransactionStmt) &&
		((const TransactionStmt *) statement->utilityStmt)->kind == TRANS_STMT_COMMIT;
}

static void
around_commit(PlannedStmt *statement, const char *text, bool read_only_tree,
			  ProcessUtilityContext context, ParamListInfo parameters,
			  QueryEnvironment *environment, DestReceiver *receiver, QueryCompletion *completion)
{
	(previous_utility ? previous_utility : standard_ProcessUtility)
		(statement, text, read_only_tree, context, parameters, environment, receiver, completion);
	/* in a transaction that has failed, COMMIT rolls back */
	if ((unended > 0 || uncertain) && questions != NIL && is_commit(statement) && IsTransactionState())
		ask_nodes();
}

static void
transaction_ends(XactEvent event, void *argument)
{
	if (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT && event != XACT_EVENT_PREPARE)
		return;
	questions = NIL;
	unended = 0;
	uncertain = false;
}

/* After a rollback to a savepoint this node does not know which operations are left. */
static void
subtransaction_ends(SubXactEvent event, SubTransactionId self, SubTransactionId parent, void *argument)
{
	if (event == SUBXACT_EVENT_ABORT_SUB)
		uncertain = true;
}

void
remote_operations_register(void)
{
	previous_utility = ProcessUtility_hook;
	ProcessUtility_hook = around_commit;
	RegisterXactCallback(transaction_ends, NULL);
	RegisterSubXactCallback(subtransaction_ends, NULL);
}
