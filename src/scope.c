/*
 * scope.c
 *		Who may use a scope, and what the administrator has laid down for it.
 *
 * The rules are few and change rarely: each session keeps all of them, until
 * an invalidation says that the table has changed.  A pattern is a scope or,
 * with a "*" at its end, all scopes that begin so.  Of each thing that a rule
 * can say the longest pattern that says it decides, so that a rule for a part
 * of somebody's scopes does not take them away from him.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "duration.h"
#include "scope.h"
#include "settings.h"
#include "statement.h"

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
	SCOPE_MAX_RESPONSE_SIZE
} ScopeColumn;
#define SCOPE_COLUMNS 8

typedef struct Rule
{
	char	   *pattern;		/* without its "*" */
	int			length;
	bool		is_prefix;
	Policy		policy;
} Rule;

#define PATTERN_IS "pattern OPERATOR(pg_catalog.=) $1"
#define POLICY_COLUMNS "retention, min_retention, max_retention, max_attempts, attempts_limit, max_response_size"

static Statement claim = {
	"INSERT INTO %1$s.idempotency_scope (pattern, role) VALUES ($1, $2)"
	" ON CONFLICT (pattern) DO UPDATE SET role = EXCLUDED.role",
	2, {TEXTOID, NAMEOID}
};

static Statement unclaim = {
	"UPDATE %1$s.idempotency_scope SET role = NULL WHERE " PATTERN_IS " AND role IS NOT NULL",
	1, {TEXTOID}
};

static Statement lay_down = {
	"INSERT INTO %1$s.idempotency_scope (pattern, " POLICY_COLUMNS ")"
	" VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (pattern) DO UPDATE"
	" SET (" POLICY_COLUMNS ") = ($2, $3, $4, $5, $6, $7)",
	POLICY_ARGUMENTS, {TEXTOID, INTERVALOID, INTERVALOID, INTERVALOID, INT4OID, INT4OID, INT4OID}
};

/* a rule that says nothing */
static Statement forget_empty = {
	"DELETE FROM %1$s.idempotency_scope WHERE " PATTERN_IS
	" AND (role, " POLICY_COLUMNS ") IS NULL",
	1, {TEXTOID}
};

static MemoryContext rules_context = NULL;
static Rule *rules = NULL;		/* the longest pattern comes first */
static int	rule_count = 0;
static bool rules_valid = false;
static uint64 rules_generation = 0;
static Oid	rules_table = InvalidOid;

/* most sessions use one scope: what was found for the last one */
static char *last_scope = NULL;
static int	last_length = 0;
static Policy last_policy;

static int64
duration(Datum value, bool is_null)
{
	int64		microseconds;

	return !is_null && duration_of(DatumGetIntervalP(value), &microseconds) ? microseconds : 0;
}

static int32
number(Datum value, bool is_null)
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
	rule.pattern = TextDatumGetCString(values[SCOPE_PATTERN]);
	rule.length = strlen(rule.pattern);
	rule.is_prefix = rule.length > 0 && rule.pattern[rule.length - 1] == '*';
	if (rule.is_prefix)
		rule.length--;
	rule.policy.claimed = !nulls[SCOPE_ROLE];
	if (rule.policy.claimed)
		rule.policy.role = *DatumGetName(values[SCOPE_ROLE]);
	rule.policy.retention = duration(values[SCOPE_RETENTION], nulls[SCOPE_RETENTION]);
	rule.policy.min_retention = duration(values[SCOPE_MIN_RETENTION], nulls[SCOPE_MIN_RETENTION]);
	rule.policy.max_retention = duration(values[SCOPE_MAX_RETENTION], nulls[SCOPE_MAX_RETENTION]);
	rule.policy.has_max_attempts = !nulls[SCOPE_MAX_ATTEMPTS];
	rule.policy.max_attempts = number(values[SCOPE_MAX_ATTEMPTS], nulls[SCOPE_MAX_ATTEMPTS]);
	rule.policy.attempts_limit = number(values[SCOPE_ATTEMPTS_LIMIT], nulls[SCOPE_ATTEMPTS_LIMIT]);
	rule.policy.has_max_response_size = !nulls[SCOPE_MAX_RESPONSE_SIZE];
	rule.policy.max_response_size = number(values[SCOPE_MAX_RESPONSE_SIZE], nulls[SCOPE_MAX_RESPONSE_SIZE]);
	return rule;
}

