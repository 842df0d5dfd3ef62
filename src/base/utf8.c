/*
 * utf8.c
 *		Text as UTF-8, whatever the encoding of the database.
 *
 * Hashes in the store outlive the database: a dump may be restored into one of
 * another encoding, and must compare there.  So everything that is hashed is
 * hashed in UTF-8.  In a database of SQL_ASCII the meaning of bytes is not
 * known: they are taken as they are.
 *
 * The conversion is that of pg_catalog, whatever the search_path: a fingerprint
 * is immutable.
 */
#include "postgres.h"

#include "catalog/pg_conversion.h"
#include "catalog/pg_namespace.h"
#include "mb/pg_wchar.h"
#include "utils/memutils.h"

#include "base/compat.h"
#include "base/utf8.h"

static bool
is_ascii(const char *start, int length)
{
	for (int i = 0; i < length; i++)
	{
		if (IS_HIGHBIT_SET(start[i]))
			return false;
	}
	return true;
}

/* Not the server's own message: it prints the bytes of the character. */
pg_noreturn static void
not_in_utf8(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_UNTRANSLATABLE_CHARACTER),
			 errmsg("text has a character of encoding \"%s\" that has no equivalent in UTF-8",
					GetDatabaseEncodingName())));
}

static Bytes
convert_to_utf8(const char *start, int length)
{
	int			encoding = GetDatabaseEncoding();
	Oid			conversion = FindDefaultConversion(PG_CATALOG_NAMESPACE, encoding, PG_UTF8);
	char	   *result;

	if (!OidIsValid(conversion))
		not_in_utf8();
	if ((Size) length >= MaxAllocSize / MAX_CONVERSION_GROWTH)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("text of %d bytes is too long to be converted to UTF-8", length)));
	result = palloc(length * MAX_CONVERSION_GROWTH + 1);
	if (pg_do_encoding_conversion_buf(conversion, encoding, PG_UTF8,
									  (unsigned char *) unconstify(char *, start), length,
									  (unsigned char *) result, length * MAX_CONVERSION_GROWTH + 1,
									  true) != length)
		not_in_utf8();
	return (Bytes) {.start = result,.length = strlen(result)};
}

Bytes
utf8_of(const char *start, int length)
{
	if (utf8_is_stored() || is_ascii(start, length))
		return (Bytes) {.start = start,.length = length};
	return convert_to_utf8(start, length);
}

Bytes
utf8_of_text(const text *value)
{
	return utf8_of(VARDATA_ANY(value), VARSIZE_ANY_EXHDR(value));
}
