/*
 * table_owner.c
 *		Makes the caller the owner of a table for a while.
 *
 * The owner's code on the tables (triggers, constraints, functions that these call) runs
 * as the caller of the statement.  Superusers and the collector do
 * administration, and the owner's code must not have their rights.  So they
 * become the owner for that time, as in a function with SECURITY DEFINER.
 * Errors need no clean-up: the end of the (sub)transaction restores the caller
 * and the caller's settings.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_class.h"
#include "miscadmin.h"
#include "utils/guc.h"
#include "utils/syscache.h"

#include "base/compat.h"
#include "schema/table_owner.h"

static void
set_path_of_owner(Caller *caller)
{
	caller->nest_level = NewGUCNestLevel();
	(void) set_config_option("search_path", "\"$user\", public, pg_temp", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
}

/*
 * For the time of a call.  None of the owner's code may run later, when the
 * session is the caller's again: the server refuses deferred triggers, and
 * settings are restored.  The caller's search_path does not count: by it the
 * owner's code could find functions of the caller.
 */
Caller
table_owner_enter_call(Oid owner)
{
	Caller		caller = {0};

	GetUserIdAndSecContext(&caller.user, &caller.context);
	if (caller.user == owner)
		return caller;
	set_path_of_owner(&caller);
	SetUserIdAndSecContext(owner, caller.context |
						   SECURITY_LOCAL_USERID_CHANGE | SECURITY_RESTRICTED_OPERATION);
	return caller;
}

/*
 * For one statement on a table.  The table's code runs as the caller, as everywhere in
 * SQL; but no code of others runs as a superuser.  Only a superuser becomes the owner.
 */
Caller
table_owner_enter_statement(Oid table)
{
	Caller		caller = {0};
	HeapTuple	row;
	Oid			owner;

	GetUserIdAndSecContext(&caller.user, &caller.context);
	if (!superuser_arg(caller.user))
		return caller;
	row = SearchSysCache1(RELOID, ObjectIdGetDatum(table));
	if (!HeapTupleIsValid(row))
		elog(ERROR, "cache lookup failed for relation %u", table);
	owner = ((Form_pg_class) GETSTRUCT(row))->relowner;
	ReleaseSysCache(row);
	return superuser_arg(owner) ? caller : table_owner_enter_call(owner);
}

/*
 * For a transaction of its own, COMMIT included, which fires deferred triggers.
 * Only where nothing else is done in the session.
 */
Caller
table_owner_enter_transaction(Oid owner)
{
	Caller		caller = {0};

	GetUserIdAndSecContext(&caller.user, &caller.context);
	SetUserIdAndSecContext(owner, caller.context | SECURITY_LOCAL_USERID_CHANGE);
	return caller;
}

void
table_owner_leave(const Caller *caller)
{
	SetUserIdAndSecContext(caller->user, caller->context);
	if (caller->nest_level > 0)
		AtEOXact_GUC(false, caller->nest_level);
}
