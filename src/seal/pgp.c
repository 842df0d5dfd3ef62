/*
 * pgp.c
 *		OpenPGP messages (RFC 4880) under a secret, made and opened by pgcrypto.
 *
 * Its functions are taken from its library and not from pg_proc: the owner of
 * a function in the catalog can put another one in its place, which would then
 * get the secret.  All the same the extension must be in the database: its
 * administrator has decided to have it.
 *
 * The secrets are long and random, so deriving the session key from one costs
 * a single salted hash (s2k-mode 1) and not the many rounds for passwords.
 */
#include "postgres.h"

#include "commands/extension.h"
#include "fmgr.h"
#include "utils/builtins.h"

#include "base/compat.h"
#include "seal/pgp.h"

#define LIBRARY "$libdir/pgcrypto"
#define OPTIONS "cipher-algo=aes256, compress-algo=0, s2k-mode=1, s2k-digest-algo=sha256"

/* the first byte of packets, as pgcrypto writes it */
#define PACKET_SESSION_KEY (0xC0 | 3)
#define PACKET_PROTECTED_DATA (0xC0 | 18)

/* greater ones are the beginning of a length in several bytes */
#define LONGEST_SHORT_LENGTH 191

/* Is there pgcrypto in this database? */
void
pgp_require(void)
{
	if (!OidIsValid(get_extension_oid("pgcrypto", true)))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("sealed responses need extension \"pgcrypto\" in this database"),
				 errhint("Run CREATE EXTENSION pgcrypto.")));
}

/* These functions may be called directly: they do not look at their FmgrInfo. */
static PGFunction
library_function(PGFunction *known, const char *name)
{
	pgp_require();
	if (*known == NULL)
		*known = (PGFunction) load_external_function(LIBRARY, name, true, NULL);
	return *known;
}

bytea *
pgp_seal(bytea *plain, const char *secret)
{
	static PGFunction known = NULL;

	return DatumGetByteaP(DirectFunctionCall3(library_function(&known, "pgp_sym_encrypt_bytea"),
											  PointerGetDatum(plain),
											  CStringGetTextDatum(secret),
											  CStringGetTextDatum(OPTIONS)));
}

/*
 * Was the message made as above, with a modification detection code?  pgcrypto
 * also opens messages without one, and a role that can write to the table
 * could change those.
 */
static bool
is_protected(const bytea *message)
{
	const unsigned char *bytes = (const unsigned char *) VARDATA_ANY(message);
	Size		length = VARSIZE_ANY_EXHDR(message);
	Size		data;

	if (length < 2 || bytes[0] != PACKET_SESSION_KEY || bytes[1] > LONGEST_SHORT_LENGTH)
		return false;
	data = 2 + bytes[1];
	return data < length && bytes[data] == PACKET_PROTECTED_DATA;
}

/*
 * Opens a message.  NULL: it was not made by pgp_seal.  A wrong secret is an
 * error.
 */
bytea *
pgp_open(bytea *message, const char *secret)
{
	static PGFunction known = NULL;

	message = DatumGetByteaPP(PointerGetDatum(message));
	if (!is_protected(message))
		return NULL;
	return DatumGetByteaPP(DirectFunctionCall2(library_function(&known, "pgp_sym_decrypt_bytea"),
											   PointerGetDatum(message),
											   CStringGetTextDatum(secret)));
}
