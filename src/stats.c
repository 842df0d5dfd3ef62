/*
 * stats.c
 *		Counts what happens, where the library is preloaded.
 *
 * A database claims a slot of shared memory at its first count and keeps it;
 * counting is one atomic addition.  What is counted are calls, like
 * pg_stat_user_tables counts rows: whether or not their transaction committed.
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "compat.h"
#include "stats.h"

SQL_FUNCTION(idem_stats);
SQL_FUNCTION(idem_stats_reset);

#define STATS_COLUMNS (1 + COUNTERS)

static DatabaseCounters *mine = NULL;

/* Where every slot is taken, further databases are not counted. */
static DatabaseCounters *
claim_slot(void)
{
	for (int i = 0; i < COUNTED_DATABASES; i++)
	{
		DatabaseCounters *slot = &shared->databases[i];
		uint32		database = InvalidOid;

		if (pg_atomic_compare_exchange_u32(&slot->database, &database, MyDatabaseId) ||
			database == MyDatabaseId)
			return slot;
	}
	return NULL;
}

static pg_atomic_uint64 *
count_of(Counter counter)
{
	if (shared == NULL)
		return NULL;
	if (mine == NULL)
		mine = claim_slot();
	return mine ? &mine->counts[counter] : NULL;
}

void
stats_add(Counter counter, int64 amount)
{
	pg_atomic_uint64 *count = count_of(counter);

	if (count != NULL)
		pg_atomic_fetch_add_u64(count, amount);
}

void
stats_set(Counter counter, int64 value)
{
	pg_atomic_uint64 *count = count_of(counter);

	if (count != NULL)
		pg_atomic_write_u64(count, value);
}

static void
fill_row(DatabaseCounters *slot, Oid database, Datum *values, bool *nulls)
{
	memset(nulls, false, STATS_COLUMNS * sizeof(bool));
	values[0] = ObjectIdGetDatum(database);
	for (int counter = 0; counter < COUNTERS; counter++)
		values[1 + counter] = Int64GetDatum(pg_atomic_read_u64(&slot->counts[counter]));

	/* times are stored as such, durations in microseconds */
	nulls[1 + COUNT_LAST_SWEEP_AT] = DatumGetInt64(values[1 + COUNT_LAST_SWEEP_AT]) == 0;
	nulls[1 + COUNT_LAST_SWEEP_MICROSECONDS] = nulls[1 + COUNT_LAST_SWEEP_AT];
	nulls[1 + COUNT_BACKLOG_ROWS] = nulls[1 + COUNT_LAST_SWEEP_AT];
}

/* idem_stats(): a row per database that has counted; none without preloading */
Datum
idem_stats(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	/* zeros for a database that has counted nothing yet */
	(void) count_of(COUNT_ACQUIRED);
	for (int i = 0; shared != NULL && i < COUNTED_DATABASES; i++)
	{
		DatabaseCounters *slot = &shared->databases[i];
		Oid			database = pg_atomic_read_u32(&slot->database);
		Datum		values[STATS_COLUMNS];
		bool		nulls[STATS_COLUMNS];

		if (!OidIsValid(database))
			continue;
		fill_row(slot, database, values, nulls);
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/* idem_stats_reset(): of this database */
Datum
idem_stats_reset(PG_FUNCTION_ARGS)
{
	for (int counter = 0; counter < COUNTERS; counter++)
		stats_set((Counter) counter, 0);
	PG_RETURN_VOID();
}
