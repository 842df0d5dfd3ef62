/*
 * reseal.c
 *		Seals stored responses with the newest key: those that were sealed with
 *		an older one, and those from before there was a key.
 *
 * Like collection it goes round the pages of the store, but each session has a
 * position of its own: one administrator rotates the keys from start to end.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lockdefs.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "base/compat.h"
#include "base/subtransaction.h"
#include "collector/reseal.h"
#include "schema/catalog.h"
#include "schema/store_tables.h"
#include "schema/table_owner.h"
#include "seal/keyring.h"
#include "seal/pgp.h"
#include "seal/seal.h"
#include "store/bulk.h"
#include "store/store.h"
#include "store/store_kind.h"

/* how many responses that cannot be sealed anew are named in warnings */
#define NAMED 10

/* where this session goes on */
static Oid	reseal_table = InvalidOid;
static ItemPointerData reseal_position;

/* one call, and what it has done */
typedef struct Round
{
	const Catalog *catalog;
	Oid			table;			/* of the store, whose turn it is */
	text	   *key;			/* name of the newest one */
	int64		sealed;
	int64		were_clear;
	int64		passed_over;
} Round;

static const SealKey *
required_key(void)
{
	const SealKey *key = keyring_newest();

	if (key == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("there is no key to seal with"),
				 errhint("Set idempotency.seal_key_file.")));
	/* after this, an error about a key is about the key of one record */
	pgp_require();
	return key;
}

/* Is the error about this response, and not about all of them? */
static bool
is_about_record(int sqlerrcode)
{
	switch (sqlerrcode)
	{
		case ERRCODE_DATA_CORRUPTED:
		case ERRCODE_IDEM_TOO_LARGE:
		case ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE:
		case ERRCODE_STATEMENT_TOO_COMPLEX:
		case ERRCODE_UNTRANSLATABLE_CHARACTER:
			return true;
		default:
			return false;
	}
}

/* The error message has only names in it. */
static void
pass_over(const Record *record, const ErrorData *error, Round *round)
{
	if (++round->passed_over > NAMED)
		return;
	ereport(WARNING,
			(errcode(error->sqlerrcode),
			 errmsg("response of operation \"%s\" of scope \"%s\" was not sealed anew: %s",
					text_to_cstring(record->name.key), text_to_cstring(record->name.scope), error->message),
			 error->detail ? errdetail_internal("%s", error->detail) : 0));
}

static void
seal_record_anew(void *record)
{
	seal_anew(record);
}

/*
 * Seals the response in memory.  false: it cannot be sealed, and a warning was
 * given.  A subtransaction frees what pgcrypto held when it failed.
 */
static bool
seal_or_pass_over(Record *record, Round *round)
{
	Subtransaction work = {seal_record_anew, is_about_record, record};
	ErrorData  *error;

	if (subtransaction_run(&work, &error))
		return true;
	pass_over(record, error, round);
	return false;
}

/*
 * Nothing else of a record changes, so a session that has read the record
 * may go on.
 */
static void
reseal_record(Record *record, Round *round)
{
	bool		was_clear = record->response.sealed == NULL;

	if (!seal_or_pass_over(record, round))
		return;
	store_reseal(round->catalog, round->table, record);
	round->sealed++;
	if (was_clear)
		round->were_clear++;
}

static void
reseal_records(Record *records, int64 count, Round *round)
{
	MemoryContext row = AllocSetContextCreate(CurrentMemoryContext, "idempotency reseal row",
											  ALLOCSET_DEFAULT_SIZES);
	MemoryContext caller = CurrentMemoryContext;

	for (int64 i = 0; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		/* sealing needs several times the memory of the response */
		MemoryContextSwitchTo(row);
		reseal_record(&records[i], round);
		MemoryContextSwitchTo(caller);
		MemoryContextReset(row);
	}
	MemoryContextDelete(row);
}

static void
report_round(const Round *round)
{
	if (round->were_clear > 0)
		ereport(NOTICE,
				(errmsg_plural("%lld response that was in clear is sealed now",
							   "%lld responses that were in clear are sealed now",
							   round->were_clear, (long long) round->were_clear),
				 errdetail("A response is in clear if it was stored before there was a key, or if somebody has changed the row.")));
	if (round->passed_over > 0)
		ereport(WARNING,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg_plural("%lld response was passed over, because it could not be sealed anew",
							   "%lld responses were passed over, because they could not be sealed anew",
							   round->passed_over, (long long) round->passed_over),
				 errhint("Put missing keys back into the file of idempotency.seal_key_file. Until then none of these operations runs again.")));
}

static int64
reseal_step(void *state, ItemPointer from, ItemPointer end, int64 max_rows)
{
	Round	   *round = state;
	int64		before = round->sealed;
	MemoryContext caller = CurrentMemoryContext;
	/* a call may walk over the whole store: only the records of one step are kept in memory */
	MemoryContext step = AllocSetContextCreate(caller, "idempotency reseal", ALLOCSET_DEFAULT_SIZES);
	Record	   *records;
	int64		found;

	MemoryContextSwitchTo(step);
	found = bulk_find_unsealed(round->catalog, round->table, from, end, round->key, max_rows, &records);
	reseal_records(records, found, round);
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(step);
	return round->sealed - before;
}

static List *
tables_of_store(void)
{
	List	   *tables = NIL;

	for (int i = 0; i < store_tables_count(); i++)
		tables = lappend_oid(tables, store_tables_get(i)->oid);
	return tables;
}

/* The number of the table at which the session goes on. */
static int
table_of_position(const List *tables)
{
	for (int number = 0; number < list_length(tables); number++)
	{
		if (list_nth_oid(tables, number) == reseal_table)
			return number;
	}
	ItemPointerSet(&reseal_position, 0, 0);
	return 0;
}

/* Seals in a table from the session's position up to another one, until so many are sealed. */
static void
reseal_range(Round *round, Oid table, ItemPointerData to, int64 max_rows)
{
	Walk		walk = {reseal_step, round};

	round->table = reseal_table = table;
	/* a shard that is being moved is sealed on its new node, or another time */
	if (!kind_hold_table(round->catalog, round->table))
		reseal_position = to;
	else
		(void) bulk_walk(&walk, &reseal_position, to, max_rows - round->sealed);
}

/* Once round these tables of the store, and back to the position where the round began. */
static void
reseal_round(Round *round, const List *tables, int64 max_rows)
{
	int			count = list_length(tables);
	int			first = table_of_position(tables);
	ItemPointerData start = reseal_position;

	for (int i = 0; count > 0 && i <= count && round->sealed < max_rows; i++)
	{
		Oid			table = list_nth_oid(tables, first + i < count ? first + i : first + i - count);
		ItemPointerData to = start;

		if (i > 0)
			ItemPointerSet(&reseal_position, 0, 0);
		if (i < count)
			ItemPointerSet(&to, bulk_pages(table), 0);
		reseal_range(round, table, to, max_rows);
	}
}

/*
 * Seals up to max_rows responses and returns how many: fewer only after a
 * whole round.  Responses that do not open are passed over.
 */
int64
reseal(int64 max_rows)
{
	Round		round = {.key = cstring_to_text(required_key()->name)};
	Caller		caller;

	round.catalog = catalog_open(RowExclusiveLock);
	caller = table_owner_enter_call(round.catalog->store_owner);
	reseal_round(&round, tables_of_store(), max_rows);
	table_owner_leave(&caller);
	report_round(&round);
	return round.sealed;
}
