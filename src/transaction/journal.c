/*
 * journal.c
 *		The begins and ends of this transaction, and a limit on its locks.
 *
 * There is an entry for each operation that the transaction has touched, and a
 * change for each nesting level that has touched it: the state before the
 * first of that level's changes undoes all of them.  An entry of which nothing
 * is left is removed together with its change.  So a transaction may begin and
 * release any number of operations in the same memory.
 *
 * Each function takes the memory that it needs before it changes anything: an
 * error that a savepoint catches leaves the journal as it was.  savepoint.c undoes
 * changes, and moves them to the parent level.
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/memutils.h"

#include "base/compat.h"
#include "base/settings.h"
#include "transaction/guard_order.h"
#include "transaction/journal_internal.h"

Journal		journal = {0};
static bool closed = false;		/* until the transaction ends */

const OperationState untouched = {.phase = PHASE_NONE,.stored_at = NO_TIME};

/* ---- entries ---- */

static void
start_journal(void)
{
	if (journal.context != NULL)
		return;
	journal.context = AllocSetContextCreate(TopTransactionContext,
											"idempotency operations",
											ALLOCSET_SMALL_SIZES);
	journal.buckets = journal.first_buckets;
	journal.bucket_count = FIRST_BUCKETS;
}

static Entry **
bucket_of(Entry **buckets, int count, uint64 id)
{
	return &buckets[id & (count - 1)];
}

static void
link_entry(Entry *entry, Entry **bucket)
{
	entry->next = *bucket;
	*bucket = entry;
}

/* Makes room for one more. */
static void
grow_buckets(void)
{
	int			count = journal.bucket_count * 2;
	Entry	  **buckets;

	if (journal.entry_count < journal.bucket_count)
		return;
	buckets = MemoryContextAllocZero(journal.context, count * sizeof(Entry *));
	for (int i = 0; i < journal.bucket_count; i++)
	{
		Entry	   *next;

		for (Entry *entry = journal.buckets[i]; entry; entry = next)
		{
			next = entry->next;
			link_entry(entry, bucket_of(buckets, count, entry->id));
		}
	}
	if (journal.buckets != journal.first_buckets)
		pfree(journal.buckets);
	journal.buckets = buckets;
	journal.bucket_count = count;
}

/* NULL where the transaction has not touched it. */
static Entry *
find_entry(uint64 id, const OperationName *name)
{
	if (journal.context == NULL)
		return NULL;
	for (Entry *entry = *bucket_of(journal.buckets, journal.bucket_count, id); entry; entry = entry->next)
	{
		if (entry->id == id && same_text(entry->name.key, name->key) &&
			same_text(entry->name.scope, name->scope))
			return entry;
	}
	return NULL;
}

/* The entries in the order in which they were made; NULL comes before the first. */
Entry *
journal_next(const Entry *entry)
{
	Change	   *change = entry ? entry->made.newer : journal.oldest;

	while (change != NULL && (change->entry == NULL || change->earlier != NULL))
		change = change->newer;
	return change ? change->entry : NULL;
}

const OperationState *
entry_state(const Entry *entry)
{
	return &entry->state;
}

const OperationName *
entry_name(const Entry *entry)
{
	return &entry->name;
}

uint64
entry_id(const Entry *entry)
{
	return entry->id;
}

static text *
put_text(char *target, const text *value)
{
	return memcpy(target, value, VARSIZE_ANY(value));
}

/* An entry that is not linked to anything yet. */
static Entry *
make_entry(uint64 id, const OperationName *name)
{
	Size		scope_size = INTALIGN(VARSIZE_ANY(name->scope));
	char	   *memory = MemoryContextAlloc(journal.context,
											sizeof(Entry) + scope_size + VARSIZE_ANY(name->key));
	Entry	   *entry = (Entry *) memory;

	memset(entry, 0, sizeof(Entry));
	entry->id = id;
	entry->state = untouched;
	entry->name.scope = put_text(memory + sizeof(Entry), name->scope);
	entry->name.key = put_text(memory + sizeof(Entry) + scope_size, name->key);
	return entry;
}

/* ---- requests ---- */

static struct varlena *
copy_value(MemoryContext context, const void *value)
{
	Size		size;

	if (value == NULL)
		return NULL;
	size = VARSIZE_ANY(value);
	return memcpy(MemoryContextAlloc(context, size), value, size);
}

static Digest
copy_request(MemoryContext context, const Digest *request)
{
	Digest		copy = {.bytes = (bytea *) copy_value(context, request->bytes)};

	copy.key = (text *) copy_value(context, request->key);
	return copy;
}

/*
 * The state of an operation in this transaction.  The request is a copy: a
 * trigger of the owner's may release the operation while the caller still uses
 * the request, and then the journal frees its own.
 */
OperationState
journal_state(uint64 id, const OperationName *name)
{
	const Entry *entry = find_entry(id, name);
	OperationState	state = entry ? entry->state : untouched;

	state.request = copy_request(CurrentMemoryContext, &state.request);
	return state;
}

