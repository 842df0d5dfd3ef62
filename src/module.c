/*
 * module.c
 *		Loads the library: calls the registration of all other files.
 */
#include "postgres.h"

#include <dlfcn.h>

#include "fmgr.h"

#include "base/compat.h"
#include "base/fault.h"
#include "base/settings.h"
#include "collector/launcher.h"
#include "functions/citus_delegate.h"
#include "schema/catalog.h"
#include "scope/scope.h"
#include "shared/shared.h"
#include "store/statement.h"
#include "transaction/transaction.h"

PG_MODULE_MAGIC_EXT(.name = EXTENSION_NAME, .version = LIBRARY_VERSION);

PGDLLEXPORT void _PG_init(void);

static void
register_faults(void)
{
	FAULT_REGISTER();
}

/*
 * Each copy of the library would have its own journal and its own settings, and know
 * nothing of the operations of the other.  Copies meet in a variable of the session that
 * has a name.
 */
static void
refuse_second_copy(void)
{
	static const char here = 0;
	const char **loaded = (const char **) find_rendezvous_variable("idempotency library");
	Dl_info		library;

	if (dladdr(&here, &library) == 0)
		elog(ERROR, "the library does not know its file");
	if (*loaded != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot load \"%s\", as this session has loaded \"%s\"", library.dli_fname, *loaded),
				 errhint("Remove one of the two files, or let shared_preload_libraries name that of the functions.")));
	*loaded = library.dli_fname;
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
		refuse_second_copy,
		/* before settings_define(), which reserves the prefix */
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
