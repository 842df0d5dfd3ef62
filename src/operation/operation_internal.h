/*
 * operation_internal.h
 *		What begin.c, end.c, lease.c, operation_owner.c and release.c share of an
 *		operation.
 */
#ifndef IDEM_OPERATION_INTERNAL_H
#define IDEM_OPERATION_INTERNAL_H

#include "postgres.h"

#include "storage/lock.h"

#include "operation/operation.h"
#include "scope/scope.h"
#include "transaction/journal.h"

/*
 * An operation, and what is known of it before anything is looked up.  It is
 * gathered once, by handle_open, and does not change.
 */
typedef struct Handle
{
	const Catalog *catalog;
	const OperationName *name;
	uint64		id;
	LOCKTAG		lock;
	OperationState	state;		/* this transaction's */
	Policy		policy;			/* of its scope */
} Handle;

extern void handle_open(Handle *handle, const OperationName *name, LOCKMODE mode);
extern void handle_note_end(const Handle *handle, bool wakes);
extern TimestampTz time_after(TimestampTz start, int64 duration, const char *name);
extern void set_lease(const Handle *handle, Record *record, int64 lease);
extern int64 response_size(const Response *response);
pg_noreturn extern void too_large(const Handle *handle, const Response *response, const char *what);

extern Answer replay(const Record *found, TimestampTz now);
extern Answer replay_stored(const Record *found, TimestampTz now);
extern struct varlena *progress_of(const Record *found);
extern Answer in_progress(const OperationName *name, const Record *found, TimestampTz now);
extern Answer mismatch(const OperationName *name, bool is_answered);
extern Answer in_progress_here(const Handle *handle, TimestampTz now);

/* An expired record counts as absent.  A lease outlives the expiry of its record. */
static inline bool
is_absent(const Record *found, TimestampTz now)
{
	return found->expires_at <= now &&
		!(found->status == STATUS_PENDING && found->lease_expires_at > now);
}

/* Makes sure that this transaction may hold the operation's lock until its end. */
static inline void
handle_reserve(const Handle *handle)
{
	journal_reserve(state_holds_lock(&handle->state) ? 0 : 1);
}

#endif							/* IDEM_OPERATION_INTERNAL_H */
