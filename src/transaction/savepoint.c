/*
 * savepoint.c
 *		What a rollback to a savepoint undoes in the journal, and what the release
 *		of a savepoint hands over to the level above.
 *
 * Neither needs memory.
 */
#include "postgres.h"

#include "base/compat.h"
#include "transaction/journal_internal.h"
#include "transaction/savepoint.h"

static void
undo_change(Change *change)
{
	Entry	   *entry = change->entry;

	if (entry != NULL && change->earlier == NULL)
	{
		replace_state(entry, &untouched);
		remove_entry(entry);
		return;
	}
	unlink_change(change);
	journal.held -= change->locks;
	if (entry != NULL)
	{
		entry->latest = change->earlier;
		replace_state(entry, &change->before);
	}
	pfree(change);
}

/* Undoes what was done at that level or deeper. */
void
savepoint_undo(int level)
{
	while (journal.newest != NULL && journal.newest->level >= level)
		undo_change(journal.newest);
}

/* The parent level has touched the operation, too: its change undoes both. */
static void
merge_into_earlier(Change *change)
{
	Entry	   *entry = change->entry;

	entry->latest = change->earlier;
	free_request(change->before.request, &entry->state, &entry->latest->before);
	unlink_change(change);
	pfree(change);
}

/* The parent level takes over the changes of that level, and its locks. */
void
savepoint_hand_over(int level)
{
	Change	   *older;

	for (Change *change = journal.newest; change && change->level == level; change = older)
	{
		Entry	   *entry = change->entry;

		older = change->older;
		if (entry != NULL && entry->state.level == level)
			entry->state.level = level - 1;
		if (entry != NULL && change->earlier != NULL && change->earlier->level == level - 1)
			merge_into_earlier(change);
		else
			change->level = level - 1;
	}
}
