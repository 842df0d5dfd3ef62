/*
 * reseal.c
 *		Seals stored responses with the newest key: those that were sealed with
 *		an older one, and those from before there was a key.
 *
 * Like collection it goes round the pages of the store, but the hand is this
 * session's only: rotation is a task that somebody sees through to its end.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lockdefs.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "catalog.h"
#include "compat.h"
#include "keyring.h"
#include "reseal.h"
#include "seal.h"
#include "store.h"

/* pages of one statement: 1 MB */
#define CHUNK_PAGES 128

static BlockNumber hand = 0;

static const SealKey *
required_key(void)
{
	const SealKey *key = keyring_newest();

	if (key == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("there is no key to seal with"),
				 errhint("Set idempotency.seal_key_file.")));
	return key;
}

/* Nothing else of a record changes, so whoever has judged it need not know. */
static void
reseal_record(const Catalog *catalog, Record *record)
{
	unseal_record(record);
	store_put(catalog, record, record->updated_at);
}

static int64
reseal_pages(const Catalog *catalog, BlockNumber start, BlockNumber end,
			 text *key, int64 max_rows)
{
	MemoryContext row = AllocSetContextCreate(CurrentMemoryContext, "idempotency reseal",
											  ALLOCSET_DEFAULT_SIZES);
	MemoryContext caller = CurrentMemoryContext;
	Record	   *records;
	int64		count = store_find_unsealed(catalog, start, end, key, max_rows, &records);

	for (int64 i = 0; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		/* a response takes several times its size on the way */
		MemoryContextSwitchTo(row);
		reseal_record(catalog, &records[i]);
		MemoryContextSwitchTo(caller);
		MemoryContextReset(row);
	}
	MemoryContextDelete(row);
	return count;
}

/*
 * Seals up to max_rows responses and returns how many: fewer only when it has
 * been all round the store.
 */
int64
reseal(int64 max_rows)
{
	text	   *key = cstring_to_text(required_key()->name);
	const Catalog *catalog = catalog_open(RowExclusiveLock);
	BlockNumber pages = store_pages(catalog);
	BlockNumber seen = 0;
	int64		done = 0;

	while (seen < pages && done < max_rows)
	{
		BlockNumber start = hand < pages ? hand : 0;
		BlockNumber end = start + Min(CHUNK_PAGES, pages - start);
		int64		got = reseal_pages(catalog, start, end, key, max_rows - done);

		done += got;
		/* pages that may have more are not done with */
		if (done < max_rows)
		{
			seen += end - start;
			hand = end;
		}
	}
	return done;
}
