/*
 * arguments.c
 *		Reads and checks the arguments of SQL functions.
 *
 * Everything wrong with an argument is ID400, before anything is looked up or
 * written: behind this file nobody checks an argument again.  No message repeats a request or a response.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "base/duration.h"
#include "functions/arguments.h"
#include "seal/fingerprint.h"

/*
 * Refuses a standby, where our locks mean nothing to the primary, and a
 * security-restricted operation: code that a privileged user runs without
 * knowing it (an index expression, a materialized view).
 */
void
require_unrestricted(const char *function)
{
	PreventCommandDuringRecovery(function);
	PreventCommandIfParallelMode(function);
	if (InSecurityRestrictedOperation())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("cannot execute %s within security-restricted operation", function)));
}

/* Operations change the database. */
void
require_writable(const char *function)
{
	require_unrestricted(function);
	PreventCommandIfReadOnly(function);
}

void
require_argument(FunctionCallInfo fcinfo, int argument, const char *name)
{
	if (PG_ARGISNULL(argument))
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_BAD_ARGUMENT),
				 errmsg("%s must not be null", name)));
}

/* A name is any valid text of 1 (a scope: 0) to 255 characters. */
void
check_name(text *value, const char *name, bool may_be_empty)
{
	int			bytes = VARSIZE_ANY_EXHDR(value);

	if (bytes == 0 && !may_be_empty)
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_BAD_ARGUMENT),
				 errmsg("%s must not be empty", name)));
	/* a character has at least one byte: most names need no counting */
	if (bytes > MAX_NAME_CHARACTERS &&
		pg_mbstrlen_with_len(VARDATA_ANY(value), bytes) > MAX_NAME_CHARACTERS)
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_BAD_ARGUMENT),
				 errmsg("%s must not be longer than %d characters", name, MAX_NAME_CHARACTERS),
				 errhint("Use a hash of it, as idem_step_key does.")));
}

/* A text that is neither NULL nor empty, of any length. */
text *
required_text(FunctionCallInfo fcinfo, int argument, const char *name)
{
	text	   *value;

	require_argument(fcinfo, argument, name);
	value = PG_GETARG_TEXT_PP(argument);
	if (VARSIZE_ANY_EXHDR(value) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_BAD_ARGUMENT),
				 errmsg("%s must not be empty", name)));
	return value;
}

/* The elements of an array of names, none of them NULL. */
text **
text_array(FunctionCallInfo fcinfo, int argument, const char *name, const char *element, int *count)
{
	Datum	   *values;
	bool	   *nulls;
	text	  **texts;

	require_argument(fcinfo, argument, name);
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(argument), TEXTOID, -1, false, TYPALIGN_INT,
					  &values, &nulls, count);
	texts = palloc(*count * sizeof(text *));
	for (int i = 0; i < *count; i++)
	{
		if (nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_IDEM_BAD_ARGUMENT),
					 errmsg("%s must not be null", element)));
		texts[i] = DatumGetTextPP(values[i]);
		check_name(texts[i], element, false);
	}
	return texts;
}

text *
scope_argument(FunctionCallInfo fcinfo, int argument)
{
	text	   *scope;

	require_argument(fcinfo, argument, "scope");
	scope = PG_GETARG_TEXT_PP(argument);
	check_name(scope, "scope", true);
	return scope;
}

/* The name of an operation from its two arguments. */
OperationName
name_arguments(FunctionCallInfo fcinfo, int key, int scope)
{
	OperationName name;

	require_argument(fcinfo, key, "key");
	name.key = PG_GETARG_TEXT_PP(key);
	check_name(name.key, "key", false);
	name.scope = scope_argument(fcinfo, scope);
	return name;
}

static int64
duration_argument(const Interval *interval, const char *name, bool may_be_zero)
{
	int64		result;

	if (INTERVAL_NOT_FINITE(interval))
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_BAD_ARGUMENT),
				 errmsg("%s must be finite", name)));

	if (!duration_of(interval, &result) || result > LONGEST_DURATION)
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_BAD_ARGUMENT),
				 errmsg("%s must not be longer than %d days", name,
						(int) (LONGEST_DURATION / USECS_PER_DAY))));

	if (result < 0 || (result == 0 && !may_be_zero))
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_BAD_ARGUMENT),
				 may_be_zero ? errmsg("%s must not be negative", name) :
				 errmsg("%s must be positive", name)));
	return result;
}

int64
required_duration(FunctionCallInfo fcinfo, int argument, const char *name, bool may_be_zero)
{
	require_argument(fcinfo, argument, name);
	return duration_argument(PG_GETARG_INTERVAL_P(argument), name, may_be_zero);
}