/* The longest first; of a scope and a prefix as long as it, the scope. */
static int
compare_rules(const void *a, const void *b)
{
	const Rule *left = a;
	const Rule *right = b;

	if (left->length != right->length)
		return left->length > right->length ? -1 : 1;
	return (int) left->is_prefix - (int) right->is_prefix;
}

static bool
is_as_made(TupleDesc descriptor)
{
	static const Oid types[SCOPE_COLUMNS] = {
		TEXTOID, NAMEOID, INTERVALOID, INTERVALOID, INTERVALOID, INT4OID, INT4OID, INT4OID
	};

	if (descriptor->natts != SCOPE_COLUMNS)
		return false;
	for (int i = 0; i < SCOPE_COLUMNS; i++)
	{
		if (TupleDescAttr(descriptor, i)->atttypid != types[i])
			return false;
	}
	return true;
}

/* A fresh snapshot, whatever the isolation level: rights hold at once. */
static void
read_rules(const Catalog *catalog)
{
	Relation	table = try_table_open(catalog->scopes, AccessShareLock);
	SysScanDesc scan;
	List	   *found = NIL;
	HeapTuple	row;
	ListCell   *cell;

	if (table == NULL || !is_as_made(RelationGetDescr(table)))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"idempotency_scope\" has been changed"),
				 errhint("Restore what was changed.")));
	scan = systable_beginscan(table, InvalidOid, false, NULL, 0, NULL);
	while (HeapTupleIsValid(row = systable_getnext(scan)))
	{
		Rule	   *rule = palloc(sizeof(Rule));

		*rule = read_rule(row, RelationGetDescr(table));
		found = lappend(found, rule);
	}
	systable_endscan(scan);
	table_close(table, AccessShareLock);

	rules = palloc(Max(list_length(found), 1) * sizeof(Rule));
	foreach(cell, found)
		rules[rule_count++] = *(Rule *) lfirst(cell);
	qsort(rules, rule_count, sizeof(Rule), compare_rules);
}

static void
refresh_rules(const Catalog *catalog)
{
	MemoryContext caller = CurrentMemoryContext;

	if (rules_context == NULL)
		rules_context = AllocSetContextCreate(TopMemoryContext, "idempotency scopes",
											  ALLOCSET_SMALL_SIZES);
	MemoryContextReset(rules_context);
	rule_count = 0;
	last_scope = NULL;
	rules_table = catalog->scopes;
	rules_generation = catalog->generation;
	/* valid from the start: an invalidation on the way must not get lost */
	rules_valid = true;
	PG_TRY();
	{
		MemoryContextSwitchTo(rules_context);
		read_rules(catalog);
	}
	PG_CATCH();
	{
		rules_valid = false;
		PG_RE_THROW();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(caller);
}

static bool
matches(const Rule *rule, const char *scope, int length)
{
	return (rule->is_prefix ? length >= rule->length : length == rule->length) &&
		memcmp(rule->pattern, scope, rule->length) == 0;
}

/* Adds what has not been said by a longer pattern. */
static void
add_policy(Policy *policy, const Policy *other)
{
	if (!policy->claimed && other->claimed)
	{
		policy->claimed = true;
		policy->role = other->role;
	}
	if (policy->retention == 0)
		policy->retention = other->retention;
	if (policy->min_retention == 0)
		policy->min_retention = other->min_retention;
	if (policy->max_retention == 0)
		policy->max_retention = other->max_retention;
	if (policy->attempts_limit == 0)
		policy->attempts_limit = other->attempts_limit;
	if (!policy->has_max_attempts && other->has_max_attempts)
	{
		policy->has_max_attempts = true;
		policy->max_attempts = other->max_attempts;
	}
	if (!policy->has_max_response_size && other->has_max_response_size)
	{
		policy->has_max_response_size = true;
		policy->max_response_size = other->max_response_size;
	}
}

static void
remember(const char *scope, int length)
{
	last_scope = MemoryContextAlloc(rules_context, length + 1);
	memcpy(last_scope, scope, length);
	last_length = length;
}

/* What is laid down for a scope. */
static Policy
scope_policy(const Catalog *catalog, const text *scope)
{
	const char *bytes = VARDATA_ANY(scope);
	int			length = VARSIZE_ANY_EXHDR(scope);

	if (!rules_valid || rules_generation != catalog->generation)
		refresh_rules(catalog);
	if (rule_count == 0)
		return (Policy) {0};
	if (last_scope != NULL && last_length == length && memcmp(last_scope, bytes, length) == 0)
		return last_policy;

	if (last_scope != NULL)
		pfree(last_scope);
	last_scope = NULL;
	memset(&last_policy, 0, sizeof(last_policy));
	for (int i = 0; i < rule_count; i++)
	{
		if (matches(&rules[i], bytes, length))
			add_policy(&last_policy, &rules[i].policy);
	}
	remember(bytes, length);
	return last_policy;
}

/*
 * A role that was dropped or renamed has no members: the scope stays closed
 * until somebody claims it again.
 */
static bool
is_member(const char *role)
{
	Oid			id = get_role_oid(role, true);

	return OidIsValid(id) ? has_privs_of_role(GetUserId(), id) : superuser();
}

static bool
allows(const Policy *policy)
{
	return !policy->claimed || is_member(NameStr(policy->role));
}

bool
scope_may_use(const Catalog *catalog, const text *scope)
{
	Policy		policy = scope_policy(catalog, scope);

	return allows(&policy);
}

/*
 * What is laid down for a scope, if the caller may use it.  Says nothing of
 * whether there is such an operation: it is not looked up.
 */
Policy
scope_require(const Catalog *catalog, const text *scope)
{
	Policy		policy = scope_policy(catalog, scope);

	if (!allows(&policy))
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_FORBIDDEN),
				 errmsg("role \"%s\" may not use scope \"%s\"",
						GetUserNameFromId(GetUserId(), false), text_to_cstring(scope)),
				 errhint("The scope belongs to a role: only its members may use it.")));
	return policy;
}

