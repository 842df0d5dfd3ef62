/*
 * fingerprint.c
 *		SHA-256 over a canonical spelling of a jsonb value, and the keys of the
 *		steps of a larger operation.
 *
 * Two values that jsonb's "=" holds equal have the same fingerprint.  jsonb
 * itself has already sorted the members of an object, dropped duplicate names
 * and white space.  What remains are numbers, which keep their trailing zeros
 * (1, 1.0 and 1.00 are equal), so that hashes of jsonb::text would differ.
 *
 * Every token is written as a letter for its kind, and strings and numbers
 * with their length before them, so that no two different values have the
 * same spelling.  Clients compute it, too: docs/reference/idem_fingerprint.md
 * has it byte by byte.
 *
 * The spelling never exists as a whole.  It goes to the hash through a small
 * buffer, and a number as digits and exponent: "1e131071" in a request would
 * else cost 131072 bytes.
 */
#include "postgres.h"

#include "common/cryptohash.h"
#include "common/sha2.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/numeric.h"

#include "base/compat.h"
#include "base/utf8.h"
#include "seal/fingerprint.h"

StaticAssertDecl(FINGERPRINT_BYTES == PG_SHA256_DIGEST_LENGTH, "a fingerprint is a SHA-256 digest");

/* how many bytes are hashed between two checks for a cancel */
#define LONGEST_PIECE (1024 * 1024)

/* ---- the hash ---- */

typedef struct Hash
{
	/* freed by the resource owner where an error comes in between */
	pg_cryptohash_ctx *context;
	int			used;
	uint8		buffer[1024];
} Hash;

