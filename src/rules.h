/*
 * rules.h
 *		The rows of idempotency_scope: the claims and policies of scopes.
 */
#ifndef IDEM_RULES_H
#define IDEM_RULES_H

#include "postgres.h"

#include "scope.h"

typedef struct Rule
{
	char	   *pattern;		/* without its "*" */
	int			length;
	bool		is_prefix;
	Policy		policy;
} Rule;

extern Rule *rules_read(Oid table, int *count, bool *announced);

#endif							/* IDEM_RULES_H */
