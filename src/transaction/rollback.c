/*
 * rollback.c
 *		Which rollbacks lose an attempt: the server counts them.
 *
 * A message that its consumer cannot work on leaves no row: its transaction is
 * always rolled back.  An attempt is lost if its transaction had begun no other
 * operation, and if the rollback may be the message's fault.  It is not if the
 * server or its administrator is the cause.
 *
 * The server does not give callbacks the cause.  So the order of the questions
 * in is_lost() matters: each is only answered where those before it are not.
 *
 * Nothing here can fail.  What is begun after a savepoint is gone from the journal
 * when the transaction aborts, so it is noted here.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "pgstat.h"
#include "storage/ipc.h"
#include "tcop/pquery.h"
#include "utils/elog.h"

#include "base/compat.h"
#include "shared/lost_attempts.h"
#include "shared/stats.h"
#include "transaction/journal.h"
#include "transaction/rollback.h"

/* in English, as message_id has it: the server translates only the text for the client */
#define STATEMENT_TIMEOUT_MESSAGE "canceling statement due to statement timeout"

typedef enum Cause
{
	CAUSE_NONE,					/* nothing was begun that could be lost */
	CAUSE_OPERATION,
	CAUSE_SERVER				/* or its administrator */
} Cause;

/* what this transaction has begun, whatever a savepoint took back */
typedef struct Begun
{
	int			count;			/* 0, 1, or 2 for several */
	uint64		id;				/* of the one */
	int32		limit;			/* of its lost attempts; 0: none */
	bool		released;		/* after a savepoint: its rollback may take the release back */
	bool		excused;		/* the server failed a savepoint, and no other has begun since */
} Begun;

static Begun begun = {0};

/* the cause of the last error that this process reported since its first begin */
static Cause reported = CAUSE_NONE;
static emit_log_hook_type previous_log_hook = NULL;

/* The transaction owns the operation. */
void
rollback_note_begin(uint64 id, int32 limit)
{
	if (begun.count == 0)
		reported = CAUSE_NONE;
	if (begun.count == 0 || (begun.count == 1 && begun.id == id))
		begun = (Begun) {.count = 1,.id = id,.limit = limit};
	else
		begun.count = 2;
}

/*
 * A release takes the begin back.  After a savepoint it still counts: the rollback
 * to the savepoint may take the release back.
 */
void
rollback_note_release(uint64 id)
{
	if (begun.count != 1 || begun.id != id)
		return;
	if (GetCurrentTransactionNestLevel() == 1)
		begun.count = 0;
	else
		begun.released = true;
}

void
rollback_forget(void)
{
	begun.count = 0;
}

static bool
is_statement_timeout(const char *message)
{
	return message != NULL && strcmp(message, STATEMENT_TIMEOUT_MESSAGE) == 0;
}

/* The cause of an error with this SQLSTATE and message. */
static Cause
cause_of_error(int sqlstate, const char *message)
{
	switch (ERRCODE_TO_CATEGORY(sqlstate))
	{
		case MAKE_SQLSTATE('0', '8', '0', '0', '0'):	/* connection */
		case MAKE_SQLSTATE('4', '0', '0', '0', '0'):	/* transaction rollback */
		case MAKE_SQLSTATE('5', '3', '0', '0', '0'):	/* resources */
		case MAKE_SQLSTATE('5', '8', '0', '0', '0'):	/* system */
			return CAUSE_SERVER;
		case MAKE_SQLSTATE('5', '7', '0', '0', '0'):	/* operator intervention */
			return sqlstate == ERRCODE_QUERY_CANCELED && is_statement_timeout(message) ? CAUSE_OPERATION : CAUSE_SERVER;
	}
	return sqlstate == ERRCODE_LOCK_NOT_AVAILABLE ? CAUSE_SERVER : CAUSE_OPERATION;
}

/*
 * The cause of the error that the server handles now; CAUSE_NONE: it handles none.
 * Then geterrcode() itself raises an error, which resets the holdoff counts of
 * interrupts: they are restored here.
 */
static Cause
cause_of_error_if_any(void)
{
	MemoryContext context = CurrentMemoryContext;
	uint32		holdoff = InterruptHoldoffCount;
	uint32		cancel_holdoff = QueryCancelHoldoffCount;
	volatile Cause cause = CAUSE_NONE;
	int			sqlstate;

	PG_TRY();
	{
		/* the context callbacks belong to a transaction that is gone */
		error_context_stack = NULL;
		sqlstate = geterrcode();
		cause = cause_of_error(sqlstate, sqlstate == ERRCODE_QUERY_CANCELED ? CopyErrorData()->message_id : NULL);
	}
	PG_CATCH();
	{
		FlushErrorState();
		MemoryContextSwitchTo(context);
		InterruptHoldoffCount = holdoff;
		QueryCancelHoldoffCount = cancel_holdoff;
	}
	PG_END_TRY();
	return cause;
}

/* True while the error of a statement aborts the transaction or the savepoint. */
static bool
is_error_of_statement(void)
{
	return !proc_exit_inprogress && TransactionBlockStatusCode() != 'E' && ActivePortal == NULL;
}

/*
 * An error after a savepoint aborts only the savepoint at once.  The client rolls the
 * transaction back later, and then the error is gone: so its cause is noted here.
 */
void
rollback_note_savepoint(SubXactEvent event)
{
	if (begun.count != 1)
		return;
	if (event == SUBXACT_EVENT_START_SUB)
		begun.excused = false;
	else if (event == SUBXACT_EVENT_ABORT_SUB && is_error_of_statement())
		begun.excused = cause_of_error_if_any() == CAUSE_SERVER;
}

/* For processes that end with an error: when they abort, the server has forgotten it. */
static void
hear_report(ErrorData *error)
{
	if (error->elevel >= ERROR)
		reported = cause_of_error(error->sqlerrcode, error->message_id);
	if (previous_log_hook)
		previous_log_hook(error);
}

static bool
is_lost(void)
{
	if (begun.count != 1 || begun.released || begun.excused)
		return false;
	/* a background worker reports its error, and ends with it */
	if (proc_exit_inprogress && MyBackendType == B_BG_WORKER)
		return reported == CAUSE_OPERATION;
	/* the connection is lost, or the server has cut it for the session's fault */
	if (proc_exit_inprogress)
		return pgStatSessionEndCause != DISCONNECT_KILLED;
	if (is_error_of_statement())
		return cause_of_error_if_any() == CAUSE_OPERATION;
	/* the client's ROLLBACK */
	if (TransactionBlockStatusCode() == 'E')
		return true;
	/* a procedure's ROLLBACK, or its COMMIT; nothing of the operation fails after the guard */
	return !journal_is_closed();
}

/* The transaction is rolled back; the lock of the operation is still held. */
void
rollback_count(void)
{
	if (lost_attempts_are_counted() && is_lost())
	{
		lost_attempts_add(begun.id, begun.limit);
		stats_count(COUNT_ATTEMPTS_LOST);
	}
}

void
rollback_register(void)
{
	previous_log_hook = emit_log_hook;
	emit_log_hook = hear_report;
}
