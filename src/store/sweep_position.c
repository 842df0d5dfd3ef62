/*
 * sweep_position.c
 *		The position of the sweep over the store: every SQL statement on
 *		idempotency_sweep.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "store/statement.h"
#include "store/sweep_position.h"

static Statement read_position = {
	"SELECT next_page::pg_catalog.int8, began_at, swept_at FROM %1$s.idempotency_sweep",
	.table = TABLE_SWEEP
};

static Statement remember_position = {
	"INSERT INTO %1$s.idempotency_sweep (next_page, began_at, swept_at)"
	" VALUES ($1, $2, pg_catalog.clock_timestamp())"
	" ON CONFLICT (only_row) DO UPDATE"
	" SET next_page = EXCLUDED.next_page, began_at = EXCLUDED.began_at, swept_at = EXCLUDED.swept_at",
	2, {INT8OID, TIMESTAMPTZOID},.table = TABLE_SWEEP
};

/* Where collection goes on: where the last committed sweep stopped. */
SweepPosition
sweep_position(const Catalog *catalog)
{
	SweepPosition position = {0};
	bool		is_null;

	if (statement_run(&read_position, catalog, NULL, NULL, InvalidSnapshot) > 0)
	{
		position.next_page = (BlockNumber) DatumGetInt64(statement_column(0, 1, &is_null));
		position.began_at = DatumGetTimestampTz(statement_column(0, 2, &is_null));
		position.swept_at = DatumGetTimestampTz(statement_column(0, 3, &is_null));
	}
	statement_finish();
	return position;
}

void
sweep_remember_position(const Catalog *catalog, const SweepPosition *position)
{
	Datum		arguments[2] = {
		Int64GetDatum(position->next_page), TimestampTzGetDatum(position->began_at)
	};

	(void) statement_run(&remember_position, catalog, arguments, NULL, InvalidSnapshot);
	statement_finish();
}
