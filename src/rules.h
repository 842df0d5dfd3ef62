/*
 * rules.h
 *		What idempotency_scope says: whom scopes belong to, and what holds in them.
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
