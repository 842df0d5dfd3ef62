/*
 * transaction.c
 *		What this transaction has begun and ended, and the guard that refuses
 *		its COMMIT while anything is unfinished.
 *
 * A transaction-bound operation is nothing but an entry here and a lock until
 * it ends.  Each change of an entry goes into a journal, so that a savepoint
 * that is rolled back takes its begins and ends with it.
 *
 * The guard only refuses, it never writes: a write at this point would come
 * after the deferred constraints were checked and would get round READ ONLY.
 * Nothing here can fail at COMMIT or ABORT proper.
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "compat.h"
#include "fault.h"
#include "settings.h"
#include "stats.h"
#include "transaction.h"
#include "wait.h"

typedef struct Entry
{
	struct Entry *next;			/* another name with the same lock id */
	uint64		id;
	OperationName name;
	Standing	standing;
} Entry;

/* the entries of one lock id */
typedef struct Slot
{
	uint64		id;
	Entry	   *entries;
	char		status;			/* simplehash's */
} Slot;

#define SH_PREFIX slots
#define SH_ELEMENT_TYPE Slot
#define SH_KEY_TYPE uint64
#define SH_KEY id
#define SH_HASH_KEY(table, key) ((uint32) (key))
#define SH_EQUAL(table, a, b) ((a) == (b))
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

/* how to undo one change, and what it asks of COMMIT */
typedef struct Change
{
	Entry	   *entry;			/* NULL: not of an operation's standing */
	bool		created;		/* the entry is new */
	Standing	before;
	int			locks;			/* on resources */
	bool		wakes;			/* those who wait for the lease of ... */
	uint64		id;				/* ... this operation */
	int			level;			/* nesting level that made it */
} Change;

/* The present transaction; context is NULL while it has touched nothing. */
static struct
{
	MemoryContext context;
	slots_hash *slots;
	Change	   *journal;		/* levels never decrease */
	int			changes;
	int			capacity;
	int			held;			/* locks */
	bool		committing;		/* the guard has passed it */
}			present;

static const Standing untouched = {.phase = PHASE_NONE,.stored_at = NO_TIME};

static void transaction_event(XactEvent event, void *arg);

/* marks the registration that is renewed in every transaction */
static char renewed;

static bool
is_unfinished(const Standing *standing)
{
	return standing->phase == PHASE_PENDING && standing->fence == NO_FENCE;
}

/* Does the operation's lock stay with this transaction? */
bool
transaction_holds_lock(const Standing *standing)
{
	return standing->phase != PHASE_NONE || standing->wrote || standing->locked;
}

static void
set_standing(Entry *entry, const Standing *standing)
{
	present.held += (int) transaction_holds_lock(standing) - (int) transaction_holds_lock(&entry->standing);
	entry->standing = *standing;
}

/*
 * Callbacks run last in, first out.  Renewing ours at a transaction's first
 * begin lets it refuse before postgres_fdw or Citus have committed remotely.
 */
static void
renew_guard(void)
{
	if (!CALLBACK_MAY_UNREGISTER_ITSELF)
		UnregisterXactCallback(transaction_event, &renewed);
	RegisterXactCallback(transaction_event, &renewed);
}

static void
start(void)
{
	renew_guard();
	present.context = AllocSetContextCreate(TopTransactionContext,
											"idempotency operations",
											ALLOCSET_SMALL_SIZES);
	present.slots = slots_create(present.context, 8, NULL);
	present.capacity = 8;
	present.journal = MemoryContextAlloc(present.context,
										 present.capacity * sizeof(Change));
}

static void
forget(void)
{
	/* the memory goes with the transaction's */
	memset(&present, 0, sizeof(present));
}

static bool
same_text(const text *a, const text *b)
{
	int			length = VARSIZE_ANY_EXHDR(a);

	return length == (int) VARSIZE_ANY_EXHDR(b) &&
		memcmp(VARDATA_ANY(a), VARDATA_ANY(b), length) == 0;
}

static Entry *
find_entry(uint64 id, const OperationName *name)
{
	Slot	   *slot;

	if (present.context == NULL)
		return NULL;
	slot = slots_lookup(present.slots, id);
	for (Entry *entry = slot ? slot->entries : NULL; entry; entry = entry->next)
	{
		if (same_text(entry->name.key, name->key) &&
			same_text(entry->name.scope, name->scope))
			return entry;
	}
	return NULL;
}

static struct varlena *
keep(const void *value)
{
	Size		size;
	struct varlena *copy;

	if (value == NULL)
		return NULL;
	size = VARSIZE_ANY(value);
	copy = MemoryContextAlloc(present.context, size);
	memcpy(copy, value, size);
	return copy;
}

static Entry *
add_entry(uint64 id, const OperationName *name)
{
	Entry	   *entry;
	Slot	   *slot;
	bool		found;

	entry = MemoryContextAllocZero(present.context, sizeof(Entry));
	entry->id = id;
	entry->standing = untouched;
	entry->name.scope = (text *) keep(name->scope);
	entry->name.key = (text *) keep(name->key);
	slot = slots_insert(present.slots, id, &found);
	entry->next = found ? slot->entries : NULL;
	slot->entries = entry;
	return entry;
}

static void
journal(Change change)
{
	if (present.changes == present.capacity)
	{
		present.capacity *= 2;
		present.journal = repalloc_huge(present.journal,
										present.capacity * sizeof(Change));
	}
	change.level = GetCurrentTransactionNestLevel();
	present.journal[present.changes++] = change;
}

/* Where this transaction stands with an operation. */
Standing
transaction_standing(uint64 id, const OperationName *name)
{
	Entry	   *entry = find_entry(id, name);

	return entry ? entry->standing : untouched;
}

