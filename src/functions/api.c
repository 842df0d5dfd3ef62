/*
 * api.c
 *		The SQL functions: read the arguments, call, form the answer.
 */
#include "postgres.h"

#include "access/xact.h"
#include "fmgr.h"
#include "utils/guc.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "collector/gc.h"
#include "functions/answer.h"
#include "functions/arguments.h"
#include "operation/operation.h"
#include "operation/resource_locks.h"
#include "schema/table_owner.h"
#include "scope/scope.h"
#include "seal/fingerprint.h"
#include "shared/lost_attempts.h"
#include "store/store_kind.h"
#include "store/stream.h"
#include "transaction/transaction.h"

SQL_FUNCTION(idem_advance);
SQL_FUNCTION(idem_begin);
SQL_FUNCTION(idem_complete);
SQL_FUNCTION(idem_complete_operation);
SQL_FUNCTION(idem_extend);
SQL_FUNCTION(idem_extend_operation);
SQL_FUNCTION(idem_fail);
SQL_FUNCTION(idem_fail_operation);
SQL_FUNCTION(idem_fingerprint);
SQL_FUNCTION(idem_forget);
SQL_FUNCTION(idem_forget_failed);
SQL_FUNCTION(idem_gc);
SQL_FUNCTION(idem_lock);
SQL_FUNCTION(idem_lookup);
SQL_FUNCTION(idem_lost_attempts);
SQL_FUNCTION(idem_progress);
SQL_FUNCTION(idem_progress_operation);
SQL_FUNCTION(idem_require_ended);
SQL_FUNCTION(idem_release);
SQL_FUNCTION(idem_release_operation);
SQL_FUNCTION(idem_step_key);

/* idem_begin(key, request, scope, request_hash, lease, wait, max_attempts) */
Datum
idem_begin(PG_FUNCTION_ARGS)
{
	static const BeginArguments positions = {
		"idem_begin()",.key = 0,.request = 1,.scope = 2,.request_hash = 3,
		.lease = 4,.wait = 5,.max_attempts = 6
	};
	BeginRequest request = begin_arguments(fcinfo, &positions);
	Answer		answer = operation_begin(&request);

	PG_RETURN_DATUM(answer_to_datum(&answer));
}

/* The name and the fence from an idem_operation. */
static OperationName
operation_argument(FunctionCallInfo fcinfo, int argument, int64 *fence)
{
	require_argument(fcinfo, argument, "operation");
	return name_of_operation(PG_GETARG_DATUM(argument), fence);
}

static void
end_completed(FunctionCallInfo fcinfo, EndRequest *request, int code, int retention)
{
	request->status = STATUS_COMPLETED;
	request->response = response_arguments(fcinfo, 1, code);
	request->retention = optional_duration(fcinfo, retention, "retention", false);
	(void) operation_end(request);
}

/* idem_complete(key, response, scope, code, headers, body, fence, retention) */
Datum
idem_complete(PG_FUNCTION_ARGS)
{
	EndRequest	request = {0};

	require_writable("idem_complete()");
	request.name = name_arguments(fcinfo, 0, 2);
	request.fence = optional_fence(fcinfo, 6);
	end_completed(fcinfo, &request, 3, 7);
	PG_RETURN_VOID();
}

/* idem_complete(operation, response, code, headers, body, retention) */
Datum
idem_complete_operation(PG_FUNCTION_ARGS)
{
	EndRequest	request = {0};

	require_writable("idem_complete()");
	request.name = operation_argument(fcinfo, 0, &request.fence);
	end_completed(fcinfo, &request, 2, 5);
	PG_RETURN_VOID();
}

static void
end_failed(FunctionCallInfo fcinfo, EndRequest *request, int code, int retryable)
{
	int			retry_after = retryable + 1;

	request->status = STATUS_FAILED;
	request->response = response_arguments(fcinfo, 1, code);
	request->retryable = required_bool(fcinfo, retryable, "retryable");
	request->retry_after = optional_duration(fcinfo, retry_after, "retry_after", true);
	request->retention = optional_duration(fcinfo, retryable + 2, "retention", false);
	if (!request->retryable && !PG_ARGISNULL(retry_after))
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_BAD_ARGUMENT),
				 errmsg("retry_after needs retryable => true"),
				 errhint("Give retryable => true, or leave retry_after out.")));
	(void) operation_end(request);
}

