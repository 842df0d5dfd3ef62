/*
 * as_owner.h
 *		Runs work as the owner of the store.
 */
#ifndef IDEM_AS_OWNER_H
#define IDEM_AS_OWNER_H

#include "postgres.h"

/* who it was before */
typedef struct Caller
{
	Oid			user;
	int			context;
	int			nest_level;		/* of settings; 0: nothing was changed */
} Caller;

extern Caller as_owner_in_call(Oid owner);
extern Caller as_owner_in_statement(Oid table);
extern Caller as_owner_until_commit(Oid owner);
extern void as_owner_end(const Caller *caller);

#endif							/* IDEM_AS_OWNER_H */
