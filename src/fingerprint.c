/*
 * fingerprint.c
 *		SHA-256 over a canonical spelling of a jsonb value, and the keys of the
 *		steps of a larger operation.
 *
 * Two values that jsonb's "=" holds equal have the same fingerprint.  jsonb
 * itself has already sorted the members of an object, dropped duplicate names
 * and white space.  What remains are numbers, which keep their trailing zeros
 * (1, 1.0 and 1.00 are equal), so that hashing jsonb::text would tell them
 * apart.
 *
 * Every token is written as a letter for its kind, and strings and numbers
 * with their length before them, so that no two different values have the
 * same spelling.
 */
#include "postgres.h"

#include "common/cryptohash.h"
#include "common/sha2.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/numeric.h"

#include "compat.h"
#include "fingerprint.h"
#include "idempotency.h"

StaticAssertDecl(FINGERPRINT_BYTES == PG_SHA256_DIGEST_LENGTH, "a fingerprint is a SHA-256 digest");

static void
sha256(const void *data, size_t length, uint8 *digest)
{
	pg_cryptohash_ctx *context = pg_cryptohash_create(PG_SHA256);

	if (context == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory")));
	if (pg_cryptohash_init(context) < 0 ||
		pg_cryptohash_update(context, data, length) < 0 ||
		pg_cryptohash_final(context, digest, PG_SHA256_DIGEST_LENGTH) < 0)
	{
		const char *reason = pg_cryptohash_error(context);

		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not compute SHA-256: %s", reason)));
	}
	pg_cryptohash_free(context);
}

static void
append_bytes(StringInfo canonical, char kind, const char *bytes, uint32 length)
{
	uint32		ordered = pg_hton32(length);

	appendStringInfoChar(canonical, kind);
	appendBinaryStringInfo(canonical, (const char *) &ordered, sizeof(ordered));
	appendBinaryStringInfo(canonical, bytes, length);
}

static void
append_scalar(StringInfo canonical, const JsonbValue *value)
{
	char	   *digits;

	switch (value->type)
	{
		case jbvNull:
			appendStringInfoChar(canonical, 'z');
			break;
		case jbvBool:
			appendStringInfoChar(canonical, value->val.boolean ? 't' : 'f');
			break;
		case jbvString:
			append_bytes(canonical, 's', value->val.string.val, value->val.string.len);
			break;
		case jbvNumeric:
			/* without trailing zeros; numeric has no negative zero */
			digits = numeric_normalize(value->val.numeric);
			append_bytes(canonical, 'n', digits, strlen(digits));
			pfree(digits);
			break;
		default:
			elog(ERROR, "unexpected kind of jsonb scalar: %d", (int) value->type);
	}
}

/* Walks iteratively: the depth of a request costs no stack. */
static void
append_jsonb(StringInfo canonical, Jsonb *request)
{
	JsonbIterator *iterator = JsonbIteratorInit(&request->root);
	JsonbValue	value;
	JsonbIteratorToken token;

	while ((token = JsonbIteratorNext(&iterator, &value, false)) != WJB_DONE)
	{
		switch (token)
		{
			case WJB_BEGIN_ARRAY:
				/* a scalar is stored as an array of one, but is not equal to it */
				appendStringInfoChar(canonical, value.val.array.rawScalar ? 'r' : '[');
				break;
			case WJB_END_ARRAY:
				appendStringInfoChar(canonical, ']');
				break;
			case WJB_BEGIN_OBJECT:
				appendStringInfoChar(canonical, '{');
				break;
			case WJB_END_OBJECT:
				appendStringInfoChar(canonical, '}');
				break;
			case WJB_KEY:
			case WJB_VALUE:
			case WJB_ELEM:
				append_scalar(canonical, &value);
				break;
			default:
				elog(ERROR, "unexpected jsonb token: %d", (int) token);
		}
	}
}

/* The fingerprint of a request, palloc'd. */
bytea *
fingerprint_of(Jsonb *request)
{
	bytea	   *result = (bytea *) palloc(VARHDRSZ + FINGERPRINT_BYTES);
	StringInfoData canonical;

	SET_VARSIZE(result, VARHDRSZ + FINGERPRINT_BYTES);
	initStringInfo(&canonical);
	append_jsonb(&canonical, request);
	sha256(canonical.data, canonical.len, (uint8 *) VARDATA(result));
	pfree(canonical.data);
	return result;
}

/* "key:step", or its SHA-256 where that would be too long for a key. */
text *
step_key(text *key, text *step)
{
	StringInfoData joined;
	uint8		digest[PG_SHA256_DIGEST_LENGTH];

	initStringInfo(&joined);
	appendBinaryStringInfo(&joined, VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key));
	appendStringInfoChar(&joined, ':');
	appendBinaryStringInfo(&joined, VARDATA_ANY(step), VARSIZE_ANY_EXHDR(step));

	if (pg_mbstrlen_with_len(joined.data, joined.len) > MAX_NAME_CHARACTERS)
	{
		sha256(joined.data, joined.len, digest);
		resetStringInfo(&joined);
		appendStringInfoString(&joined, "sha256:");
		for (int i = 0; i < PG_SHA256_DIGEST_LENGTH; i++)
			appendStringInfo(&joined, "%02x", digest[i]);
	}
	return cstring_to_text_with_len(joined.data, joined.len);
}
