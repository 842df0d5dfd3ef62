/*
 * scope.c
 *		Which roles may use a scope, and the policy that the administrator has set for
 *		it.
 *
 * The patterns are few and change rarely: each session keeps all of them, until
 * an invalidation says that the table has changed.  A pattern is a scope or,
 * with a "*" at its end, all scopes that begin with it.  Each property comes
 * from the longest matching pattern that sets it.  So a policy for a part of a
 * role's scopes leaves the claim of that role as it is.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "base/compat.h"
#include "base/settings.h"
#include "schema/definition.h"
#include "scope/patterns.h"
#include "scope/scope.h"
#include "store/statement.h"
#include "store/store_kind.h"

#define PATTERN_IS "pattern OPERATOR(pg_catalog.=) $1"
/* version 1.0 has neither max_lost_attempts nor too_large_response */
#define POLICY_COLUMNS_1_0 "retention, min_retention, max_retention, max_attempts, attempts_limit, max_response_size, max_lease"
#define POLICY_COLUMNS POLICY_COLUMNS_1_0 ", max_lost_attempts, too_large_response"

static Statement claim = {
	"INSERT INTO %1$s.idempotency_scope (pattern, role) VALUES ($1, $2)"
	" ON CONFLICT (pattern) DO UPDATE SET role = EXCLUDED.role",
	2, {TEXTOID, NAMEOID},.table = TABLE_SCOPE
};

static Statement unclaim = {
	"UPDATE %1$s.idempotency_scope SET role = NULL WHERE " PATTERN_IS " AND role IS NOT NULL",
	1, {TEXTOID},.table = TABLE_SCOPE
};

static Statement set_policy = {
	"INSERT INTO %1$s.idempotency_scope (pattern, " POLICY_COLUMNS ")"
	" VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT (pattern) DO UPDATE"
	" SET (" POLICY_COLUMNS ") = ($2, $3, $4, $5, $6, $7, $8, $9, $10)",
	POLICY_ARGUMENTS, {TEXTOID, INTERVALOID, INTERVALOID, INTERVALOID, INT4OID, INT4OID, INT4OID, INTERVALOID, INT4OID, JSONBOID},
	.table = TABLE_SCOPE
};

static Statement set_policy_1_0 = {
	"INSERT INTO %1$s.idempotency_scope (pattern, " POLICY_COLUMNS_1_0 ")"
	" VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (pattern) DO UPDATE"
	" SET (" POLICY_COLUMNS_1_0 ") = ($2, $3, $4, $5, $6, $7, $8)",
	POLICY_ARGUMENTS_1_0, {TEXTOID, INTERVALOID, INTERVALOID, INTERVALOID, INT4OID, INT4OID, INT4OID, INTERVALOID},
	.table = TABLE_SCOPE
};

/*
 * Deletes a pattern that sets nothing.  The columns are named: if a view is in the place of
 * the table, other columns could run code of its owner.
 */
static Statement forget_empty = {
	"DELETE FROM %1$s.idempotency_scope WHERE " PATTERN_IS " AND (role, " POLICY_COLUMNS ") IS NULL",
	1, {TEXTOID},.table = TABLE_SCOPE
};

static Statement forget_empty_1_0 = {
	"DELETE FROM %1$s.idempotency_scope WHERE " PATTERN_IS " AND (role, " POLICY_COLUMNS_1_0 ") IS NULL",
	1, {TEXTOID},.table = TABLE_SCOPE
};

static MemoryContext patterns_context = NULL;
static Pattern *patterns = NULL;		/* the longest pattern comes first */
static int	pattern_count = 0;
static bool patterns_valid = false;
static uint64 patterns_generation = 0;
static Oid	patterns_table = InvalidOid;

/* most sessions use one scope: the result for the last one */
static char *last_scope = NULL;
static int	last_length = 0;
static Policy last_policy;

static const Policy no_policy = {0};

/* The table with the patterns.  In a cluster each node has a copy, and reads that. */
static Oid
lock_patterns(const Catalog *catalog)
{
	Oid			table = catalog_lock(TABLE_SCOPE, AccessShareLock);
	Oid			copy = kind_local_copy(catalog, table);

	if (!OidIsValid(copy))
		definition_refuse("the copy of idempotency_scope on this node");
	return copy;
}

static void
refresh_patterns(const Catalog *catalog)
{
	MemoryContext caller = CurrentMemoryContext;

	patterns_table = lock_patterns(catalog);
	if (patterns_context == NULL)
		patterns_context = AllocSetContextCreate(TopMemoryContext, "idempotency scopes",
											  ALLOCSET_SMALL_SIZES);
	MemoryContextReset(patterns_context);
	pattern_count = 0;
	last_scope = NULL;
	patterns_generation = catalog->generation;
	/* set first: an invalidation on the way must not get lost */
	patterns_valid = true;
	PG_TRY();
	{
		bool		announced;

		MemoryContextSwitchTo(patterns_context);
		patterns = patterns_read(patterns_table, &pattern_count, &announced);
		/* otherwise the patterns are used only once */
		patterns_valid = patterns_valid && announced;
	}
	PG_CATCH();
	{
		patterns_valid = false;
		PG_RE_THROW();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(caller);
}

static void
ensure_patterns(const Catalog *catalog)
{
	if (!patterns_valid || patterns_generation != catalog->generation)
		refresh_patterns(catalog);
}

static bool
pattern_matches(const Pattern *pattern, const char *scope, int length)
{
	return (pattern->is_prefix ? length >= pattern->length : length == pattern->length) &&
		memcmp(pattern->text, scope, pattern->length) == 0;
}

/* Adds the properties that no longer pattern has set. */
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
	if (policy->max_lease == 0)
		policy->max_lease = other->max_lease;
	if (policy->attempts_limit == 0)
		policy->attempts_limit = other->attempts_limit;
	if (!policy->has_max_attempts && other->has_max_attempts)
	{
		policy->has_max_attempts = true;
		policy->max_attempts = other->max_attempts;
	}
	if (!policy->has_max_lost_attempts && other->has_max_lost_attempts)
	{
		policy->has_max_lost_attempts = true;
		policy->max_lost_attempts = other->max_lost_attempts;
	}
	if (!policy->has_max_response_size && other->has_max_response_size)
	{
		policy->has_max_response_size = true;
		policy->max_response_size = other->max_response_size;
	}
}