/* Then what was journalled of it undoes the next change as well. */
static bool
is_last_change(const Entry *entry)
{
	const Change *last;

	if (present.changes == 0)
		return false;
	last = &present.journal[present.changes - 1];
	return last->entry == entry && last->level == GetCurrentTransactionNestLevel();
}

/* Changes where this transaction stands, until a rollback undoes it. */
void
transaction_note(uint64 id, const OperationName *name, Standing standing)
{
	Entry	   *entry;
	bool		created;

	if (present.context == NULL)
		start();
	entry = find_entry(id, name);
	created = entry == NULL;
	if (created)
		entry = add_entry(id, name);
	if (standing.request.bytes != entry->standing.request.bytes)
	{
		standing.request.bytes = (bytea *) keep(standing.request.bytes);
		standing.request.key = (text *) keep(standing.request.key);
	}
	if (!is_last_change(entry))
		journal((Change) {.entry = entry,.created = created,.before = entry->standing});
	set_standing(entry, &standing);
}

/* Remembers that so many locks on resources are held, until a rollback. */
void
transaction_note_locks(int count)
{
	if (count == 0)
		return;
	if (present.context == NULL)
		start();
	journal((Change) {.locks = count});
	present.held += count;
}

/* Lets those who wait for the operation's lease look again after COMMIT. */
void
transaction_wake_at_commit(uint64 id)
{
	if (present.context == NULL)
		start();
	journal((Change) {.wakes = true,.id = id});
}

/*
 * Makes sure that the transaction may take so many more locks.  An entry of
 * the shared lock table is taken from everybody, so there is a limit.
 */
void
transaction_reserve(int count)
{
	if (present.committing)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TRANSACTION_STATE),
				 errmsg("operations cannot be begun or ended while the transaction commits")));
	if (present.held > setting_max_operations - count)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("a transaction cannot hold more than %d operations and resource locks",
						setting_max_operations),
				 errhint("Commit more often, or raise idempotency.max_operations_per_transaction together with max_locks_per_transaction.")));
}

static void
refuse_unfinished(void)
{
	for (int i = 0; i < present.changes; i++)
	{
		Entry	   *entry = present.journal[i].entry;

		if (entry == NULL || !is_unfinished(&entry->standing))
			continue;
		stats_count(COUNT_COMMITS_REFUSED);
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_UNFINISHED),
				 errmsg("operation \"%s\" of scope \"%s\" was begun but neither completed, failed nor released",
						text_to_cstring(entry->name.key),
						text_to_cstring(entry->name.scope)),
				 errhint("Call idem_complete, idem_fail or idem_release before COMMIT, in the transaction that called idem_begin, or begin with a lease.")));
	}
}

/* What was committed is visible by now. */
static void
wake_waiters(void)
{
	for (int i = 0; i < present.changes; i++)
	{
		if (present.journal[i].wakes)
			lease_wait_wake(present.journal[i].id);
	}
}

static void
transaction_event(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
		case XACT_EVENT_PRE_PREPARE:
			if (GUARD("commit"))
				refuse_unfinished();
			present.committing = true;
			break;
		case XACT_EVENT_COMMIT:
			if (present.context != NULL)
				FAULT_POINT("commit-visible");
			wake_waiters();
			/* FALLTHROUGH */
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			forget();
			if (CALLBACK_MAY_UNREGISTER_ITSELF && arg == &renewed)
				UnregisterXactCallback(transaction_event, &renewed);
			break;
		case XACT_EVENT_PARALLEL_PRE_COMMIT:
		case XACT_EVENT_PARALLEL_COMMIT:
		case XACT_EVENT_PARALLEL_ABORT:
			/* nothing is ever begun in a parallel worker */
			break;
	}
}

/* Nothing refers to an entry any more when the change that made it is undone. */
static void
remove_entry(Entry *entry)
{
	Slot	   *slot = slots_lookup(present.slots, entry->id);
	Entry	  **place = &slot->entries;

	while (*place != entry)
		place = &(*place)->next;
	*place = entry->next;
	if (slot->entries == NULL)
		slots_delete_item(present.slots, slot);
	pfree(entry->name.scope);
	pfree(entry->name.key);
	pfree(entry);
}

static void
undo_to(int level)
{
	while (present.changes > 0 && present.journal[present.changes - 1].level >= level)
	{
		Change	   *change = &present.journal[--present.changes];

		present.held -= change->locks;
		if (change->entry == NULL)
			continue;
		set_standing(change->entry, &change->before);
		if (change->created)
			remove_entry(change->entry);
	}
}

/* What a savepoint did is now its parent's, and so are its locks. */
static void
hand_to_parent(int level)
{
	for (int i = present.changes - 1; i >= 0 && present.journal[i].level == level; i--)
	{
		Change	   *change = &present.journal[i];

		change->level = level - 1;
		if (change->entry != NULL && change->entry->standing.level == level)
			change->entry->standing.level = level - 1;
	}
}

static void
subtransaction_event(SubXactEvent event, SubTransactionId self,
					 SubTransactionId parent, void *arg)
{
	if (present.changes == 0)
		return;
	if (event == SUBXACT_EVENT_ABORT_SUB)
		undo_to(GetCurrentTransactionNestLevel());
	else if (event == SUBXACT_EVENT_COMMIT_SUB)
		hand_to_parent(GetCurrentTransactionNestLevel());
}

/*
 * The lasting registration covers begins from another extension's commit
 * callback, which the renewed one would miss.
 */
void
transaction_register(void)
{
	RegisterXactCallback(transaction_event, NULL);
	RegisterSubXactCallback(subtransaction_event, NULL);
}
