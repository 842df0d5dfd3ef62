/*
 * call.c
 *		idem_call: begin, run a handler, and end, in one round trip.
 *
 * The handler is an ordinary function, run with the caller's rights.  It runs
 * in a subtransaction: an error undoes the handler's effects, and the failure
 * is stored in the same transaction.  With record_failure => false there is no
 * subtransaction.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/regproc.h"
#include "utils/syscache.h"

#include "base/compat.h"
#include "base/subtransaction.h"
#include "functions/answer.h"
#include "functions/arguments.h"
#include "functions/handler_failure.h"
#include "operation/operation.h"
#include "scope/scope.h"

SQL_FUNCTION(idem_call);

#define HANDLER_HINT "The handler is a function f(jsonb) RETURNS jsonb, named with the types of its arguments: 'f(jsonb)'."

/* the arguments of idem_call, beside the operation */
typedef struct Call
{
	Oid			handler;
	Datum		request;
	bool		request_is_null;
	int64		retention;
	bool		record_failure;
} Call;

/*
 * A caller may name the handler by its OID. The look-up by name, which checks
 * the schema, is then missing.
 */
static void
check_rights(Oid handler, Oid schema)
{
	AclResult	usage = schema_aclcheck(schema, GetUserId(), ACL_USAGE);
	AclResult	right = function_aclcheck(handler, GetUserId(), ACL_EXECUTE);

	if (usage != ACLCHECK_OK)
		aclcheck_error(usage, OBJECT_SCHEMA, get_namespace_name(schema));
	if (right != ACLCHECK_OK)
		aclcheck_error(right, OBJECT_FUNCTION, get_func_name(handler));
}

/* A handler is a function f(jsonb) RETURNS jsonb that the caller may run. */
static void
check_handler(Oid handler)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(handler));
	Form_pg_proc form;
	bool		fits;
	Oid			schema;

	if (!HeapTupleIsValid(tuple))
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_BAD_ARGUMENT),
				 errmsg("handler with OID %u does not exist", handler),
				 errhint(HANDLER_HINT)));
	form = (Form_pg_proc) GETSTRUCT(tuple);
	schema = form->pronamespace;
	fits = form->prokind == PROKIND_FUNCTION && !form->proretset &&
		form->pronargs == 1 && form->proargtypes.values[0] == JSONBOID &&
		form->prorettype == JSONBOID;
	ReleaseSysCache(tuple);
	if (!fits)
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_BAD_ARGUMENT),
				 errmsg("handler must be a function that takes one jsonb and returns jsonb"),
				 errdetail("%s is not.", format_procedure(handler)),
				 errhint(HANDLER_HINT)));
	check_rights(handler, schema);
	InvokeFunctionExecuteHook(handler);
}

/* The handler's result, or NULL for SQL NULL; in the given memory context. */
static struct varlena *
run_handler(const Call *call, FmgrInfo *function, MemoryContext result_context)
{
	LOCAL_FCINFO(fcinfo, 1);
	Datum		result;
	struct varlena *detoasted;

	/* as everywhere in SQL, a strict function is not called with NULL */
	if (function->fn_strict && call->request_is_null)
		return NULL;
	InitFunctionCallInfoData(*fcinfo, function, 1, InvalidOid, NULL, NULL);
	fcinfo->args[0].value = call->request;
	fcinfo->args[0].isnull = call->request_is_null;
	result = FunctionCallInvoke(fcinfo);
	if (fcinfo->isnull)
		return NULL;
	MemoryContextSwitchTo(result_context);
	detoasted = PG_DETOAST_DATUM_COPY(result);
	return detoasted;
}

/* The size limit of a stored failure of this operation, in bytes. */
static int32
failure_limit(const OperationName *name)
{
	Policy		policy;

	scope_require(catalog_open(RowExclusiveLock), name->scope, &policy);
	return policy.max_response_size;
}

typedef struct HandlerRun
{
	const Call *call;
	FmgrInfo   *function;
	MemoryContext context;
	Response   *response;
} HandlerRun;

static void
run_for_response(void *argument)
{
	HandlerRun *run = argument;

	run->response->payload = run_handler(run->call, run->function, run->context);
}

/*
 * Runs the handler in a subtransaction.  If an error is about the
 * request, the handler's effects are undone and the failure is returned.  Any
 * other error is raised again.
 */
static bool
run_caught(const Call *call, FmgrInfo *function, const OperationName *name, Response *response)
{
	HandlerRun	run = {call, function, CurrentMemoryContext, response};
	Subtransaction work = {run_for_response, failure_is_stored, &run};
	ErrorData  *error;

	if (subtransaction_run(&work, &error))
		return true;
	*response = failure_response(error, failure_limit(name));
	FreeErrorData(error);
	return false;
}

/* Runs the handler of an acquired operation and ends the operation. */
static Answer
run_and_end(const Call *call, const OperationName *name)
{
	MemoryContext context = CurrentMemoryContext;
	EndRequest	end = {.name = *name,.status = STATUS_COMPLETED,.retention = call->retention};
	FmgrInfo	function;

	fmgr_info(call->handler, &function);
	if (!call->record_failure)
	{
		end.response.payload = run_handler(call, &function, context);
		MemoryContextSwitchTo(context);
	}
	else if (!run_caught(call, &function, name, &end.response))
		end.status = STATUS_FAILED;

	/* the handler may have made the transaction read-only */
	require_writable("idem_call()");
	/* the texts of an error have been cut to size already */
	end.cut_to_size = end.status == STATUS_FAILED;
	return operation_end(&end);
}

/*
 * idem_call(handler, key, request, scope, wait, retention, record_failure, request_hash, max_attempts)
 *
 * The request is the handler's argument, so the caller may give it together with
 * its hash, which then is not computed again.
 */
Datum
idem_call(PG_FUNCTION_ARGS)
{
	static const BeginArguments positions = {
		"idem_call()",.key = 1,.request = 2,.scope = 3,.request_hash = 7,
		.lease = NO_ARGUMENT,.wait = 4,.max_attempts = 8,.request_is_used = true
	};
	BeginRequest begin = begin_arguments(fcinfo, &positions);
	Call		call;
	Answer		answer;

	require_argument(fcinfo, 0, "handler");
	call.handler = PG_GETARG_OID(0);
	check_handler(call.handler);
	call.request_is_null = PG_ARGISNULL(2);
	call.request = call.request_is_null ? (Datum) 0 : PG_GETARG_DATUM(2);
	call.retention = optional_duration(fcinfo, 5, "retention", false);
	call.record_failure = required_bool(fcinfo, 6, "record_failure");

	answer = operation_begin(&begin);
	if (answer.outcome == OUTCOME_ACQUIRED)
	{
		bool		taken_over = answer.taken_over;

		answer = run_and_end(&call, &begin.name);
		answer.taken_over = taken_over;
	}
	PG_RETURN_DATUM(answer_to_datum(&answer));
}
