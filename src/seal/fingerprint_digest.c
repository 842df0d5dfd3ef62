/*
 * fingerprint_digest.c
 *		The stored form of a request's fingerprint: the fingerprint itself or,
 *		where there is a seal key, its HMAC-SHA-256.
 *
 * Without the seal key nobody can test whether a stored digest belongs to
 * some card number.  The name of the operation goes into the digest, in UTF-8
 * as all that is hashed, so that nobody sees that two operations had the same
 * request.  The record has the name of the seal key, so that older digests
 * still compare.
 */
#include "postgres.h"

#include "common/hmac.h"
#include "common/sha2.h"
#include "port/pg_bswap.h"
#include "utils/builtins.h"

#include "base/compat.h"
#include "base/utf8.h"
#include "seal/fingerprint.h"
#include "seal/keyring.h"

#define PURPOSE "idempotency request fingerprint 1"

static void
check_hmac(int result, pg_hmac_ctx *context)
{
	if (result < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not compute HMAC-SHA-256: %s", pg_hmac_error(context))));
}

static void
add_bytes(pg_hmac_ctx *context, Bytes bytes)
{
	uint32		length = pg_hton32((uint32) bytes.length);

	check_hmac(pg_hmac_update(context, (uint8 *) &length, sizeof(length)), context);
	check_hmac(pg_hmac_update(context, (const uint8 *) bytes.start, bytes.length), context);
}

static bytea *
keyed_digest(const OperationName *name, const bytea *fingerprint, const SealKey *key)
{
	bytea	   *result = palloc(VARHDRSZ + FINGERPRINT_BYTES);
	Bytes		scope = utf8_of_text(name->scope);
	Bytes		operation_key = utf8_of_text(name->key);
	pg_hmac_ctx *context = pg_hmac_create(PG_SHA256);

	if (context == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory")));
	SET_VARSIZE(result, VARHDRSZ + FINGERPRINT_BYTES);
	check_hmac(pg_hmac_init(context, (uint8 *) key->secret, strlen(key->secret)), context);
	check_hmac(pg_hmac_update(context, (const uint8 *) PURPOSE, sizeof(PURPOSE)), context);
	add_bytes(context, scope);
	add_bytes(context, operation_key);
	add_bytes(context, (Bytes) {.start = VARDATA_ANY(fingerprint),.length = VARSIZE_ANY_EXHDR(fingerprint)});
	check_hmac(pg_hmac_final(context, (uint8 *) VARDATA(result), FINGERPRINT_BYTES), context);
	pg_hmac_free(context);
	return result;
}

/* The stored form of a fingerprint; NULL: there is none. */
Digest
digest_of(const OperationName *name, bytea *fingerprint)
{
	const SealKey *key = fingerprint ? keyring_newest() : NULL;

	if (key == NULL)
		return (Digest) {.bytes = fingerprint};
	return (Digest) {.bytes = keyed_digest(name, fingerprint, key),.key = cstring_to_text(key->name)};
}

/*
 * Do the stored digest and this fingerprint match?  If one of them is missing,
 * they do.
 */
bool
digest_matches(const OperationName *name, const Digest *stored, const bytea *fingerprint)
{
	if (stored->bytes == NULL || fingerprint == NULL)
		return true;
	if (stored->key != NULL)
		fingerprint = keyed_digest(name, fingerprint, keyring_find(stored->key));
	return VARSIZE_ANY_EXHDR(stored->bytes) == VARSIZE_ANY_EXHDR(fingerprint) &&
		memcmp(VARDATA_ANY(stored->bytes), VARDATA_ANY(fingerprint), VARSIZE_ANY_EXHDR(fingerprint)) == 0;
}