/* How long a record is kept, within the bounds; 0: nothing was asked for. */
int64
policy_retention(const Policy *policy, int64 asked)
{
	int64		retention = asked;

	if (retention == 0)
		retention = policy->retention > 0 ? policy->retention :
			(int64) setting_retention * USECS_PER_SEC;
	if (policy->max_retention > 0)
		retention = Min(retention, policy->max_retention);
	return Max(retention, policy->min_retention);
}

/* How many attempts there may be, 0 for no limit; -1: nothing was asked for. */
int32
policy_max_attempts(const Policy *policy, int32 asked)
{
	int32		attempts = asked;

	if (attempts < 0)
		attempts = policy->has_max_attempts ? policy->max_attempts : setting_max_attempts;
	if (policy->attempts_limit > 0 && (attempts == 0 || attempts > policy->attempts_limit))
		attempts = policy->attempts_limit;
	return attempts;
}

int32
policy_max_response_size(const Policy *policy)
{
	return policy->has_max_response_size ? policy->max_response_size : setting_max_response_size;
}

/* Gives the scopes of a pattern to a role, whomever they belong to now. */
void
scope_claim(const Catalog *catalog, text *pattern, const char *role)
{
	NameData	name;
	Datum		values[2] = {PointerGetDatum(pattern), NameGetDatum(&name)};

	/* all of its 64 bytes are stored */
	namestrcpy(&name, role);
	(void) statement_run(&claim, catalog, values, NULL, InvalidSnapshot);
	statement_finish();
}

static void
forget_rule_if_empty(const Catalog *catalog, Datum pattern)
{
	(void) statement_run(&forget_empty, catalog, &pattern, NULL, InvalidSnapshot);
	statement_finish();
}

/* false: exactly this pattern was not claimed */
bool
scope_unclaim(const Catalog *catalog, text *pattern)
{
	Datum		value = PointerGetDatum(pattern);
	bool		was_claimed = statement_run(&unclaim, catalog, &value, NULL, InvalidSnapshot) > 0;

	statement_finish();
	forget_rule_if_empty(catalog, value);
	return was_claimed;
}

/* Replaces the policy of a pattern. */
void
scope_lay_down(const Catalog *catalog, Datum *values, const bool *nulls)
{
	(void) statement_run(&lay_down, catalog, values, nulls, InvalidSnapshot);
	statement_finish();
	forget_rule_if_empty(catalog, values[0]);
}

static void
relation_changed(Datum arg, Oid relation)
{
	if (relation == rules_table || !OidIsValid(relation))
		rules_valid = false;
}

void
scope_register(void)
{
	CacheRegisterRelcacheCallback(relation_changed, (Datum) 0);
}
