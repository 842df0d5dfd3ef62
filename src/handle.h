/*
 * handle.h
 *		An operation at hand, and what begin and end share.
 */
#ifndef IDEM_HANDLE_H
#define IDEM_HANDLE_H

#include "postgres.h"

#include "catalog.h"
#include "idempotency.h"
#include "lock.h"
#include "scope.h"
#include "transaction.h"

typedef struct Handle
{
	const Catalog *catalog;
	const OperationName *name;
	uint64		id;
	LOCKTAG		lock;
	Standing	standing;		/* this transaction's */
	Policy		policy;			/* of its scope */
} Handle;

extern Handle handle_open(const OperationName *name);
extern void handle_reserve(const Handle *handle);
extern void handle_note(Handle *handle, Standing standing);
extern void handle_note_end(Handle *handle);

extern void require_unrestricted(const char *function);
extern void require_writable(const char *function);
extern TimestampTz time_after(TimestampTz start, int64 duration, const char *name);
extern void set_lease(const Handle *handle, Record *record, int64 lease);

#endif							/* IDEM_HANDLE_H */
