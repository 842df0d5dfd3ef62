/*
 * module.c
 *		Loads the library: calls the registration of all other files.
 */
#include "postgres.h"

#include "fmgr.h"

#include "base/compat.h"
#include "base/fault.h"
#include "base/settings.h"
#include "collector/launcher.h"
#include "functions/delegate.h"
#include "schema/catalog.h"
#include "scope/scope.h"
#include "shared/shared.h"
#include "store/statement.h"
#include "transaction/transaction.h"

PG_MODULE_MAGIC;

PGDLLEXPORT void _PG_init(void);

static void
register_faults(void)
{
	FAULT_REGISTER();
}

/*
 * Where memory runs out, the server loads the library again at the next call:
 * what has been done is not done twice.  A step that fails is done again as a
 * whole.
 */
void
_PG_init(void)
{
	static void (*const steps[]) (void) = {
		/* first: settings_define() reserves the prefix */
		register_faults,
		settings_define,
		catalog_register,
		scope_register,
		statement_register,
		transaction_register,
		delegate_register,
		shared_register,
		launcher_register
	};
	static int	done = 0;

	for (; done < (int) lengthof(steps); done++)
		steps[done] ();
}
