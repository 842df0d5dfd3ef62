/*
 * handler_failure.c
 *		Which errors of a handler are a failure of the operation, and what is
 *		stored of these errors.
 *
 * A stored failure is replayed until it expires, so only errors about the
 * request are stored.  A transient error, and a mistake in the program or its
 * set-up, is raised again: the next try runs the handler.
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"

#include "base/json.h"
#include "functions/handler_failure.h"

/* longest text of an error that is stored, in bytes */
#define ERROR_TEXT_BYTES 8192

/* every class that PostgreSQL defines; all others are the application's own */
typedef struct ErrorClass
{
	char		name[3];
	bool		stored;
} ErrorClass;

static const ErrorClass classes[] = {
	/* the request is wrong, or the handler refuses it */
	{"21", true}, {"22", true}, {"23", true}, {"44", true}, {"P0", true},

	/* transient errors */
	{"08", false}, {"40", false}, {"53", false}, {"55", false}, {"57", false}, {"58", false},
	{"72", false}, {"XX", false},

	/* mistakes in the program or its set-up */
	{"00", false}, {"01", false}, {"02", false}, {"03", false}, {"09", false}, {"0A", false},
	{"0B", false}, {"0F", false}, {"0L", false}, {"0P", false}, {"0Z", false}, {"10", false},
	{"20", false}, {"24", false}, {"25", false}, {"26", false}, {"27", false}, {"28", false},
	{"2B", false}, {"2D", false}, {"2F", false}, {"34", false}, {"38", false}, {"39", false},
	{"3B", false}, {"3D", false}, {"3F", false}, {"42", false}, {"54", false}, {"F0", false},
	{"HV", false},

	/* our own */
	{"ID", false}
};

/* Is the error about the request? */
bool
failure_is_stored(int sqlstate)
{
	const char *code = unpack_sql_state(sqlstate);

	/* a failed assertion is the programmer's, whatever its class */
	if (sqlstate == ERRCODE_ASSERT_FAILURE)
		return false;
	for (int i = 0; i < lengthof(classes); i++)
	{
		if (strncmp(code, classes[i].name, 2) == 0)
			return classes[i].stored;
	}
	return true;
}

/* ---- text that can be stored, sealed and read everywhere ---- */

/* The encoding that texts should have; for SQL_ASCII it is not known. */
static int
text_encoding(void)
{
	return GetDatabaseEncoding() == PG_SQL_ASCII ? PG_UTF8 : GetDatabaseEncoding();
}

/* How many of these bytes are valid text that UTF-8 can represent. */
static int
good_bytes(char *text, int length)
{
	int			encoding = text_encoding();
	int			valid = pg_encoding_verifymbstr(encoding, text, length);
	int			size = (valid + 1) * MAX_CONVERSION_GROWTH + 1;
	Oid			conversion;
	unsigned char *utf8;

	if (encoding == PG_UTF8)
		return valid;
	conversion = FindDefaultConversionProc(encoding, PG_UTF8);
	if (!OidIsValid(conversion))
		return valid;
	utf8 = palloc(size);
	valid = pg_do_encoding_conversion_buf(conversion, encoding, PG_UTF8, (unsigned char *) text, valid,
										  utf8, size, true);
	pfree(utf8);
	return valid;
}

/*
 * A copy of an error's text, cut to size, in which a question mark replaces
 * each byte that is no valid text.  Messages come from everywhere: from libraries, and from
 * functions of a SQL_ASCII database, where any byte passes.
 */
static char *
clean_text(const char *text)
{
	int			encoding = text_encoding();
	/* an incomplete character at the end of the text counts as whole there */
	int			length = pg_encoding_mbcliplen(encoding, text, strlen(text), ERROR_TEXT_BYTES);
	char	   *result = pnstrdup(text, length);
	char	   *end = result + strlen(result);
	char	   *bad = result + good_bytes(result, end - result);

	while (bad < end)
	{
		int			character = pg_encoding_verifymbchar(encoding, bad, end - bad);

		character = Max(character, 1);
		memset(bad, '?', character);
		bad += character;
		bad += good_bytes(bad, end - bad);
	}
	return result;
}

/* ---- what is stored ---- */

/* Cuts texts so that together they are that many bytes shorter, the last ones first. */
static void
shorten_texts(JsonMember *members, int count, int excess)
{
	for (int i = count - 1; i >= 0 && excess > 0; i--)
	{
		int			length = members[i].text ? strlen(members[i].text) : 0;
		int			kept = length == 0 ? 0 :
			pg_encoding_mbcliplen(text_encoding(), members[i].text, length, Max(length - excess, 0));

		if (length > 0)
			members[i].text[kept] = '\0';
		excess -= length - kept;
	}
}

static bool
fits_limit(const Jsonb *json, int32 limit)
{
	return VARSIZE(json) - VARHDRSZ <= limit;
}

/*
 * {"sqlstate": …, "message": …, "detail": …, "hint": …} of that many bytes at
 * most.  If not even the names fit, the SQLSTATE alone is stored, or nothing.
 */
Response
failure_response(const ErrorData *error, int32 limit)
{
	JsonMember	members[] = {
		{"sqlstate", pstrdup(unpack_sql_state(error->sqlerrcode))},
		{"message", error->message ? clean_text(error->message) : NULL},
		{"detail", error->detail ? clean_text(error->detail) : NULL},
		{"hint", error->hint ? clean_text(error->hint) : NULL}
	};
	int			count = lengthof(members);
	Jsonb	   *json = json_object_of(members, count);
	Response	response = {0};

	if (!fits_limit(json, limit))
	{
		shorten_texts(members + 1, count - 1, VARSIZE(json) - VARHDRSZ - limit);
		json = json_object_of(members, count);
	}
	if (!fits_limit(json, limit))
		json = json_object_of(members, 1);
	if (fits_limit(json, limit))
		response.payload = (struct varlena *) json;
	return response;
}