/* 0: there is none. */
int64
optional_duration(FunctionCallInfo fcinfo, int argument, const char *name, bool may_be_zero)
{
	if (PG_ARGISNULL(argument))
		return 0;
	return duration_argument(PG_GETARG_INTERVAL_P(argument), name, may_be_zero);
}

int64
required_bigint(FunctionCallInfo fcinfo, int argument, const char *name)
{
	require_argument(fcinfo, argument, name);
	return PG_GETARG_INT64(argument);
}

/* Fences are handed out from 1. */
int64
checked_fence(int64 fence)
{
	if (fence <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_BAD_ARGUMENT),
				 errmsg("fence must be positive")));
	return fence;
}

int64
optional_fence(FunctionCallInfo fcinfo, int argument)
{
	return PG_ARGISNULL(argument) ? NO_FENCE : checked_fence(PG_GETARG_INT64(argument));
}

int32
optional_count(FunctionCallInfo fcinfo, int argument, const char *name, int32 absent)
{
	int32		count;

	if (PG_ARGISNULL(argument))
		return absent;
	count = PG_GETARG_INT32(argument);
	if (count < 0)
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_BAD_ARGUMENT),
				 errmsg("%s must not be negative", name)));
	return count;
}

int32
positive_count(FunctionCallInfo fcinfo, int argument, const char *name)
{
	require_argument(fcinfo, argument, name);
	if (PG_GETARG_INT32(argument) <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_BAD_ARGUMENT),
				 errmsg("%s must be positive", name)));
	return PG_GETARG_INT32(argument);
}

bool
required_bool(FunctionCallInfo fcinfo, int argument, const char *name)
{
	require_argument(fcinfo, argument, name);
	return PG_GETARG_BOOL(argument);
}

/* A hash that the caller has computed. */
bytea *
checked_hash(Datum value)
{
	bytea	   *hash = DatumGetByteaPP(value);

	if (VARSIZE_ANY_EXHDR(hash) != FINGERPRINT_BYTES)
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_BAD_ARGUMENT),
				 errmsg("request_hash must have %d bytes, not %d",
						FINGERPRINT_BYTES, (int) VARSIZE_ANY_EXHDR(hash)),
				 errhint("It is the SHA-256 of the request.")));
	return hash;
}

void
refuse_request_and_hash(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_IDEM_BAD_ARGUMENT),
			 errmsg("request and request_hash must not both be given")));
}

/* The fingerprint of a request, or the hash that the caller gave; NULL: neither. */
static bytea *
fingerprint_arguments(FunctionCallInfo fcinfo, const BeginArguments *positions)
{
	bool		has_request = !PG_ARGISNULL(positions->request);

	if (PG_ARGISNULL(positions->request_hash))
		return has_request ? fingerprint_of(PG_GETARG_JSONB_P(positions->request)) : NULL;
	if (has_request && !positions->request_is_used)
		refuse_request_and_hash();
	return checked_hash(PG_GETARG_DATUM(positions->request_hash));
}

/* The arguments of a begin; an error if the function may not run here. */
BeginRequest
begin_arguments(FunctionCallInfo fcinfo, const BeginArguments *positions)
{
	BeginRequest request = {0};

	require_writable(positions->function);
	request.name = name_arguments(fcinfo, positions->key, positions->scope);
	request.max_attempts = optional_count(fcinfo, positions->max_attempts, "max_attempts", NOT_ASKED);
	if (positions->lease != NO_ARGUMENT)
		request.lease = optional_duration(fcinfo, positions->lease, "lease", false);
	request.wait = required_duration(fcinfo, positions->wait, "wait", true);
	/* last: hashing is expensive, and a refused call needs none */
	request.fingerprint = fingerprint_arguments(fcinfo, positions);
	return request;
}

/* The payload, the headers or the body of a response, detoasted: it may come from another table. */
static struct varlena *
response_value(FunctionCallInfo fcinfo, int argument)
{
	return PG_ARGISNULL(argument) ? NULL : PG_DETOAST_DATUM_PACKED(PG_GETARG_DATUM(argument));
}

/* The response from its arguments: the payload, and from code on the rest. */
Response
response_arguments(FunctionCallInfo fcinfo, int payload, int code)
{
	Response	response = {0};

	response.payload = response_value(fcinfo, payload);
	response.has_code = !PG_ARGISNULL(code);
	if (response.has_code)
		response.code = PG_GETARG_INT32(code);
	response.headers = response_value(fcinfo, code + 1);
	response.body = response_value(fcinfo, code + 2);
	return response;
}
