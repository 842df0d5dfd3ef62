/*
 * worker.c
 *		Stands in for background workers of others that report an error and go on.
 *		Only for test/t/044_lost_attempts.pl.
 */
#include "postgres.h"

#include "access/xact.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "storage/ipc.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(run_in_worker);
PGDLLEXPORT void worker_main(Datum arg);

/* A statement that fails ends its transaction.  The worker ends in the last one. */
void
worker_main(Datum arg)
{
	char	   *rest = MyBgworkerEntry->bgw_extra;
	char	   *volatile statement;

	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection("postgres", NULL, 0);
	while ((statement = strsep(&rest, ";")) != NULL)
	{
		PG_TRY();
		{
			StartTransactionCommand();
			PushActiveSnapshot(GetTransactionSnapshot());
			SPI_connect();
			SPI_execute(statement, false, 0);
		}
		PG_CATCH();
		{
			EmitErrorReport();
			AbortCurrentTransaction();
			FlushErrorState();
		}
		PG_END_TRY();
	}
	proc_exit(0);
}

/* run_in_worker(statements text): waits until the worker has ended */
Datum
run_in_worker(PG_FUNCTION_ARGS)
{
	BackgroundWorker worker = {
		.bgw_name = "worker of a test",
		.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION,
		.bgw_start_time = BgWorkerStart_RecoveryFinished,
		.bgw_restart_time = BGW_NEVER_RESTART,
		.bgw_library_name = "worker",
		.bgw_function_name = "worker_main",
		.bgw_notify_pid = MyProcPid,
	};
	BackgroundWorkerHandle *handle;

	text_to_cstring_buffer(PG_GETARG_TEXT_PP(0), worker.bgw_extra, sizeof(worker.bgw_extra));
	if (!RegisterDynamicBackgroundWorker(&worker, &handle))
		elog(ERROR, "no place for a worker");
	if (WaitForBackgroundWorkerShutdown(handle) != BGWH_STOPPED)
		elog(ERROR, "the worker has not ended");
	PG_RETURN_VOID();
}
