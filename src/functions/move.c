/*
 * move.c
 *		Internal SQL function: moves rows to a table that becomes a partition of
 *		the store meanwhile.  Also for other changes of rows by the care.
 *
 * The rows must have left the default partition when the table is attached, and
 * logical subscribers hear of them only if they come afterwards.  In between
 * they are in a tuplestore: a table for them would need rights, and a
 * permanent one would be published itself.  Responses that are stored out of line
 * stay where they are until the rows have arrived.
 *
 * Checks and other code of the owner's run meanwhile, and must not have the rights
 * of a superuser who calls.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_class.h"
#include "commands/extension.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"
#include "utils/queryenvironment.h"
#include "utils/syscache.h"
#include "utils/tuplestore.h"

#include "base/compat.h"
#include "functions/arguments.h"
#include "schema/as_owner.h"

#define STORE_NAME "idempotency_store"

/* what the last command calls the rows */
#define MOVED "moved"

SQL_FUNCTION(idem_move_rows);

/* What a command has just returned, as a table for the next ones. */
static Tuplestorestate *
name_rows(const SPITupleTable *rows)
{
	EphemeralNamedRelation moved = palloc0(sizeof(EphemeralNamedRelationData));
	Tuplestorestate *store = tuplestore_begin_heap(false, false, work_mem);
	int			result;

	for (uint64 i = 0; i < rows->numvals; i++)
		tuplestore_puttuple(store, rows->vals[i]);
	moved->md.name = pstrdup(MOVED);
	moved->md.tupdesc = rows->tupdesc;
	moved->md.enrtype = ENR_NAMED_TUPLESTORE;
	moved->md.enrtuples = rows->numvals;
	moved->reldata = store;
	result = SPI_register_relation(moved);
	if (result != SPI_OK_REL_REGISTER)
		elog(ERROR, "could not keep rows that move: %s", SPI_result_code_string(result));
	return store;
}

static int64
move_rows(const char *take, const char *meanwhile, const char *give)
{
	SPITupleTable *rows;
	int64		count;

	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "could not connect to SPI");
	(void) SPI_execute(take, false, 0);
	rows = SPI_tuptable;
	count = (int64) SPI_processed;
	(void) SPI_execute(meanwhile, false, 0);
	if (rows != NULL && rows->numvals > 0)
	{
		Tuplestorestate *store = name_rows(rows);

		(void) SPI_execute(give, false, 0);
		tuplestore_end(store);
	}
	SPI_finish();
	return count;
}

/* The store changes its shape just now, so nobody looks at more than its owner. */
static Oid
owner_of_store(void)
{
	Oid			schema = get_extension_schema(get_extension_oid(EXTENSION_NAME, false));
	Oid			store = get_relname_relid(STORE_NAME, schema);
	HeapTuple	row = SearchSysCache1(RELOID, ObjectIdGetDatum(store));
	Oid			owner;

	if (!HeapTupleIsValid(row))
		elog(ERROR, "the store does not exist");
	owner = ((Form_pg_class) GETSTRUCT(row))->relowner;
	ReleaseSysCache(row);
	if (!has_privs_of_role(GetUserId(), owner))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be owner of table %s", STORE_NAME)));
	return owner;
}

/*
 * idem_move_rows(take, meanwhile, give): three commands, run as the owner of the
 * store; the rows that the first one returns are the table "moved" of the last
 * one, which runs if there are any.  Returns how many rows the first one changed.
 */
Datum
idem_move_rows(PG_FUNCTION_ARGS)
{
	char	   *take = text_to_cstring(required_text(fcinfo, 0, "take"));
	char	   *meanwhile = text_to_cstring(required_text(fcinfo, 1, "meanwhile"));
	char	   *give = text_to_cstring(required_text(fcinfo, 2, "give"));
	Caller		caller = as_owner_in_function(owner_of_store());
	int64		count;

	count = move_rows(take, meanwhile, give);
	as_owner_end(&caller);
	PG_RETURN_INT64(count);
}
