/*
 * patterns.h
 *		The rows of idempotency_scope: patterns of scopes, with claim and policy.
 */
#ifndef IDEM_PATTERNS_H
#define IDEM_PATTERNS_H

#include "postgres.h"

/* the claim and the policy of one scope; zeros where nothing is set, and see scope_require */
typedef struct Policy
{
	bool		claimed;
	NameData	role;			/* to which, if it is claimed */
	int64		retention;		/* microseconds, as all times here */
	int64		min_retention;
	int64		max_retention;
	bool		has_max_attempts;
	int32		max_attempts;
	int32		attempts_limit;
	bool		has_max_lost_attempts;
	int32		max_lost_attempts;
	bool		has_max_response_size;
	int32		max_response_size;	/* bytes */
	int64		max_lease;
} Policy;

typedef struct Pattern
{
	char	   *text;			/* without its "*" */
	int			length;
	bool		is_prefix;
	Policy		policy;
	struct varlena *too_large_response; /* jsonb; NULL: not set */
} Pattern;

extern Pattern *patterns_read(Oid table, int *count, bool *announced);

#endif							/* IDEM_PATTERNS_H */
