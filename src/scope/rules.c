/*
 * rules.c
 *		The rows of idempotency_scope: the claims and policies of scopes.
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
#include "schema/shape.h"
#include "scope/rules.h"

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
	SCOPE_MAX_LEASE
} ScopeColumn;
#define SCOPE_COLUMNS 9

static const RawColumn columns[SCOPE_COLUMNS] = {
	[SCOPE_PATTERN] = {"pattern", TEXTOID},
	[SCOPE_ROLE] = {"role", NAMEOID},
	[SCOPE_RETENTION] = {"retention", INTERVALOID},
	[SCOPE_MIN_RETENTION] = {"min_retention", INTERVALOID},
	[SCOPE_MAX_RETENTION] = {"max_retention", INTERVALOID},
	[SCOPE_MAX_ATTEMPTS] = {"max_attempts", INT4OID},
	[SCOPE_ATTEMPTS_LIMIT] = {"attempts_limit", INT4OID},
	[SCOPE_MAX_RESPONSE_SIZE] = {"max_response_size", INT4OID},
	[SCOPE_MAX_LEASE] = {"max_lease", INTERVALOID}
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

static Rule
read_rule(HeapTuple row, TupleDesc descriptor)
{
	Datum		values[SCOPE_COLUMNS];
	bool		nulls[SCOPE_COLUMNS];
	Rule		rule = {0};

	heap_deform_tuple(row, descriptor, values, nulls);
	if (nulls[SCOPE_PATTERN])
		shape_refuse("a row of idempotency_scope");
	rule.pattern = TextDatumGetCString(values[SCOPE_PATTERN]);
	rule.length = strlen(rule.pattern);
	rule.is_prefix = rule.length > 0 && rule.pattern[rule.length - 1] == '*';
	if (rule.is_prefix)
		rule.length--;
	rule.policy.claimed = !nulls[SCOPE_ROLE];
	if (rule.policy.claimed)
		rule.policy.role = *DatumGetName(values[SCOPE_ROLE]);
	rule.policy.retention = duration_of_column(values[SCOPE_RETENTION], nulls[SCOPE_RETENTION]);
	rule.policy.min_retention = duration_of_column(values[SCOPE_MIN_RETENTION], nulls[SCOPE_MIN_RETENTION]);
	rule.policy.max_retention = duration_of_column(values[SCOPE_MAX_RETENTION], nulls[SCOPE_MAX_RETENTION]);
	rule.policy.has_max_attempts = !nulls[SCOPE_MAX_ATTEMPTS];
	rule.policy.max_attempts = number_of_column(values[SCOPE_MAX_ATTEMPTS], nulls[SCOPE_MAX_ATTEMPTS]);
	rule.policy.attempts_limit = number_of_column(values[SCOPE_ATTEMPTS_LIMIT], nulls[SCOPE_ATTEMPTS_LIMIT]);
	rule.policy.has_max_response_size = !nulls[SCOPE_MAX_RESPONSE_SIZE];
	rule.policy.max_response_size = number_of_column(values[SCOPE_MAX_RESPONSE_SIZE], nulls[SCOPE_MAX_RESPONSE_SIZE]);
	rule.policy.max_lease = duration_of_column(values[SCOPE_MAX_LEASE], nulls[SCOPE_MAX_LEASE]);
	return rule;
}

/* The longest pattern first; a scope before a prefix of the same length. */
static int
compare_rules(const void *a, const void *b)
{
	const Rule *left = a;
	const Rule *right = b;

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

static Rule *
sorted_rules(List *found)
{
	Rule	   *rules = palloc(Max(list_length(found), 1) * sizeof(Rule));
	int			count = 0;
	ListCell   *cell;

	foreach(cell, found)
		rules[count++] = *(Rule *) lfirst(cell);
	qsort(rules, count, sizeof(Rule), compare_rules);
	return rules;
}

/*
 * All rules, the longest pattern first, and whether a change of them will be
 * announced.  The table is locked.  A fresh snapshot, whatever the isolation
 * level: rights hold at once.
 */
Rule *
rules_read(Oid table, int *count, bool *announced)
{
	Relation	relation = relation_open(table, NoLock);
	SysScanDesc scan;
	List	   *found = NIL;
	HeapTuple	row;

	shape_require_raw(relation, "idempotency_scope", columns, SCOPE_COLUMNS);
	scan = systable_beginscan(relation, InvalidOid, false, NULL, 0, NULL);
	while (HeapTupleIsValid(row = systable_getnext(scan)))
	{
		Rule	   *rule = palloc(sizeof(Rule));

		*rule = read_rule(row, RelationGetDescr(relation));
		found = lappend(found, rule);
	}
	systable_endscan(scan);
	*announced = is_announced(relation);
	if (!*announced)
		warn_of_missing_trigger();
	relation_close(relation, AccessShareLock);
	*count = list_length(found);
	return sorted_rules(found);
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
