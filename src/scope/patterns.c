/*
 * patterns.c
 *		The rows of idempotency_scope: a pattern of scopes, with their claim and
 *		their policy.
 *
 * The table is read without the executor, as the caller has no rights on it.
 * Its trigger announces changes to all sessions.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "base/duration.h"
#include "schema/definition.h"
#include "scope/patterns.h"

SQL_FUNCTION(idem_scope_changed);

/* in the order of CREATE TABLE idempotency_scope */
typedef enum ScopeColumn
{
	SCOPE_PATTERN,
	SCOPE_ROLE,
	SCOPE_RETENTION,
	SCOPE_MIN_RETENTION,
	SCOPE_MAX_RETENTION,
	SCOPE_MAX_ATTEMPTS,
	SCOPE_ATTEMPTS_LIMIT,
	SCOPE_MAX_RESPONSE_SIZE,
	SCOPE_MAX_LEASE,
	/* since 1.1 */
	SCOPE_MAX_LOST_ATTEMPTS,
	SCOPE_TOO_LARGE_RESPONSE
} ScopeColumn;
#define SCOPE_COLUMNS 11

static const RawColumn columns[SCOPE_COLUMNS] = {
	[SCOPE_PATTERN] = {"pattern", TEXTOID},
	[SCOPE_ROLE] = {"role", NAMEOID},
	[SCOPE_RETENTION] = {"retention", INTERVALOID},
	[SCOPE_MIN_RETENTION] = {"min_retention", INTERVALOID},
	[SCOPE_MAX_RETENTION] = {"max_retention", INTERVALOID},
	[SCOPE_MAX_ATTEMPTS] = {"max_attempts", INT4OID},
	[SCOPE_ATTEMPTS_LIMIT] = {"attempts_limit", INT4OID},
	[SCOPE_MAX_RESPONSE_SIZE] = {"max_response_size", INT4OID},
	[SCOPE_MAX_LEASE] = {"max_lease", INTERVALOID},
	[SCOPE_MAX_LOST_ATTEMPTS] = {"max_lost_attempts", INT4OID},
	[SCOPE_TOO_LARGE_RESPONSE] = {"too_large_response", JSONBOID}
};

static int64
duration_of_column(Datum value, bool is_null)
{
	int64		microseconds;

	return !is_null && duration_of(DatumGetIntervalP(value), &microseconds) ? microseconds : 0;
}

static int32
number_of_column(Datum value, bool is_null)
{
	return is_null ? 0 : DatumGetInt32(value);
}

static Pattern
read_pattern(HeapTuple row, TupleDesc descriptor)
{
	Datum		values[SCOPE_COLUMNS];
	bool		nulls[SCOPE_COLUMNS];
	Pattern		pattern = {0};

	memset(nulls, true, sizeof(nulls));
	heap_deform_tuple(row, descriptor, values, nulls);
	if (nulls[SCOPE_PATTERN])
		definition_refuse("a row of idempotency_scope");
	pattern.text = TextDatumGetCString(values[SCOPE_PATTERN]);
	pattern.length = strlen(pattern.text);
	pattern.is_prefix = pattern.length > 0 && pattern.text[pattern.length - 1] == '*';
	if (pattern.is_prefix)
		pattern.length--;
	pattern.policy.claimed = !nulls[SCOPE_ROLE];
	if (pattern.policy.claimed)
		pattern.policy.role = *DatumGetName(values[SCOPE_ROLE]);
	pattern.policy.retention = duration_of_column(values[SCOPE_RETENTION], nulls[SCOPE_RETENTION]);
	pattern.policy.min_retention = duration_of_column(values[SCOPE_MIN_RETENTION], nulls[SCOPE_MIN_RETENTION]);
	pattern.policy.max_retention = duration_of_column(values[SCOPE_MAX_RETENTION], nulls[SCOPE_MAX_RETENTION]);
	pattern.policy.has_max_attempts = !nulls[SCOPE_MAX_ATTEMPTS];
	pattern.policy.max_attempts = number_of_column(values[SCOPE_MAX_ATTEMPTS], nulls[SCOPE_MAX_ATTEMPTS]);
	pattern.policy.attempts_limit = number_of_column(values[SCOPE_ATTEMPTS_LIMIT], nulls[SCOPE_ATTEMPTS_LIMIT]);
	pattern.policy.has_max_lost_attempts = !nulls[SCOPE_MAX_LOST_ATTEMPTS];
	pattern.policy.max_lost_attempts = number_of_column(values[SCOPE_MAX_LOST_ATTEMPTS], nulls[SCOPE_MAX_LOST_ATTEMPTS]);
	pattern.policy.has_max_response_size = !nulls[SCOPE_MAX_RESPONSE_SIZE];
	pattern.policy.max_response_size = number_of_column(values[SCOPE_MAX_RESPONSE_SIZE], nulls[SCOPE_MAX_RESPONSE_SIZE]);
	pattern.policy.max_lease = duration_of_column(values[SCOPE_MAX_LEASE], nulls[SCOPE_MAX_LEASE]);
	if (!nulls[SCOPE_TOO_LARGE_RESPONSE])
		pattern.too_large_response = PG_DETOAST_DATUM_COPY(values[SCOPE_TOO_LARGE_RESPONSE]);
	return pattern;
}

