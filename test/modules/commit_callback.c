/*
 * commit_callback.c
 *		Stands in for other extensions that act in their commit callbacks, as
 *		postgres_fdw and Citus do.  Only for test/t/058_late_callbacks.pl.
 */
#include "postgres.h"

#include "access/xact.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(run_at_commit);

static char *statement = NULL;

static void
act(XactEvent event, void *arg)
{
	char	   *sql = statement;

	if (event == XACT_EVENT_ABORT)
		statement = NULL;
	if (event != XACT_EVENT_PRE_COMMIT || sql == NULL)
		return;
	statement = NULL;
	PushActiveSnapshot(GetTransactionSnapshot());
	SPI_connect();
	ereport(NOTICE, (errmsg("callback runs")));
	SPI_execute(sql, false, 0);
	SPI_finish();
	PopActiveSnapshot();
}

/* run_at_commit(sql text): runs it in a commit callback of this transaction */
Datum
run_at_commit(PG_FUNCTION_ARGS)
{
	static bool registered = false;

	statement = MemoryContextStrdup(TopTransactionContext,
									text_to_cstring(PG_GETARG_TEXT_PP(0)));
	if (!registered)
		RegisterXactCallback(act, NULL);
	registered = true;
	PG_RETURN_VOID();
}
