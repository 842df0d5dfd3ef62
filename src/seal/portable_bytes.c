/*
 * portable_bytes.c
 *		Text and jsonb as bytes with the same meaning in every database.
 *
 * Text is in UTF-8, since a dump may go into a database of another encoding.
 * A jsonb value is written token by token, with numbers in the form of their
 * binary protocol: so it takes little more room than in the database, and keeps
 * the scale of numbers.  Its text would be up to 130,000 digits for a
 * number such as 1e131071.
 *
 *		{ k… } object, with a k before each name	t f z true, false, null
 *		[ … ]  array								s length bytes: string
 *		( … )  a scalar at the top					n length bytes: number
 */
#include "postgres.h"

#include "libpq/pqformat.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/numeric.h"

#include "base/compat.h"
#include "base/utf8.h"
#include "seal/portable_bytes.h"

void
portable_put_text(StringInfo message, const char *start, int length)
{
	Bytes		bytes = utf8_of(start, length);

	pq_sendint32(message, bytes.length);
	pq_sendbytes(message, bytes.start, bytes.length);
}

/* In the encoding of the database; an error where that lacks a character. */
static char *
get_text(StringInfo message, int *length)
{
	char	   *bytes;
	char	   *converted;

	*length = pq_getmsgint(message, 4);
	bytes = unconstify(char *, pq_getmsgbytes(message, *length));
	/* UTF-8 is checked all the same, as it comes from outside */
	if (GetDatabaseEncoding() == PG_SQL_ASCII || *length == 0)
		return bytes;
	converted = pg_any_to_server(bytes, *length, PG_UTF8);
	if (converted != bytes)
		*length = strlen(converted);
	return converted;
}

static void
put_number(StringInfo message, Numeric number)
{
	bytea	   *bytes = DatumGetByteaPP(DirectFunctionCall1(numeric_send, NumericGetDatum(number)));

	pq_sendint32(message, VARSIZE_ANY_EXHDR(bytes));
	pq_sendbytes(message, VARDATA_ANY(bytes), VARSIZE_ANY_EXHDR(bytes));
	pfree(bytes);
}

static Numeric
get_number(StringInfo message)
{
	int			length = pq_getmsgint(message, 4);
	StringInfoData bytes = {
		.data = unconstify(char *, pq_getmsgbytes(message, length)),.len = length,.maxlen = length
	};

	return DatumGetNumeric(DirectFunctionCall3(numeric_recv, PointerGetDatum(&bytes),
											   ObjectIdGetDatum(InvalidOid), Int32GetDatum(-1)));
}

static void
put_scalar(StringInfo message, const JsonbValue *value)
{
	switch (value->type)
	{
		case jbvString:
			pq_sendbyte(message, 's');
			portable_put_text(message, value->val.string.val, value->val.string.len);
			break;
		case jbvNumeric:
			pq_sendbyte(message, 'n');
			put_number(message, value->val.numeric);
			break;
		case jbvBool:
			pq_sendbyte(message, value->val.boolean ? 't' : 'f');
			break;
		case jbvNull:
			pq_sendbyte(message, 'z');
			break;
		default:
			elog(ERROR, "unexpected jsonb scalar %d", (int) value->type);
	}
}

/* false: it is nested more deeply than that */
bool
portable_put_jsonb(StringInfo message, Jsonb *value, int max_depth)
{
	JsonbIterator *iterator = JsonbIteratorInit(&value->root);
	JsonbIteratorToken token;
	JsonbValue	item;
	int			depth = 0;

	while ((token = JsonbIteratorNext(&iterator, &item, false)) != WJB_DONE)
	{
		CHECK_FOR_INTERRUPTS();
		switch (token)
		{
			case WJB_BEGIN_OBJECT:
			case WJB_BEGIN_ARRAY:
				if (++depth > max_depth)
					return false;
				pq_sendbyte(message, token == WJB_BEGIN_OBJECT ? '{' : item.val.array.rawScalar ? '(' : '[');
				break;
			case WJB_END_OBJECT:
			case WJB_END_ARRAY:
				depth--;
				pq_sendbyte(message, token == WJB_END_OBJECT ? '}' : ']');
				break;
			case WJB_KEY:
				pq_sendbyte(message, 'k');
				portable_put_text(message, item.val.string.val, item.val.string.len);
				break;
			default:
				put_scalar(message, &item);
				break;
		}
	}
	return true;
}

static void
raise_damaged(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("unexpected token in a sealed response")));
}

static JsonbValue
get_string(StringInfo message)
{
	JsonbValue	value = {.type = jbvString};

	value.val.string.val = get_text(message, &value.val.string.len);
	return value;
}

static JsonbValue
get_scalar(StringInfo message, int kind)
{
	JsonbValue	value = {0};

	switch (kind)
	{
		case 's':
			return get_string(message);
		case 'n':
			value.type = jbvNumeric;
			value.val.numeric = get_number(message);
			break;
		case 't':
		case 'f':
			value.type = jbvBool;
			value.val.boolean = kind == 't';
			break;
		case 'z':
			value.type = jbvNull;
			break;
		default:
			raise_damaged();
	}
	return value;
}

/* May such a token follow here in the value? */
static bool
is_allowed_here(const JsonbParseState *state, int kind)
{
	switch (kind)
	{
		case '{':
		case '[':
			return true;
		case '(':
			return state == NULL;
		case '}':
		case 'k':
			return state != NULL && state->contVal.type == jbvObject;
		case ']':
			return state != NULL && state->contVal.type == jbvArray;
		default:
			return state != NULL;
	}
}

/* Adds one token; returns by how much it changes the depth. */
static int
push_token(JsonbInState *state, StringInfo message)
{
	int			kind = pq_getmsgbyte(message);
	JsonbValue	value = {.type = jbvArray};

	if (!is_allowed_here(state->parseState, kind))
		raise_damaged();
	switch (kind)
	{
		case '{':
			json_push(state, WJB_BEGIN_OBJECT, NULL);
			return 1;
		case '[':
			json_push(state, WJB_BEGIN_ARRAY, NULL);
			return 1;
		case '(':
			value.val.array.rawScalar = true;
			value.val.array.nElems = 1;
			json_push(state, WJB_BEGIN_ARRAY, &value);
			return 1;
		case '}':
			json_push(state, WJB_END_OBJECT, NULL);
			return -1;
		case ']':
			json_push(state, WJB_END_ARRAY, NULL);
			return -1;
		case 'k':
			value = get_string(message);
			json_push(state, WJB_KEY, &value);
			return 0;
		default:
			value = get_scalar(message, kind);
			json_push(state, state->parseState->contVal.type == jbvObject ? WJB_VALUE : WJB_ELEM, &value);
			return 0;
	}
}

Jsonb *
portable_get_jsonb(StringInfo message)
{
	JsonbInState state = {0};
	int			depth = 0;

	do
	{
		CHECK_FOR_INTERRUPTS();
		depth += push_token(&state, message);
	} while (depth > 0);
	return JsonbValueToJsonb(state.result);
}