static void
check_hash(const Hash *hash, int result)
{
	if (result < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not compute SHA-256: %s", pg_cryptohash_error(hash->context))));
}

static void
hash_start(Hash *hash)
{
	hash->used = 0;
	hash->context = pg_cryptohash_create(PG_SHA256);
	if (hash->context == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory")));
	check_hash(hash, pg_cryptohash_init(hash->context));
}

static void
hash_flush(Hash *hash)
{
	check_hash(hash, pg_cryptohash_update(hash->context, hash->buffer, hash->used));
	hash->used = 0;
}

/* Bytes that are longer than the buffer go to the hash directly, in pieces. */
static void
hash_long(Hash *hash, const char *bytes, int length)
{
	hash_flush(hash);
	while (length > 0)
	{
		int			piece = Min(length, LONGEST_PIECE);

		CHECK_FOR_INTERRUPTS();
		check_hash(hash, pg_cryptohash_update(hash->context, (const uint8 *) bytes, piece));
		bytes += piece;
		length -= piece;
	}
}

/* Makes room for so many bytes, at most the size of the buffer. */
static inline uint8 *
hash_room(Hash *hash, int length)
{
	if (length > (int) sizeof(hash->buffer) - hash->used)
		hash_flush(hash);
	return hash->buffer + hash->used;
}

static inline void
hash_bytes(Hash *hash, const char *bytes, int length)
{
	if (length > (int) sizeof(hash->buffer))
	{
		hash_long(hash, bytes, length);
		return;
	}
	memcpy(hash_room(hash, length), bytes, length);
	hash->used += length;
}

static inline void
hash_kind(Hash *hash, char kind)
{
	*hash_room(hash, 1) = kind;
	hash->used++;
}

/* A token with its length before it; the caller adds so many bytes. */
static void
hash_header(Hash *hash, char kind, uint32 length)
{
	uint32		ordered = pg_hton32(length);

	hash_kind(hash, kind);
	hash_bytes(hash, (const char *) &ordered, sizeof(ordered));
}

static void
hash_finish(Hash *hash, uint8 *digest)
{
	hash_flush(hash);
	check_hash(hash, pg_cryptohash_final(hash->context, digest, PG_SHA256_DIGEST_LENGTH));
	pg_cryptohash_free(hash->context);
}

/* ---- numbers ---- */

#define GROUP_DIGITS 4

/* numeric's own digits, to the base of 10000, as numeric_send gives them */
typedef struct Decimal
{
	bool		negative;
	int			weight;			/* of the first group, as a power of 10000 */
	int			count;
	const char *groups;			/* of two bytes each */
} Decimal;

static int
int16_at(const char *bytes)
{
	uint16		value;

	memcpy(&value, bytes, sizeof(value));
	return (int16) pg_ntoh16(value);
}

static Decimal
decimal_of(const bytea *sent)
{
	const char *bytes = VARDATA_ANY(sent);
	int			sign = int16_at(bytes + 4);

	if (sign != 0 && sign != 0x4000)
		elog(ERROR, "unexpected sign of a number in jsonb: %d", sign);
	return (Decimal) {
		.count = int16_at(bytes),
		.weight = int16_at(bytes + 2),
		.negative = sign != 0,
		.groups = bytes + 8
	};
}

static int
group_of(const Decimal *decimal, int group)
{
	return int16_at(decimal->groups + (size_t) 2 * group);
}

/* numeric has no group of zeros at either end. */
static int
leading_zeros(const Decimal *decimal)
{
	int			value = group_of(decimal, 0);

	return value >= 1000 ? 0 : value >= 100 ? 1 : value >= 10 ? 2 : 3;
}

static int
trailing_zeros(const Decimal *decimal)
{
	int			value = group_of(decimal, decimal->count - 1);

	return value % 10 != 0 ? 0 : value % 100 != 0 ? 1 : value % 1000 != 0 ? 2 : 3;
}

/* The digits of a group, without those that are not wanted at its ends. */
static void
hash_group(Hash *hash, int value, int leading, int trailing)
{
	uint8	   *room = hash_room(hash, GROUP_DIGITS);
	uint8		digits[GROUP_DIGITS];

	for (int i = GROUP_DIGITS - 1; i >= 0; i--)
	{
		digits[i] = '0' + value % 10;
		value /= 10;
	}
	for (int i = leading; i < GROUP_DIGITS - trailing; i++)
		*room++ = digits[i];
	hash->used += GROUP_DIGITS - leading - trailing;
}

/* Sign, digits without zeros at either end, "e", exponent. */
static void
hash_decimal(Hash *hash, const Decimal *decimal)
{
	int			last = decimal->count - 1;
	int			leading = leading_zeros(decimal);
	int			trailing = trailing_zeros(decimal);
	int			digits = decimal->count * GROUP_DIGITS - leading - trailing;
	char		end[16] = "e";
	int			end_length = 1;

	end_length += pg_ltoa((decimal->weight - last) * GROUP_DIGITS + trailing, end + 1);
	hash_header(hash, 'n', (decimal->negative ? 1 : 0) + digits + end_length);
	if (decimal->negative)
		hash_kind(hash, '-');
	for (int i = 0; i <= last; i++)
		hash_group(hash, group_of(decimal, i), i == 0 ? leading : 0, i == last ? trailing : 0);
	hash_bytes(hash, end, end_length);
}

static void
hash_number(Hash *hash, Numeric number)
{
	bytea	   *sent = DatumGetByteaPP(DirectFunctionCall1(numeric_send, NumericGetDatum(number)));
	Decimal		decimal = decimal_of(sent);

	if (decimal.count == 0)
	{
		hash_header(hash, 'n', 3);
		hash_bytes(hash, "0e0", 3);
	}
	else
		hash_decimal(hash, &decimal);
	pfree(sent);
}

/* ---- the request ---- */

static void
hash_scalar(Hash *hash, const JsonbValue *value)
{
	switch (value->type)
	{
		case jbvNull:
			hash_kind(hash, 'z');
			break;
		case jbvBool:
			hash_kind(hash, value->val.boolean ? 't' : 'f');
			break;
		case jbvString:
			hash_header(hash, 's', value->val.string.len);
			hash_bytes(hash, value->val.string.val, value->val.string.len);
			break;
		case jbvNumeric:
			hash_number(hash, value->val.numeric);
			break;
		default:
			elog(ERROR, "unexpected kind of jsonb scalar: %d", (int) value->type);
	}
}

/* Walks with an iterator, so a deep request needs no stack. */
static void
hash_jsonb(Hash *hash, Jsonb *request)
{
	JsonbIterator *iterator = JsonbIteratorInit(&request->root);
	JsonbValue	value;
	JsonbIteratorToken token;

	while ((token = JsonbIteratorNext(&iterator, &value, false)) != WJB_DONE)
	{
		CHECK_FOR_INTERRUPTS();
		switch (token)
		{
			case WJB_BEGIN_ARRAY:
				/* a scalar is stored as an array of one, but is not equal to it */
				hash_kind(hash, value.val.array.rawScalar ? 'r' : '[');
				break;
			case WJB_END_ARRAY:
				hash_kind(hash, ']');
				break;
			case WJB_BEGIN_OBJECT:
				hash_kind(hash, '{');
				break;
			case WJB_END_OBJECT:
				hash_kind(hash, '}');
				break;
			case WJB_KEY:
			case WJB_VALUE:
			case WJB_ELEM:
				hash_scalar(hash, &value);
				break;
			default:
				elog(ERROR, "unexpected jsonb token: %d", (int) token);
		}
	}
}

/*
 * The request as a database of UTF-8 has it.  jsonb sorts members by length
 * and bytes of their names, so they may have another order there.
 */
static Jsonb *
in_utf8(Jsonb *request)
{
	JsonbIterator *iterator = JsonbIteratorInit(&request->root);
	JsonbInState state = {0};
	JsonbValue	value;
	JsonbIteratorToken token;

	while ((token = JsonbIteratorNext(&iterator, &value, false)) != WJB_DONE)
	{
		bool		scalar = token == WJB_KEY || token == WJB_VALUE || token == WJB_ELEM ||
			(token == WJB_BEGIN_ARRAY && value.val.array.rawScalar);

		CHECK_FOR_INTERRUPTS();
		if (scalar && value.type == jbvString)
		{
			Bytes		bytes = utf8_of(value.val.string.val, value.val.string.len);

			value.val.string.val = unconstify(char *, bytes.start);
			value.val.string.len = bytes.length;
		}
		json_push(&state, token, scalar ? &value : NULL);
	}
	return JsonbValueToJsonb(state.result);
}

/* The fingerprint of a request, palloc'd. */
bytea *
fingerprint_of(Jsonb *request)
{
	bytea	   *result = (bytea *) palloc(VARHDRSZ + FINGERPRINT_BYTES);
	Hash		hash;

	SET_VARSIZE(result, VARHDRSZ + FINGERPRINT_BYTES);
	if (!utf8_is_stored())
		request = in_utf8(request);
	hash_start(&hash);
	hash_jsonb(&hash, request);
	hash_finish(&hash, (uint8 *) VARDATA(result));
	return result;
}

/* ---- step keys ---- */

/* "sha256:" and the digest of the key, in UTF-8 as all that is hashed. */
static text *
hashed_key(const char *key, int length)
{
	Bytes		bytes = utf8_of(key, length);
	uint8		digest[PG_SHA256_DIGEST_LENGTH];
	char		hashed[7 + 2 * PG_SHA256_DIGEST_LENGTH + 1] = "sha256:";
	Hash		hash;

	hash_start(&hash);
	hash_bytes(&hash, bytes.start, bytes.length);
	hash_finish(&hash, digest);
	for (int i = 0; i < PG_SHA256_DIGEST_LENGTH; i++)
		snprintf(hashed + 7 + (size_t) 2 * i, 3, "%02x", digest[i]);
	return cstring_to_text(hashed);
}

/* "key:step", or its SHA-256 where that would be too long for a key. */
text *
step_key(text *key, text *step)
{
	StringInfoData joined;

	initStringInfo(&joined);
	appendBinaryStringInfo(&joined, VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key));
	appendStringInfoChar(&joined, ':');
	appendBinaryStringInfo(&joined, VARDATA_ANY(step), VARSIZE_ANY_EXHDR(step));
	return pg_mbstrlen_with_len(joined.data, joined.len) > MAX_NAME_CHARACTERS ?
		hashed_key(joined.data, joined.len) : cstring_to_text_with_len(joined.data, joined.len);
}
