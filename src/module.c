/*
 * module.c
 *		Loads the extension: wires the others up.
 */
#include "postgres.h"

#include "fmgr.h"

#include "catalog.h"
#include "compat.h"
#include "fault.h"
#include "scope.h"
#include "settings.h"
#include "shared.h"
#include "statement.h"
#include "transaction.h"
#include "worker.h"

PG_MODULE_MAGIC;

PGDLLEXPORT void _PG_init(void);

void
_PG_init(void)
{
	/* first: settings_define() reserves the prefix */
	FAULT_REGISTER();
	settings_define();
	catalog_register();
	scope_register();
	statement_register();
	transaction_register();
	shared_register();
	worker_register();
}
