/*
 * subtransaction.c
 *		Runs something that may fail, and leaves the transaction usable.
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "base/subtransaction.h"

/*
 * Runs it in a subtransaction of its own.  The caller may rely on this: true:
 * all effects stay.  false: an expected error ended it, no effect is left, and
 * the error is gone; it is copied into the caller's memory where "error" is not
 * NULL.  Any other error is raised again.
 */
bool
subtransaction_run(const Subtransaction *work, ErrorData **error)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	volatile bool succeeded = false;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		work->run(work->argument);
		ReleaseCurrentSubTransaction();
		succeeded = true;
	}
	PG_CATCH();
	{
		/* first: an error of any later step would be caught inside our subtransaction */
		RollbackAndReleaseCurrentSubTransaction();
		CurrentResourceOwner = owner;
		/* whoever catches it next may delete our caller's memory */
		MemoryContextSwitchTo(ErrorContext);
		if (!work->expects(geterrcode()))
			PG_RE_THROW();
		MemoryContextSwitchTo(context);
		if (error != NULL)
			*error = CopyErrorData();
		FlushErrorState();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return succeeded;
}