/*
 * idem_fail(key, error, scope, code, headers, body, fence, retryable,
 *			 retry_after, retention)
 */
Datum
idem_fail(PG_FUNCTION_ARGS)
{
	EndRequest	request = {0};

	require_writable("idem_fail()");
	request.name = name_arguments(fcinfo, 0, 2);
	request.fence = optional_fence(fcinfo, 6);
	end_failed(fcinfo, &request, 3, 7);
	PG_RETURN_VOID();
}

/* idem_fail(operation, error, code, headers, body, retryable, retry_after, retention) */
Datum
idem_fail_operation(PG_FUNCTION_ARGS)
{
	EndRequest	request = {0};

	require_writable("idem_fail()");
	request.name = operation_argument(fcinfo, 0, &request.fence);
	end_failed(fcinfo, &request, 2, 5);
	PG_RETURN_VOID();
}

/* idem_release(key, scope, fence) */
Datum
idem_release(PG_FUNCTION_ARGS)
{
	OperationName name;
	int64		fence;

	require_writable("idem_release()");
	name = name_arguments(fcinfo, 0, 1);
	fence = optional_fence(fcinfo, 2);
	PG_RETURN_BOOL(operation_release(&name, fence));
}

/* idem_release(operation) */
Datum
idem_release_operation(PG_FUNCTION_ARGS)
{
	OperationName name;
	int64		fence;

	require_writable("idem_release()");
	name = operation_argument(fcinfo, 0, &fence);
	PG_RETURN_BOOL(operation_release(&name, fence));
}

/* idem_extend(key, lease, scope, fence) */
Datum
idem_extend(PG_FUNCTION_ARGS)
{
	OperationName name;
	int64		lease;
	int64		fence;

	require_writable("idem_extend()");
	name = name_arguments(fcinfo, 0, 2);
	lease = required_duration(fcinfo, 1, "lease", false);
	fence = optional_fence(fcinfo, 3);
	PG_RETURN_TIMESTAMPTZ(operation_extend(&name, fence, lease));
}

/* idem_extend(operation, lease) */
Datum
idem_extend_operation(PG_FUNCTION_ARGS)
{
	OperationName name;
	int64		lease;
	int64		fence;

	require_writable("idem_extend()");
	name = operation_argument(fcinfo, 0, &fence);
	lease = required_duration(fcinfo, 1, "lease", false);
	PG_RETURN_TIMESTAMPTZ(operation_extend(&name, fence, lease));
}

/* The note of a function for progress: JSON null is one. */
static struct varlena *
progress_argument(FunctionCallInfo fcinfo, int argument)
{
	require_argument(fcinfo, argument, "progress");
	return PG_DETOAST_DATUM_PACKED(PG_GETARG_DATUM(argument));
}

/* The end of a lease.  NULL: the record has none any more, as somebody has updated it by hand. */
static Datum
lease_end(FunctionCallInfo fcinfo, TimestampTz end)
{
	if (end == NO_TIME)
		PG_RETURN_NULL();
	PG_RETURN_TIMESTAMPTZ(end);
}

/* idem_progress(key, progress, scope, fence, lease) */
Datum
idem_progress(PG_FUNCTION_ARGS)
{
	OperationName name;
	int64		fence;
	int64		lease;
	struct varlena *progress;

	require_writable("idem_progress()");
	name = name_arguments(fcinfo, 0, 2);
	progress = progress_argument(fcinfo, 1);
	fence = optional_fence(fcinfo, 3);
	lease = optional_duration(fcinfo, 4, "lease", false);
	return lease_end(fcinfo, operation_progress(&name, fence, lease, progress));
}

/* idem_progress(operation, progress, lease) */
Datum
idem_progress_operation(PG_FUNCTION_ARGS)
{
	OperationName name;
	int64		fence;
	int64		lease;
	struct varlena *progress;

	require_writable("idem_progress()");
	name = operation_argument(fcinfo, 0, &fence);
	progress = progress_argument(fcinfo, 1);
	lease = optional_duration(fcinfo, 2, "lease", false);
	return lease_end(fcinfo, operation_progress(&name, fence, lease, progress));
}

/* idem_forget(key, scope) */
Datum
idem_forget(PG_FUNCTION_ARGS)
{
	OperationName name;

	require_writable("idem_forget()");
	name = name_arguments(fcinfo, 0, 1);
	PG_RETURN_BOOL(operation_forget(&name));
}

