/*
 * failed_operations.c
 *		Failures of a scope, and every SQL statement on idempotency_forgotten, which
 *		says who has forgotten some.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "store/failed_operations.h"
#include "store/statement.h"

/* what the function idem_failure_cause computes, which the owner of the store may not call */
#define CAUSE \
	"CASE WHEN sealed IS NOT NULL THEN 'sealed'" \
	" WHEN (response_payload OPERATOR(pg_catalog.->>) 'reason') OPERATOR(pg_catalog.=) ANY (ARRAY['attempts exhausted', 'attempts lost'])" \
	" THEN response_payload OPERATOR(pg_catalog.->>) 'reason'" \
	" WHEN (response_payload OPERATOR(pg_catalog.->>) 'sqlstate') OPERATOR(pg_catalog.~) '^[0-9A-Z]{5}$'" \
	" THEN response_payload OPERATOR(pg_catalog.->>) 'sqlstate' ELSE 'other' END"

/* the oldest come first; from the store and the tables of its ring */
static Statement find_failed = {
	"SELECT idempotency_key::pg_catalog.text, updated_at FROM %1$s.idempotency_store"
	" WHERE scope OPERATOR(pg_catalog.=) $1 AND pg_catalog.enum_eq(status, 'FAILED')"
	" AND expires_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()"
	" AND ($2 IS NULL OR (" CAUSE ") OPERATOR(pg_catalog.=) $2)"
	" ORDER BY updated_at, idempotency_key LIMIT $3",
	3, {TEXTOID, TEXTOID, INT8OID},.table = TABLE_STORE
};

static Statement note_forgotten = {
	"INSERT INTO %1$s.idempotency_forgotten (role, scope, cause, reason, operations)"
	" VALUES ($1, $2, $3, $4, $5)",
	5, {NAMEOID, TEXTOID, TEXTOID, TEXTOID, INT8OID},.table = TABLE_FORGOTTEN
};

/* Finds up to max_rows of them.  None is locked: the caller looks again under its lock. */
int64
failed_find(const Catalog *catalog, const ForgetRequest *request, FailedOperation **found)
{
	MemoryContext context = CurrentMemoryContext;
	Datum		arguments[3] = {
		PointerGetDatum(request->scope), PointerGetDatum(request->cause), Int64GetDatum(request->max_rows)
	};
	bool		nulls[3] = {false, request->cause == NULL, false};
	int64		count = statement_run(&find_failed, catalog, arguments, nulls, InvalidSnapshot);

	MemoryContextSwitchTo(context);
	*found = palloc0(Max(count, 1) * sizeof(FailedOperation));
	for (int64 i = 0; i < count; i++)
	{
		bool		is_null;

		(*found)[i].key = DatumGetTextPCopy(statement_column(i, 1, &is_null));
		(*found)[i].failed_at = DatumGetTimestampTz(statement_column(i, 2, &is_null));
	}
	statement_finish();
	return count;
}

/* The default values of the other columns are the time, and the role of the session. */
void
failed_note_forgotten(const Catalog *catalog, const ForgetRequest *request, int64 operations,
					  const char *role)
{
	NameData	name;
	Datum		arguments[5] = {
		NameGetDatum(&name), PointerGetDatum(request->scope), PointerGetDatum(request->cause),
		PointerGetDatum(request->reason), Int64GetDatum(operations)
	};
	bool		nulls[5] = {false, false, request->cause == NULL, false, false};

	namestrcpy(&name, role);
	(void) statement_run(&note_forgotten, catalog, arguments, nulls, InvalidSnapshot);
	statement_finish();
}
