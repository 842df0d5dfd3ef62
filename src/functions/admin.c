/*
 * admin.c
 *		The SQL functions of the administrator: scopes and secrets.
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "collector/reseal.h"
#include "functions/arguments.h"
#include "schema/catalog.h"
#include "schema/table_owner.h"
#include "scope/scope.h"

/* the constraint of idempotency_scope has this number, too */
#define LONGEST_TOO_LARGE_RESPONSE 1000

SQL_FUNCTION(idem_claim_scope);
SQL_FUNCTION(idem_may_use_scope);
SQL_FUNCTION(idem_reseal);
SQL_FUNCTION(idem_set_policy);
SQL_FUNCTION(idem_unclaim_scope);

/* A scope, or the beginning of scopes and "*". */
static text *
pattern_argument(FunctionCallInfo fcinfo, int argument)
{
	text	   *pattern;
	char	   *star;

	require_argument(fcinfo, argument, "pattern");
	pattern = PG_GETARG_TEXT_PP(argument);
	check_name(pattern, "pattern", true);
	star = memchr(VARDATA_ANY(pattern), '*', VARSIZE_ANY_EXHDR(pattern));
	if (star != NULL && star != VARDATA_ANY(pattern) + VARSIZE_ANY_EXHDR(pattern) - 1)
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_BAD_ARGUMENT),
				 errmsg("pattern may have \"*\" at its end only")));
	return pattern;
}

/* idem_claim_scope(pattern, role) */
Datum
idem_claim_scope(PG_FUNCTION_ARGS)
{
	const Catalog *catalog;
	text	   *pattern;
	char	   *role;
	Caller		caller;

	require_writable("idem_claim_scope()");
	pattern = pattern_argument(fcinfo, 0);
	require_argument(fcinfo, 1, "role");
	role = GetUserNameFromId(PG_GETARG_OID(1), false);
	catalog = catalog_open(AccessShareLock);
	caller = table_owner_enter_call(catalog->store_owner);
	scope_claim(catalog, pattern, role);
	table_owner_leave(&caller);
	PG_RETURN_VOID();
}

/* idem_unclaim_scope(pattern) */
Datum
idem_unclaim_scope(PG_FUNCTION_ARGS)
{
	const Catalog *catalog;
	text	   *pattern;
	Caller		caller;
	bool		was_claimed;

	require_writable("idem_unclaim_scope()");
	pattern = pattern_argument(fcinfo, 0);
	catalog = catalog_open(AccessShareLock);
	caller = table_owner_enter_call(catalog->store_owner);
	was_claimed = scope_unclaim(catalog, pattern);
	table_owner_leave(&caller);
	PG_RETURN_BOOL(was_claimed);
}

static void
check_bounds(int64 least, int64 chosen, int64 most, const char *names)
{
	if ((chosen > 0 && most > 0 && chosen > most) || (least > 0 && chosen > 0 && least > chosen) ||
		(least > 0 && most > 0 && least > most))
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_BAD_ARGUMENT),
				 errmsg("%s must not decrease in this order", names)));
}

/* Each session keeps all of them in memory. */
static void
check_too_large_response(FunctionCallInfo fcinfo)
{
	Jsonb	   *response;

	if (PG_ARGISNULL(9))
		return;
	response = PG_GETARG_JSONB_P(9);
	if (strlen(JsonbToCString(NULL, &response->root, VARSIZE(response))) > LONGEST_TOO_LARGE_RESPONSE)
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_BAD_ARGUMENT),
				 errmsg("too_large_response must have at most %d bytes as text", LONGEST_TOO_LARGE_RESPONSE)));
}

/*
 * idem_set_policy(pattern, retention, min_retention, max_retention,
 *				   max_attempts, attempts_limit, max_response_size, max_lease,
 *				   max_lost_attempts, too_large_response); version 1.0 has neither of
 *				   the last two
 */
Datum
idem_set_policy(PG_FUNCTION_ARGS)
{
	Datum		values[POLICY_ARGUMENTS];
	bool		nulls[POLICY_ARGUMENTS];
	int			count = Min(PG_NARGS(), POLICY_ARGUMENTS);
	int64		retention;
	int64		least;
	int64		most;
	const Catalog *catalog;
	Caller		caller;

	require_writable("idem_set_policy()");
	for (int i = 0; i < count; i++)
	{
		values[i] = PG_GETARG_DATUM(i);
		nulls[i] = PG_ARGISNULL(i);
	}
	values[0] = PointerGetDatum(pattern_argument(fcinfo, 0));
	retention = optional_duration(fcinfo, 1, "retention", false);
	least = optional_duration(fcinfo, 2, "min_retention", false);
	most = optional_duration(fcinfo, 3, "max_retention", false);
	check_bounds(least, retention, most, "min_retention, retention and max_retention");
	check_bounds(0, optional_count(fcinfo, 4, "max_attempts", 0),
				 optional_count(fcinfo, 5, "attempts_limit", 0),
				 "max_attempts and attempts_limit");
	if (!PG_ARGISNULL(5) && PG_GETARG_INT32(5) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_BAD_ARGUMENT),
				 errmsg("attempts_limit must be positive")));
	(void) optional_count(fcinfo, 6, "max_response_size", 0);
	(void) optional_duration(fcinfo, 7, "max_lease", false);
	if (count == POLICY_ARGUMENTS)
	{
		(void) optional_count(fcinfo, 8, "max_lost_attempts", 0);
		check_too_large_response(fcinfo);
	}
	catalog = catalog_open(AccessShareLock);
	caller = table_owner_enter_call(catalog->store_owner);
	scope_set_policy(catalog, values, nulls, count);
	table_owner_leave(&caller);
	PG_RETURN_VOID();
}

/* idem_may_use_scope(scope) */
Datum
idem_may_use_scope(PG_FUNCTION_ARGS)
{
	/* the owner may have taken STRICT away */
	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	PG_RETURN_BOOL(scope_may_use(catalog_open(AccessShareLock), PG_GETARG_TEXT_PP(0)));
}

/* idem_reseal(max_rows) */
Datum
idem_reseal(PG_FUNCTION_ARGS)
{
	require_writable("idem_reseal()");
	PG_RETURN_INT64(reseal(positive_count(fcinfo, 0, "max_rows")));
}
