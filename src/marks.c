/*
 * marks.c
 *		How far streams and the sweep have come: every SQL statement on
 *		idempotency_stream and idempotency_sweep.
 */
#include "postgres.h"

#include "catalog/pg_type.h"

#include "compat.h"
#include "marks.h"
#include "statement.h"

static Statement advance_stream = {
	"INSERT INTO %1$s.idempotency_stream AS mark (scope, stream, seq, updated_at)"
	" VALUES ($1, $2, $3, pg_catalog.clock_timestamp())"
	" ON CONFLICT (scope, stream) DO UPDATE"
	" SET seq = EXCLUDED.seq, updated_at = EXCLUDED.updated_at"
	" WHERE mark.seq OPERATOR(pg_catalog.<) EXCLUDED.seq",
	3, {TEXTOID, TEXTOID, INT8OID}
};

static Statement sweep_position = {
	"SELECT next_page::pg_catalog.int8 FROM %1$s.idempotency_sweep"
};

static Statement remember_sweep = {
	"INSERT INTO %1$s.idempotency_sweep (next_page, swept_at)"
	" VALUES ($1, pg_catalog.clock_timestamp())"
	" ON CONFLICT (only_row) DO UPDATE"
	" SET next_page = EXCLUDED.next_page, swept_at = EXCLUDED.swept_at",
	1, {INT8OID}
};

/*
 * Moves a stream's high-water mark; false if it is there or further already.
 * Callers queue up on the row, so that they see each other's marks.
 */
bool
marks_advance(const Catalog *catalog, const OperationName *stream, int64 seq)
{
	Datum		arguments[3] = {
		PointerGetDatum(stream->scope), PointerGetDatum(stream->key), Int64GetDatum(seq)
	};
	bool		advanced = statement_run(&advance_stream, catalog, arguments, NULL, InvalidSnapshot) > 0;

	statement_finish();
	return advanced;
}

/* Where the last sweep that committed stopped. */
BlockNumber
marks_sweep_position(const Catalog *catalog)
{
	BlockNumber position = 0;
	bool		is_null;

	if (statement_run(&sweep_position, catalog, NULL, NULL, InvalidSnapshot) > 0)
		position = (BlockNumber) DatumGetInt64(statement_column(0, 1, &is_null));
	statement_finish();
	return position;
}

void
marks_remember_sweep(const Catalog *catalog, BlockNumber position)
{
	Datum		arguments[1] = {Int64GetDatum(position)};

	(void) statement_run(&remember_sweep, catalog, arguments, NULL, InvalidSnapshot);
	statement_finish();
}
