/*
 * json.h
 *		Makes a jsonb object of names and values.
 */
#ifndef IDEM_JSON_H
#define IDEM_JSON_H

#include "postgres.h"

#include "utils/jsonb.h"
#include "utils/numeric.h"

typedef struct JsonMember
{
	const char *name;
	char	   *text;			/* NULL: the value is the number */
	Numeric		number;			/* NULL as well: the value is null */
} JsonMember;

extern Jsonb *json_object_of(const JsonMember *members, int count);

#endif							/* IDEM_JSON_H */
