/*
 * databases.h
 *		Which databases there are, and which the collector is to visit.
 */
#ifndef IDEM_DATABASES_H
#define IDEM_DATABASES_H

#include "postgres.h"

#include "nodes/pg_list.h"

#include "shared/wait.h"

typedef struct Database
{
	Oid			oid;
	char		name[NAMEDATALEN];
	int			failures;		/* in a row */
	int			cancelled;		/* visits in a row that took too long */
	bool		is_slow;		/* the last visit took longer than usual */
	Deadline	pause;			/* until the next visit */
	bool		has_more;		/* to do than the last visit could */
	bool		present;		/* still exists */
	bool		may_visit;		/* one can connect to it */
} Database;

extern List *databases_read(MemoryContext context);
extern bool database_exists(Oid oid);
extern bool database_is_locked(Oid oid);
extern bool database_is_wanted(const Database *database);
extern void databases_warn_of_unknown_names(void);

#endif							/* IDEM_DATABASES_H */
