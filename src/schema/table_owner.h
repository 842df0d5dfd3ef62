/*
 * table_owner.h
 *		Makes the caller the owner of a table for a while.
 */
#ifndef IDEM_TABLE_OWNER_H
#define IDEM_TABLE_OWNER_H

#include "postgres.h"

/* whom table_owner_leave restores */
typedef struct Caller
{
	Oid			user;
	int			context;
	int			nest_level;		/* of settings; 0: nothing was changed */
} Caller;

extern Caller table_owner_enter_call(Oid owner);
extern Caller table_owner_enter_statement(Oid table);
extern Caller table_owner_enter_transaction(Oid owner);
extern void table_owner_leave(const Caller *caller);

#endif							/* IDEM_TABLE_OWNER_H */
