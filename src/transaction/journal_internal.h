/*
 * journal_internal.h
 *		What journal.c and savepoint.c share: the entries and changes of this
 *		transaction.
 */
#ifndef IDEM_JOURNAL_INTERNAL_H
#define IDEM_JOURNAL_INTERNAL_H

#include "postgres.h"

#include "transaction/journal.h"

#define FIRST_BUCKETS 16

/* how to undo what one nesting level did */
typedef struct Change
{
	struct Change *older;		/* of the transaction; levels never decrease */
	struct Change *newer;
	struct Change *earlier;		/* of the same operation; NULL: it made the entry */
	Entry	   *entry;			/* NULL: it is about locks on resources */
	OperationState	before;
	int			locks;
	int			level;
} Change;

struct Entry
{
	struct Entry *next;			/* in its bucket */
	uint64		id;				/* of its lock; several names may have one */
	OperationName name;			/* is behind the entry itself */
	OperationState	state;
	Change	   *latest;
	Change		made;			/* the change that made the entry */
};

/* The context is NULL while the transaction has touched nothing. */
typedef struct Journal
{
	MemoryContext context;
	Entry	  **buckets;
	int			bucket_count;	/* a power of two */
	int			entry_count;
	Change	   *oldest;
	Change	   *newest;
	int			held;			/* locks */
	int			unfinished;		/* operations that keep the transaction from committing */
	Entry	   *first_buckets[FIRST_BUCKETS];
} Journal;

extern Journal journal;
extern const OperationState untouched;

extern void replace_state(Entry *entry, const OperationState *state);
extern void free_request(Digest request, const OperationState *may_share, const OperationState *may_share_too);
extern void unlink_change(Change *change);
extern void remove_entry(Entry *entry);

#endif							/* IDEM_JOURNAL_INTERNAL_H */
