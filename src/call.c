/*
 * call.c
 *		idem_call: begin, run a handler, and end, in one round trip.
 *
 * The handler is an ordinary function, run with the caller's rights.  What it
 * raises undoes its effects by a subtransaction, which is the price of storing
 * the failure in the same transaction; record_failure => false does not pay it.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/regproc.h"
#include "utils/resowner.h"
#include "utils/syscache.h"

#include "answer.h"
#include "arguments.h"
#include "compat.h"
#include "fingerprint.h"
#include "handle.h"
#include "operation.h"

SQL_FUNCTION(idem_call);

/* longest part of an error that is stored, in bytes */
#define ERROR_PART_BYTES 8192

/* what idem_call was asked, beside the operation itself */
typedef struct Call
{
	Oid			handler;
	Datum		request;
	bool		request_is_null;
	int64		retention;
	bool		record_failure;
} Call;

/* A handler is a function f(jsonb) RETURNS jsonb that the caller may run. */
static void
check_handler(Oid handler)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(handler));
	Form_pg_proc form;
	bool		fits;
	AclResult	right;

	if (!HeapTupleIsValid(tuple))
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_BAD_ARGUMENT),
				 errmsg("handler with OID %u does not exist", handler)));
	form = (Form_pg_proc) GETSTRUCT(tuple);
	fits = form->prokind == PROKIND_FUNCTION && !form->proretset &&
		form->pronargs == 1 && form->proargtypes.values[0] == JSONBOID &&
		form->prorettype == JSONBOID;
	ReleaseSysCache(tuple);
	if (!fits)
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_BAD_ARGUMENT),
				 errmsg("handler must be a function that takes one jsonb and returns jsonb"),
				 errdetail("%s is not.", format_procedure(handler))));

	right = function_aclcheck(handler, GetUserId(), ACL_EXECUTE);
	if (right != ACLCHECK_OK)
		aclcheck_error(right, OBJECT_FUNCTION, get_func_name(handler));
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

/*
 * Errors that say nothing of the request: another try may succeed.
 * Connections, rollbacks, resources, object states, operators, the system, and
 * what must not happen.
 */
static bool
is_transient(int sqlstate)
{
	switch (ERRCODE_TO_CATEGORY(sqlstate))
	{
		case MAKE_SQLSTATE('0', '8', '0', '0', '0'):
		case MAKE_SQLSTATE('4', '0', '0', '0', '0'):
		case MAKE_SQLSTATE('5', '3', '0', '0', '0'):
		case MAKE_SQLSTATE('5', '5', '0', '0', '0'):
		case MAKE_SQLSTATE('5', '7', '0', '0', '0'):
		case MAKE_SQLSTATE('5', '8', '0', '0', '0'):
		case MAKE_SQLSTATE('X', 'X', '0', '0', '0'):
			return true;
		default:
			return false;
	}
}

static void
push_part(JsonbParseState **state, const char *name, const char *value)
{
	JsonbValue	part = {.type = jbvString};

	part.val.string.val = unconstify(char *, name);
	part.val.string.len = strlen(name);
	(void) pushJsonbValue(state, WJB_KEY, &part);
	if (value == NULL)
		part.type = jbvNull;
	else
	{
		part.val.string.val = unconstify(char *, value);
		part.val.string.len = pg_mbcliplen(value, strlen(value), ERROR_PART_BYTES);
	}
	(void) pushJsonbValue(state, WJB_VALUE, &part);
}

/* {"sqlstate": …, "message": …, "detail": …, "hint": …} */
static Response
failure_response(const ErrorData *error)
{
	JsonbParseState *state = NULL;
	Response	response = {0};

	(void) pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	push_part(&state, "sqlstate", unpack_sql_state(error->sqlerrcode));
	push_part(&state, "message", error->message);
	push_part(&state, "detail", error->detail);
	push_part(&state, "hint", error->hint);
	response.payload = (struct varlena *)
		JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_OBJECT, NULL));
	return response;
}

/*
 * Runs the handler in a subtransaction.  A permanent error leaves nothing of
 * it and becomes the failure that is returned; a transient one goes on up.
 */
static bool
run_caught(const Call *call, FmgrInfo *function, Response *response)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	volatile bool returned = false;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		response->payload = run_handler(call, function, context);
		ReleaseCurrentSubTransaction();
		returned = true;
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		if (is_transient(error->sqlerrcode))
			ReThrowError(error);
		*response = failure_response(error);
		FreeErrorData(error);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return returned;
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
	else if (!run_caught(call, &function, &end.response))
		end.status = STATUS_FAILED;

	/* what an error says is cut to size already */
	end.cut_to_size = end.status == STATUS_FAILED;
	return operation_end(&end);
}

/* idem_call(handler, key, request, scope, wait, retention, record_failure) */
Datum
idem_call(PG_FUNCTION_ARGS)
{
	BeginRequest begin = {0};
	Call		call;
	Answer		answer;

	require_writable("idem_call()");
	require_argument(fcinfo, 0, "handler");
	call.handler = PG_GETARG_OID(0);
	check_handler(call.handler);
	begin.name = name_arguments(fcinfo, 1, 3);
	call.request_is_null = PG_ARGISNULL(2);
	call.request = call.request_is_null ? (Datum) 0 : PG_GETARG_DATUM(2);
	begin.fingerprint = call.request_is_null ? NULL : fingerprint_of(PG_GETARG_JSONB_P(2));
	begin.wait = required_duration(fcinfo, 4, "wait", true);
	begin.max_attempts = NOT_ASKED;
	call.retention = optional_duration(fcinfo, 5, "retention", false, 0);
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
