/*
 * subtransaction.h
 *		Runs something that may fail, and leaves the transaction usable.
 */
#ifndef IDEM_SUBTRANSACTION_H
#define IDEM_SUBTRANSACTION_H

#include "postgres.h"

/* what is run, and whether an error of that SQLSTATE ends it in order */
typedef struct Subtransaction
{
	void		(*run) (void *argument);
	bool		(*expects) (int sqlstate);
	void	   *argument;		/* of the first */
} Subtransaction;

extern bool subtransaction_run(const Subtransaction *work, ErrorData **error);

#endif							/* IDEM_SUBTRANSACTION_H */
