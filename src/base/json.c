/*
 * json.c
 *		Makes a jsonb object of names and values: for the responses that the
 *		extension itself stores.
 */
#include "postgres.h"

#include "base/compat.h"
#include "base/json.h"

static JsonbValue
string_value(const char *string)
{
	JsonbValue	value = {.type = jbvString};

	value.val.string.val = unconstify(char *, string);
	value.val.string.len = strlen(string);
	return value;
}

static JsonbValue
value_of_member(const JsonMember *member)
{
	JsonbValue	value = {.type = jbvNull};

	if (member->text != NULL)
		return string_value(member->text);
	if (member->number != NULL)
	{
		value.type = jbvNumeric;
		value.val.numeric = member->number;
	}
	return value;
}

/* The names and values are the caller's; the object is a copy. */
Jsonb *
json_object_of(const JsonMember *members, int count)
{
	JsonbInState state = {0};

	json_push(&state, WJB_BEGIN_OBJECT, NULL);
	for (int i = 0; i < count; i++)
	{
		JsonbValue	name = string_value(members[i].name);
		JsonbValue	value = value_of_member(&members[i]);

		json_push(&state, WJB_KEY, &name);
		json_push(&state, WJB_VALUE, &value);
	}
	json_push(&state, WJB_END_OBJECT, NULL);
	return JsonbValueToJsonb(state.result);
}
