/*
 * handle.c
 *		An operation at hand: its name, its lock, its place in the store, and
 *		where this transaction stands with it.
 *
 * Only a session that holds the operation's lock changes the record, so
 * judging a record and writing its successor are one step.  Collection alone
 * takes no lock.  It deletes only what counts as absent.
 */
#include "postgres.h"

#include "access/xact.h"
#include "common/int.h"
#include "miscadmin.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "handle.h"

/* The operation, if the caller may use its scope. */
Handle
handle_open(const OperationName *name)
{
	Handle		handle;

	handle.catalog = catalog_open(RowExclusiveLock);
	handle.policy = scope_require(handle.catalog, name->scope);
	handle.name = name;
	handle.id = lock_id_of_operation(name, &handle.catalog->lock_key);
	handle.lock = lock_tag(handle.id, LOCK_CLASS_OPERATION);
	handle.standing = transaction_standing(handle.id, name);
	return handle;
}

/* Makes sure that this transaction may hold the operation's lock until its end. */
void
handle_reserve(const Handle *handle)
{
	transaction_reserve(standing_holds_lock(&handle->standing) ? 0 : 1);
}

void
handle_note(Handle *handle, Standing standing)
{
	transaction_note(handle->id, handle->name, standing);
	handle->standing = standing;
}

/* The operation is ended, and its row is this transaction's. */
void
handle_note_end(Handle *handle)
{
	Standing	standing = {.phase = PHASE_ENDED,.wrote = true,.stored_at = NO_TIME};

	standing.level = GetCurrentTransactionNestLevel();
	standing.wakes = handle->standing.wakes;
	handle_note(handle, standing);
}

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

/* start + duration, where that is still a time. */
TimestampTz
time_after(TimestampTz start, int64 duration, const char *name)
{
	TimestampTz result;

	if (pg_add_s64_overflow(start, duration, &result) || !IS_VALID_TIMESTAMP(result))
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_BAD_ARGUMENT),
				 errmsg("%s is too long", name)));
	return result;
}

/*
 * Gives a record a lease from its last update on, no longer than the policy of
 * its scope allows.  The record is kept for the retention after the lease, so
 * that the next owner gets taken_over = true.
 */
void
set_lease(const Handle *handle, Record *record, int64 lease)
{
	record->lease_expires_at = time_after(record->updated_at, policy_lease(&handle->policy, lease), "lease");
	record->expires_at = time_after(record->lease_expires_at,
									policy_retention(&handle->policy, 0), "lease");
}