/* Several states may share a request. */
void
free_request(Digest request, const OperationState *may_share, const OperationState *may_share_too)
{
	if (request.bytes == NULL || request.bytes == may_share->request.bytes ||
		request.bytes == may_share_too->request.bytes)
		return;
	pfree(request.bytes);
	if (request.key != NULL)
		pfree(request.key);
}

/* ---- changes ---- */

static void
link_change(Change *change)
{
	change->level = GetCurrentTransactionNestLevel();
	change->older = journal.newest;
	change->newer = NULL;
	if (journal.newest != NULL)
		journal.newest->newer = change;
	else
		journal.oldest = change;
	journal.newest = change;
}

void
unlink_change(Change *change)
{
	if (change->older != NULL)
		change->older->newer = change->newer;
	else
		journal.oldest = change->newer;
	if (change->newer != NULL)
		change->newer->older = change->older;
	else
		journal.newest = change->older;
}

void
replace_state(Entry *entry, const OperationState *state)
{
	Digest		request = entry->state.request;

	journal.unfinished += (int) state_is_unfinished(state) - (int) state_is_unfinished(&entry->state);
	journal.held += (int) state_holds_lock(state) - (int) state_holds_lock(&entry->state);
	entry->state = *state;
	free_request(request, state, &entry->latest->before);
}

void
remove_entry(Entry *entry)
{
	Entry	  **link = bucket_of(journal.buckets, journal.bucket_count, entry->id);

	unlink_change(&entry->made);
	while (*link != entry)
		link = &(*link)->next;
	*link = entry->next;
	journal.entry_count--;
	pfree(entry);
}

/* True if nothing is left of the entry: the level that made it has undone all. */
static bool
is_nothing(const Entry *entry)
{
	return !state_holds_lock(&entry->state) && !entry->state.wakes && !entry->state.forgets &&
		entry->latest == &entry->made && entry->made.level == GetCurrentTransactionNestLevel();
}

static Entry *
add_entry(uint64 id, const OperationName *name)
{
	Entry	   *entry;

	grow_buckets();
	entry = make_entry(id, name);
	entry->made.entry = entry;
	entry->made.before = untouched;
	entry->latest = &entry->made;
	link_entry(entry, bucket_of(journal.buckets, journal.bucket_count, id));
	journal.entry_count++;
	link_change(&entry->made);
	return entry;
}

static void
add_change(Entry *entry)
{
	Change	   *change = MemoryContextAllocZero(journal.context, sizeof(Change));

	change->entry = entry;
	change->earlier = entry->latest;
	change->before = entry->state;
	entry->latest = change;
	link_change(change);
}

/*
 * Changes the state of an operation in this transaction, until a rollback
 * undoes it.  From here on COMMIT fails as long as the operation is unfinished.
 */
void
journal_set(uint64 id, const OperationName *name, OperationState state)
{
	Entry	   *entry;

	guard_use();
	start_journal();
	entry = find_entry(id, name);
	if (entry == NULL || state.request.bytes != entry->state.request.bytes)
		state.request = copy_request(journal.context, &state.request);
	if (entry == NULL)
		entry = add_entry(id, name);
	else if (entry->latest->level != GetCurrentTransactionNestLevel())
		add_change(entry);
	/* from here on nothing can fail */
	state.wakes |= entry->state.wakes;
	state.forgets |= entry->state.forgets;
	replace_state(entry, &state);
	if (is_nothing(entry))
	{
		replace_state(entry, &untouched);
		remove_entry(entry);
	}
}

/* Counts so many more locks on resources, until a rollback. */
void
journal_add_locks(int count)
{
	Change	   *change;

	start_journal();
	change = MemoryContextAllocZero(journal.context, sizeof(Change));
	change->before = untouched;
	change->locks = count;
	link_change(change);
	journal.held += count;
}

/*
 * Makes sure that the transaction may take so many more locks, on operations or
 * resources.  The lock table is shared by all sessions, so there is a limit.
 */
void
journal_reserve(int locks)
{
	if (closed)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TRANSACTION_STATE),
				 errmsg("operations cannot be begun or ended while the transaction commits")));
	if (journal.held > setting_max_operations - locks)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("a transaction cannot hold more than %d operations and resource locks",
						setting_max_operations),
				 errhint("Commit more often, or raise idempotency.max_operations_per_transaction together with max_locks_per_transaction.")));
}

/* The guard has accepted the transaction: it can begin or end nothing any more. */
void
journal_close(void)
{
	closed = true;
}

bool
journal_is_closed(void)
{
	return closed;
}

bool
journal_has_unfinished(void)
{
	return journal.unfinished > 0;
}

/* Has the transaction touched anything? */
bool
journal_is_empty(void)
{
	return journal.context == NULL;
}

/* The transaction has ended; the memory goes with its own. */
void
journal_forget(void)
{
	closed = false;
	if (journal.context != NULL)
		memset(&journal, 0, sizeof(journal));
}
