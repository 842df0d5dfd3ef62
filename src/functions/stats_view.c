/*
 * stats_view.c
 *		The SQL functions behind the view idempotency_stats.
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "base/compat.h"
#include "shared/lost_attempts.h"
#include "shared/stats.h"

SQL_FUNCTION(idem_lost_stats);
SQL_FUNCTION(idem_stats);
SQL_FUNCTION(idem_stats_reset);

/* the columns that version 1.0 gave idem_stats() */
#define STATS_COLUMNS (1 + COUNT_BACKLOG_ROWS + 1)
#define LOST_COLUMNS 4

static void
fill_row(const Figures *figures, Datum *values, bool *nulls)
{
	memset(nulls, false, STATS_COLUMNS * sizeof(bool));
	values[0] = ObjectIdGetDatum(figures->database);
	for (int counter = 0; counter <= COUNT_BACKLOG_ROWS; counter++)
		values[1 + counter] = Int64GetDatum(figures->counts[counter]);

	/* times are stored as such, durations in microseconds */
	nulls[1 + COUNT_LAST_SWEEP_AT] = figures->counts[COUNT_LAST_SWEEP_AT] == 0;
	nulls[1 + COUNT_LAST_SWEEP_MICROSECONDS] = nulls[1 + COUNT_LAST_SWEEP_AT];
	nulls[1 + COUNT_BACKLOG_ROWS] = nulls[1 + COUNT_LAST_SWEEP_AT] &&
		figures->counts[COUNT_BACKLOG_ROWS] == 0;
}

/* idem_stats(): a row per database that has counted; none without preloading */
Datum
idem_stats(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	stats_show_this_database();
	for (int i = 0; shared != NULL && i < COUNTED_DATABASES; i++)
	{
		Figures		figures;
		Datum		values[STATS_COLUMNS];
		bool		nulls[STATS_COLUMNS];

		if (!stats_read(i, &figures))
			continue;
		fill_row(&figures, values, nulls);
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/* idem_lost_stats(): a row per database that has counted; none without preloading */
Datum
idem_lost_stats(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	stats_show_this_database();
	for (int i = 0; lost_attempts_are_counted() && i < COUNTED_DATABASES; i++)
	{
		Figures		figures;
		int64		operations;
		int64		near_limit;
		Datum		values[LOST_COLUMNS];
		bool		nulls[LOST_COLUMNS] = {false};

		if (!stats_read(i, &figures))
			continue;
		lost_attempts_figures(figures.database, &operations, &near_limit);
		values[0] = ObjectIdGetDatum(figures.database);
		values[1] = Int64GetDatum(figures.counts[COUNT_ATTEMPTS_LOST]);
		values[2] = Int64GetDatum(operations);
		values[3] = Int64GetDatum(near_limit);
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/* idem_stats_reset(): of this database */
Datum
idem_stats_reset(PG_FUNCTION_ARGS)
{
	stats_reset();
	PG_RETURN_VOID();
}
