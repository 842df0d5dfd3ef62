/*
 * scope.h
 *		Which roles may use a scope, and the policy that the administrator has set for
 *		it.
 */
#ifndef IDEM_SCOPE_H
#define IDEM_SCOPE_H

#include "postgres.h"

#include "base/idempotency.h"
#include "schema/catalog.h"
#include "scope/patterns.h"

/* the argument of scope_set_policy: the pattern, and the columns of a policy */
#define POLICY_ARGUMENTS 10
#define POLICY_ARGUMENTS_1_0 8

extern void scope_require(const Catalog *catalog, const text *scope, Policy *policy);
extern struct varlena *scope_too_large_response(const Catalog *catalog, const text *scope);
extern bool scope_may_use(const Catalog *catalog, const text *scope);
extern void scope_claim(const Catalog *catalog, text *pattern, const char *role);
extern bool scope_unclaim(const Catalog *catalog, text *pattern);
extern void scope_set_policy(const Catalog *catalog, Datum *values, const bool *nulls, int count);
extern void scope_register(void);

/* ---- what a policy makes of the numbers of a call ---- */

/*
 * How long a record is kept, within the bounds; 0: the call gives no
 * retention.
 */
static inline int64
policy_retention(const Policy *policy, int64 asked)
{
	int64		retention = asked == 0 ? policy->retention : asked;

	if (policy->max_retention > 0)
		retention = Min(retention, policy->max_retention);
	return Max(retention, policy->min_retention);
}

/*
 * How long a lease, or the pause before the next attempt, may be.  Records are
 * kept for the retention after that, so max_retention limits nothing without max_lease.
 */
static inline int64
policy_lease(const Policy *policy, int64 asked)
{
	return policy->max_lease > 0 ? Min(asked, policy->max_lease) : asked;
}

/*
 * How many attempts there may be, 0 for no limit; -1: the call gives no
 * number.
 */
static inline int32
policy_max_attempts(const Policy *policy, int32 asked)
{
	int32		attempts = asked < 0 ? policy->max_attempts : asked;

	if (policy->attempts_limit > 0 && (attempts == 0 || attempts > policy->attempts_limit))
		attempts = policy->attempts_limit;
	return attempts;
}

#endif							/* IDEM_SCOPE_H */
