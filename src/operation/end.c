/*
 * end.c
 *		The end of an operation, COMPLETED or FAILED.
 *
 * Without a fence, these functions end what this very transaction began.  With
 * a fence they end that attempt, from any session.
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "base/fault.h"
#include "operation/operation_internal.h"
#include "operation/operation_owner.h"
#include "shared/stats.h"
#include "store/store.h"

/* Sets the end of a record as requested, and counts it. */
static void
set_end(const Handle *handle, Record *record, const EndRequest *request)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz from = now;

	record->status = request->status;
	record->response = request->response;
	record->lease_expires_at = NO_TIME;
	record->retry_at = NO_TIME;
	record->updated_at = now;
	/*
	 * the record of a retryable failure is kept for longer than its
	 * retry_after
	 */
	if (request->retryable)
		from = record->retry_at = time_after(now, policy_lease(&handle->policy, request->retry_after), "retry_after");
	record->expires_at = time_after(from, policy_retention(&handle->policy, request->retention), "retention");
	stats_count(record->status == STATUS_COMPLETED ? COUNT_COMPLETED : COUNT_FAILED);
}

/* Writes the only row of a transaction-bound operation. */
static Record
end_owned(const Handle *handle, const EndRequest *request)
{
	Record		record = {
		.name = request->name,
		.attempt = handle->state.attempt,
		.request = handle->state.request,
		.fence = NO_FENCE,
		.created_at = handle->state.created_at
	};

	set_end(handle, &record, request);
	FAULT_POINT("end-checked");
	store_put(handle->catalog, &record, handle->state.stored_at);
	handle_note_end(handle, false);
	return record;
}

/* The attempt of the fence ends, if it is current and has not ended already. */
static Record
end_leased(const Handle *handle, const EndRequest *request)
{
	Record		record;
	TimestampTz expected;

	operation_owner_require(handle, request->fence, &record);
	expected = record.updated_at;
	set_end(handle, &record, request);
	FAULT_POINT("end-checked");
	store_put(handle->catalog, &record, expected);
	ForceSyncCommit();
	handle_note_end(handle, true);
	return record;
}

/*
 * A response that is too large is an error.  But after work that was done, the policy of
 * the scope may put another one in its place, and that is small: see idem_set_policy.
 * Returns true if it did.
 */
static bool
replace_too_large(const Handle *handle, EndRequest *end)
{
	struct varlena *instead = NULL;

	if (response_size(&end->response) <= handle->policy.max_response_size)
		return false;
	if (end->status == STATUS_COMPLETED)
		instead = scope_too_large_response(handle->catalog, handle->name->scope);
	if (instead == NULL)
		too_large(handle, &end->response, "response");
	end->response = (Response)
	{
		.has_code = end->response.has_code,.code = end->response.code,.payload = instead
	};
	return true;
}

/* End an operation and store its response.  The caller gets the whole response in any case. */
Answer
operation_end(const EndRequest *request)
{
	EndRequest	end = *request;
	Handle		handle;
	Record		record;
	Answer		answer;
	bool		is_replaced;

	handle_open(&handle, &request->name, RowExclusiveLock);
	is_replaced = !request->cut_to_size && replace_too_large(&handle, &end);
	if (end.fence == NO_FENCE)
		end.fence = operation_owner_fence(&handle);
	record = end.fence == NO_FENCE ? end_owned(&handle, &end) : end_leased(&handle, &end);
	if (is_replaced)
		ereport(NOTICE,
				(errmsg("response of " INT64_FORMAT " bytes is too large: too_large_response of the policy is stored instead",
						response_size(&request->response))));
	record.response = request->response;
	answer = replay(&record, record.updated_at);
	answer.catalog = handle.catalog;
	answer.replayed = false;
	return answer;
}
