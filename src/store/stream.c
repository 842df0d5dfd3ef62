/*
 * stream.c
 *		The high-water marks of streams: every SQL statement on idempotency_stream.
 */
#include "postgres.h"

#include "catalog/pg_type.h"

#include "base/compat.h"
#include "store/statement.h"
#include "store/stream.h"

static Statement advance_stream = {
	"INSERT INTO %1$s.idempotency_stream AS mark (scope, stream, seq, updated_at)"
	" VALUES ($1, $2, $3, pg_catalog.clock_timestamp())"
	" ON CONFLICT (scope, stream) DO UPDATE"
	" SET seq = EXCLUDED.seq, updated_at = EXCLUDED.updated_at"
	" WHERE mark.seq OPERATOR(pg_catalog.<) EXCLUDED.seq",
	3, {TEXTOID, TEXTOID, INT8OID},.table = TABLE_STREAM
};

/*
 * Moves a stream's high-water mark; false if the mark is there or higher
 * already.  Callers queue up on the row, so that each sees the mark of the one before.
 */
bool
stream_advance(const Catalog *catalog, const OperationName *stream, int64 seq)
{
	Datum		arguments[3] = {
		PointerGetDatum(stream->scope), PointerGetDatum(stream->key), Int64GetDatum(seq)
	};
	bool		advanced = statement_run(&advance_stream, catalog, arguments, NULL, InvalidSnapshot) > 0;

	statement_finish();
	return advanced;
}
