/*
 * lease.c
 *		What the owner of a lease changes while it works: the end of the lease,
 *		and the note of its progress.
 *
 * The note is where the response will be, sealed like it.  The next owner of the
 * operation gets the last one that was committed.
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "operation/operation_internal.h"
#include "operation/operation_owner.h"
#include "seal/seal.h"
#include "store/store.h"

/* The fence of a change without one: that of the lease which this transaction began. */
static int64
leased_fence(const Handle *handle)
{
	int64		fence = operation_owner_fence(handle);

	if (fence == NO_FENCE)
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_BAD_ARGUMENT),
				 errmsg("operation \"%s\" of scope \"%s\" has no lease",
						text_to_cstring(handle->name->key), text_to_cstring(handle->name->scope)),
				 errhint("This transaction owns it until its end.")));
	return fence;
}

/* Writes the record that the owner has changed.  Returns the end of its lease. */
static TimestampTz
put_lease(const Handle *handle, const Record *record, TimestampTz expected)
{
	OperationState	state = handle->state;

	store_put(handle->catalog, record, expected);
	ForceSyncCommit();
	state.wrote = true;
	state.stored_at = record->updated_at;
	state.lease_expires_at = record->lease_expires_at;
	journal_set(handle->id, handle->name, state);
	return record->lease_expires_at;
}

/* Change the end of a lease to now plus the interval, even if it has run out. */
TimestampTz
operation_extend(const OperationName *name, int64 fence, int64 lease)
{
	Handle		handle;
	Record		record;
	TimestampTz expected;

	handle_open(&handle, name, RowExclusiveLock);
	operation_owner_require(&handle, fence == NO_FENCE ? leased_fence(&handle) : fence, &record);
	seal_keep(&record);
	expected = record.updated_at;
	record.updated_at = GetCurrentTimestamp();
	set_lease(&handle, &record, lease);
	return put_lease(&handle, &record, expected);
}

/* Leave a note for the next owner.  A lease of 0 ends when it would. */
TimestampTz
operation_progress(const OperationName *name, int64 fence, int64 lease, struct varlena *note)
{
	Response	progress = {.payload = note};
	Handle		handle;
	Record		record;
	TimestampTz expected;

	handle_open(&handle, name, RowExclusiveLock);
	if (response_size(&progress) > handle.policy.max_response_size)
		too_large(&handle, &progress, "progress");
	operation_owner_require(&handle, fence == NO_FENCE ? leased_fence(&handle) : fence, &record);
	expected = record.updated_at;
	record.updated_at = GetCurrentTimestamp();
	record.response = progress;
	if (lease > 0)
		set_lease(&handle, &record, lease);
	return put_lease(&handle, &record, expected);
}
