/*
 * siphash_vectors.c
 *		src/base/siphash.c as an SQL function, so that a test can compare its results
 *		with those of its authors.
 */
#include "postgres.h"

#include "fmgr.h"

#include "base/compat.h"
#include "base/siphash.c"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(siphash_of);

/* siphash_of(key, message) */
Datum
siphash_of(PG_FUNCTION_ARGS)
{
	bytea	   *bytes = PG_GETARG_BYTEA_PP(0);
	bytea	   *message = PG_GETARG_BYTEA_PP(1);
	SipHashKey	key;

	Assert(VARSIZE_ANY_EXHDR(bytes) == SIPHASH_KEY_BYTES);
	key = siphash_key(VARDATA_ANY(bytes));
	PG_RETURN_INT64((int64) siphash(&key, VARDATA_ANY(message), VARSIZE_ANY_EXHDR(message)));
}