/* idem_forget_failed(scope, reason, cause, max_rows) */
Datum
idem_forget_failed(PG_FUNCTION_ARGS)
{
	ForgetRequest request = {0};

	require_writable("idem_forget_failed()");
	request.scope = scope_argument(fcinfo, 0);
	request.reason = required_text(fcinfo, 1, "reason");
	request.cause = PG_ARGISNULL(2) ? NULL : PG_GETARG_TEXT_PP(2);
	request.max_rows = positive_count(fcinfo, 3, "max_rows");
	PG_RETURN_INT64(operation_forget_failed(&request));
}

/* idem_lookup(key, scope) */
Datum
idem_lookup(PG_FUNCTION_ARGS)
{
	OperationName name = name_arguments(fcinfo, 0, 1);
	Answer		answer;

	if (!operation_lookup(&name, &answer))
		PG_RETURN_NULL();
	PG_RETURN_DATUM(answer_to_datum(&answer));
}

/* idem_lost_attempts(key, scope): NULL if nobody counts */
Datum
idem_lost_attempts(PG_FUNCTION_ARGS)
{
	OperationName name = name_arguments(fcinfo, 0, 1);
	int32		lost = operation_lost_attempts(&name);

	if (!lost_attempts_are_counted())
		PG_RETURN_NULL();
	PG_RETURN_INT32(lost);
}

/* idem_require_ended(scope): Citus sends it to the node that has the scope */
Datum
idem_require_ended(PG_FUNCTION_ARGS)
{
	transaction_require_ended();
	PG_RETURN_VOID();
}

/* idem_lock(resources, wait): another server does not see its locks */
Datum
idem_lock(PG_FUNCTION_ARGS)
{
	text	  **resources;
	int			count;
	int64		wait;

	require_unrestricted("idem_lock()");
	resources = text_array(fcinfo, 0, "resources", "resource", &count);
	wait = required_duration(fcinfo, 1, "wait", true);
	PG_RETURN_BOOL(resource_lock_all(resources, count, wait));
}

/* idem_advance(stream, seq, scope) */
Datum
idem_advance(PG_FUNCTION_ARGS)
{
	const Catalog *catalog;
	OperationName stream;
	int64		seq;
	Policy		policy;

	require_writable("idem_advance()");
	stream.key = required_text(fcinfo, 0, "stream");
	check_name(stream.key, "stream", false);
	seq = required_bigint(fcinfo, 1, "seq");
	stream.scope = scope_argument(fcinfo, 2);
	catalog = catalog_open(AccessShareLock);
	kind_require_one_node(catalog, "idem_advance()", "Keep the number of the last event in a row of the tenant's own tables.");
	scope_require(catalog, stream.scope, &policy);
	PG_RETURN_BOOL(stream_advance(catalog, &stream, seq));
}

/* idem_gc(max_rows) */
Datum
idem_gc(PG_FUNCTION_ARGS)
{
	Sweep		sweep = {.max_pages = GC_PAGES,.goes_round = true,.max_rotations = INT_MAX};
	bool		is_alone = gc_is_alone();
	const Catalog *catalog;
	Caller		caller;

	require_writable("idem_gc()");
	sweep.max_rows = positive_count(fcinfo, 0, "max_rows");
	catalog = catalog_open(RowExclusiveLock);
	caller = table_owner_enter_call(catalog->store_owner);
	gc_sweep(catalog, &sweep);
	if (is_alone)
		gc_rotate(catalog, &sweep);
	table_owner_leave(&caller);
	/* otherwise the locks of emptied tables would be held until a standby has answered */
	if (sweep.rotated > 0 && synchronous_commit > SYNCHRONOUS_COMMIT_LOCAL_FLUSH)
		(void) set_config_option("synchronous_commit", "local", PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_LOCAL, true, 0, false);
	PG_RETURN_INT64(sweep.removed);
}

/* idem_fingerprint(request) */
Datum
idem_fingerprint(PG_FUNCTION_ARGS)
{
	/* the owner may have taken STRICT away */
	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	PG_RETURN_BYTEA_P(fingerprint_of(PG_GETARG_JSONB_P(0)));
}

/* idem_step_key(key, step) */
Datum
idem_step_key(PG_FUNCTION_ARGS)
{
	text	   *key = required_text(fcinfo, 0, "key");
	text	   *step = required_text(fcinfo, 1, "step");

	PG_RETURN_TEXT_P(step_key(key, step));
}