static void
remember_scope(const char *scope, int length)
{
	last_scope = MemoryContextAlloc(patterns_context, length + 1);
	memcpy(last_scope, scope, length);
	last_length = length;
}

/* The policy and the claim of a scope. */
static const Policy *
scope_policy(const Catalog *catalog, const text *scope)
{
	const char *bytes = VARDATA_ANY(scope);
	int			length = VARSIZE_ANY_EXHDR(scope);

	ensure_patterns(catalog);
	if (pattern_count == 0)
		return &no_policy;
	if (last_scope != NULL && last_length == length && memcmp(last_scope, bytes, length) == 0)
		return &last_policy;

	if (last_scope != NULL)
		pfree(last_scope);
	last_scope = NULL;
	memset(&last_policy, 0, sizeof(last_policy));
	for (int i = 0; i < pattern_count; i++)
	{
		if (pattern_matches(&patterns[i], bytes, length))
			add_policy(&last_policy, &patterns[i].policy);
	}
	remember_scope(bytes, length);
	return &last_policy;
}

/*
 * A role that was dropped or renamed has no members: the scope stays closed
 * until it is claimed again.
 */
static bool
is_member(const char *role)
{
	Oid			id = get_role_oid(role, true);

	return OidIsValid(id) ? has_privs_of_role(GetUserId(), id) : superuser();
}

static bool
policy_allows(const Policy *policy)
{
	return !policy->claimed || is_member(NameStr(policy->role));
}

bool
scope_may_use(const Catalog *catalog, const text *scope)
{
	return policy_allows(scope_policy(catalog, scope));
}

static void
fill_in_settings(Policy *policy)
{
	if (policy->retention == 0)
		policy->retention = (int64) setting_retention * USECS_PER_SEC;
	if (!policy->has_max_attempts)
		policy->max_attempts = setting_max_attempts;
	if (!policy->has_max_lost_attempts)
		policy->max_lost_attempts = setting_max_lost_attempts;
	if (!policy->has_max_response_size)
		policy->max_response_size = setting_max_response_size;
}

/*
 * The policy of a scope, if the caller may use it: numbers only, in which the
 * settings apply where no pattern sets a value.  The error is the same whether or
 * not there is such an operation: it is not looked up.
 */
void
scope_require(const Catalog *catalog, const text *scope, Policy *policy)
{
	*policy = *scope_policy(catalog, scope);
	if (!policy_allows(policy))
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_FORBIDDEN),
				 errmsg("role \"%s\" may not use scope \"%s\"",
						GetUserNameFromId(GetUserId(), false), text_to_cstring(scope)),
				 errhint("The scope belongs to a role: only its members may use it.")));
	fill_in_settings(policy);
}

/*
 * A copy of what the policy puts in place of a response that is too large; NULL:
 * nothing.  The cache may go with the next change of a policy.
 */
struct varlena *
scope_too_large_response(const Catalog *catalog, const text *scope)
{
	const char *bytes = VARDATA_ANY(scope);
	int			length = VARSIZE_ANY_EXHDR(scope);

	ensure_patterns(catalog);
	for (int i = 0; i < pattern_count; i++)
	{
		struct varlena *response = patterns[i].too_large_response;

		if (response != NULL && pattern_matches(&patterns[i], bytes, length))
			return PG_DETOAST_DATUM_COPY(PointerGetDatum(response));
	}
	return NULL;
}

/* Claims the scopes of a pattern for a role, also from another role. */
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
forget_pattern_if_empty(const Catalog *catalog, Datum pattern)
{
	bool		is_of_1_0 = get_attnum(catalog->tables[TABLE_SCOPE], "max_lost_attempts") == InvalidAttrNumber;

	(void) statement_run(is_of_1_0 ? &forget_empty_1_0 : &forget_empty, catalog, &pattern, NULL, InvalidSnapshot);
	statement_finish();
}

/* false: exactly this pattern was not claimed */
bool
scope_unclaim(const Catalog *catalog, text *pattern)
{
	Datum		value = PointerGetDatum(pattern);
	bool		was_claimed = statement_run(&unclaim, catalog, &value, NULL, InvalidSnapshot) > 0;

	statement_finish();
	forget_pattern_if_empty(catalog, value);
	return was_claimed;
}

/* Replaces the policy of a pattern: so many arguments of idem_set_policy. */
void
scope_set_policy(const Catalog *catalog, Datum *values, const bool *nulls, int count)
{
	(void) statement_run(count < POLICY_ARGUMENTS ? &set_policy_1_0 : &set_policy,
						 catalog, values, nulls, InvalidSnapshot);
	statement_finish();
	forget_pattern_if_empty(catalog, values[0]);
}

static void
patterns_table_changed(Datum arg, Oid relation)
{
	if (relation == patterns_table || !OidIsValid(relation))
		patterns_valid = false;
}

void
scope_register(void)
{
	CacheRegisterRelcacheCallback(patterns_table_changed, (Datum) 0);
}