/* The longest pattern first; a scope before a prefix of the same length. */
static int
compare_patterns(const void *a, const void *b)
{
	const Pattern *left = a;
	const Pattern *right = b;

	if (left->length != right->length)
		return left->length > right->length ? -1 : 1;
	return (int) left->is_prefix - (int) right->is_prefix;
}

/* Does this trigger fire for every writer and every kind of write? */
static bool
always_announces(const Trigger *trigger)
{
	FmgrInfo	function;

	if (trigger->tgenabled != TRIGGER_FIRES_ALWAYS || trigger->tgqual != NULL || trigger->tgnattr != 0)
		return false;
	fmgr_info(trigger->tgfoid, &function);
	return function.fn_addr == idem_scope_changed;
}

/*
 * Does every change send an invalidation?  Not if the owner has turned
 * triggers off, or if a restore with --disable-triggers has turned them off
 * and on again: then writes with session_replication_role = replica do not
 * fire them.
 */
static bool
is_announced(Relation table)
{
	const int16 every = TRIGGER_TYPE_INSERT | TRIGGER_TYPE_UPDATE | TRIGGER_TYPE_DELETE | TRIGGER_TYPE_TRUNCATE;
	int16		events = 0;

	for (int i = 0; table->trigdesc != NULL && i < table->trigdesc->numtriggers; i++)
	{
		if (always_announces(&table->trigdesc->triggers[i]))
			events |= table->trigdesc->triggers[i].tgtype;
	}
	return (events & every) == every;
}

/* Once a session. */
static void
warn_of_missing_trigger(void)
{
	static bool complained = false;

	if (!complained)
		ereport(LOG,
				(errmsg("changes of table \"idempotency_scope\" are not announced, so every call reads the table"),
				 errhint("Run ALTER TABLE idempotency_scope ENABLE ALWAYS TRIGGER idem_scope_changed, ENABLE ALWAYS TRIGGER idem_scope_emptied.")));
	complained = true;
}

static Pattern *
sorted_patterns(List *found)
{
	Pattern	   *patterns = palloc(Max(list_length(found), 1) * sizeof(Pattern));
	int			count = 0;
	ListCell   *cell;

	foreach(cell, found)
		patterns[count++] = *(Pattern *) lfirst(cell);
	qsort(patterns, count, sizeof(Pattern), compare_patterns);
	return patterns;
}

/*
 * All patterns, the longest pattern first, and whether a change of them will be
 * announced.  The table is locked.  A fresh snapshot, whatever the isolation
 * level: rights hold at once.
 */
Pattern *
patterns_read(Oid table, int *count, bool *announced)
{
	Relation	relation = relation_open(table, NoLock);
	SysScanDesc scan;
	List	   *found = NIL;
	HeapTuple	row;

	/* version 1.0 has neither max_lost_attempts nor too_large_response */
	definition_require_raw(relation, "idempotency_scope", columns,
						   RelationGetNumberOfAttributes(relation) < SCOPE_COLUMNS ? SCOPE_MAX_LOST_ATTEMPTS : SCOPE_COLUMNS);
	scan = systable_beginscan(relation, InvalidOid, false, NULL, 0, NULL);
	while (HeapTupleIsValid(row = systable_getnext(scan)))
	{
		Pattern	   *pattern = palloc(sizeof(Pattern));

		*pattern = read_pattern(row, RelationGetDescr(relation));
		found = lappend(found, pattern);
	}
	systable_endscan(scan);
	*announced = is_announced(relation);
	if (!*announced)
		warn_of_missing_trigger();
	relation_close(relation, AccessShareLock);
	*count = list_length(found);
	return sorted_patterns(found);
}

/* The trigger of idempotency_scope. */
Datum
idem_scope_changed(PG_FUNCTION_ARGS)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("idem_scope_changed() can only be called as a trigger")));
	CacheInvalidateRelcache(((TriggerData *) fcinfo->context)->tg_relation);
	PG_RETURN_POINTER(NULL);
}
