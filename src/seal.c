/*
 * seal.c
 *		Responses that are encrypted in the store, with pgcrypto.
 *
 * Where a key is configured, payload, headers and body become one OpenPGP
 * message (RFC 4880, symmetric, AES-256, with its modification detection
 * code), so that neither the table nor the WAL nor a dump has them in clear.
 * Inside, the message names the operation: put into another row it does not
 * open.
 *
 * The secrets are long and random, so deriving the session key from one costs
 * a single salted hash (s2k-mode 1) and not the many rounds for passwords.
 */
#include "postgres.h"

#include "catalog/dependency.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "libpq/pqformat.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/syscache.h"

#include "compat.h"
#include "keyring.h"
#include "seal.h"

#define FORMAT_VERSION 1
#define OPTIONS "cipher-algo=aes256, compress-algo=0, s2k-mode=1, s2k-digest-algo=sha256"

/* ---- pgcrypto ---- */

pg_noreturn static void
no_pgcrypto(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("sealed responses need extension \"pgcrypto\" in this database"),
			 errhint("Run CREATE EXTENSION pgcrypto.")));
}

/* A function of the extension itself, not one that looks like it. */
static Oid
pgcrypto_function(const char *name, const Oid *types, int count)
{
	Oid			extension = get_extension_oid("pgcrypto", true);
	Oid			function;

	if (!OidIsValid(extension))
		no_pgcrypto();
	function = GetSysCacheOid3(PROCNAMEARGSNSP, Anum_pg_proc_oid, CStringGetDatum(name),
							   PointerGetDatum(buildoidvector(types, count)),
							   ObjectIdGetDatum(get_extension_schema(extension)));
	if (!OidIsValid(function) ||
		getExtensionOfObject(ProcedureRelationId, function) != extension)
		no_pgcrypto();
	return function;
}

static bytea *
encrypt(bytea *plain, const SealKey *key)
{
	static const Oid types[] = {BYTEAOID, TEXTOID, TEXTOID};

	return DatumGetByteaP(OidFunctionCall3(pgcrypto_function("pgp_sym_encrypt_bytea", types, 3),
										   PointerGetDatum(plain),
										   CStringGetTextDatum(key->secret),
										   CStringGetTextDatum(OPTIONS)));
}

static bytea *
decrypt(bytea *sealed, const SealKey *key)
{
	static const Oid types[] = {BYTEAOID, TEXTOID};

	return DatumGetByteaPP(OidFunctionCall2(pgcrypto_function("pgp_sym_decrypt_bytea", types, 2),
											PointerGetDatum(sealed),
											CStringGetTextDatum(key->secret)));
}

/* ---- what is inside ---- */

static void
put_bytes(StringInfo message, const char *bytes, int length)
{
	pq_sendint32(message, length);
	pq_sendbytes(message, bytes, length);
}

static void
put_varlena(StringInfo message, const struct varlena *value)
{
	put_bytes(message, VARDATA_ANY(value), VARSIZE_ANY_EXHDR(value));
}

/* SQL NULL has the length -1.  What comes from the store may be toasted. */
static void
put_body(StringInfo message, struct varlena *body)
{
	if (body == NULL)
		pq_sendint32(message, -1);
	else
		put_varlena(message, pg_detoast_datum_packed(body));
}

/* As UTF-8, whatever the database: a dump may go to another encoding. */
static void
put_jsonb(StringInfo message, struct varlena *value)
{
	char	   *json;
	char	   *converted;

	if (value == NULL)
	{
		pq_sendint32(message, -1);
		return;
	}
	json = JsonbToCString(NULL, &((Jsonb *) pg_detoast_datum(value))->root, VARSIZE_ANY(value));
	converted = pg_server_to_any(json, strlen(json), PG_UTF8);
	put_bytes(message, converted, strlen(converted));
}

static bytea *
compose(const Record *record)
{
	StringInfoData message;

	pq_begintypsend(&message);
	pq_sendbyte(&message, FORMAT_VERSION);
	put_varlena(&message, record->name.scope);
	put_varlena(&message, record->name.key);
	put_jsonb(&message, record->response.payload);
	put_jsonb(&message, record->response.headers);
	put_body(&message, record->response.body);
	return pq_endtypsend(&message);
}

static bool
is_name_part(StringInfo message, const text *part)
{
	int			length = pq_getmsgint(message, 4);

	return length == (int) VARSIZE_ANY_EXHDR(part) &&
		memcmp(pq_getmsgbytes(message, length), VARDATA_ANY(part), length) == 0;
}

static struct varlena *
get_body(StringInfo message)
{
	int			length = (int) pq_getmsgint(message, 4);

	if (length == -1)
		return NULL;
	return (struct varlena *) cstring_to_text_with_len(pq_getmsgbytes(message, length), length);
}

static struct varlena *
get_jsonb(StringInfo message)
{
	struct varlena *bytes = get_body(message);
	char	   *json;

	if (bytes == NULL)
		return NULL;
	json = text_to_cstring((text *) bytes);
	json = pg_any_to_server(json, strlen(json), PG_UTF8);
	return (struct varlena *) DatumGetPointer(DirectFunctionCall1(jsonb_in, CStringGetDatum(json)));
}

/* false: it is not that of this record */
static bool
decompose(bytea *plain, Record *record)
{
	StringInfoData message = {
		.data = VARDATA_ANY(plain),.len = VARSIZE_ANY_EXHDR(plain),.maxlen = VARSIZE_ANY_EXHDR(plain)
	};

	if (pq_getmsgbyte(&message) != FORMAT_VERSION ||
		!is_name_part(&message, record->name.scope) ||
		!is_name_part(&message, record->name.key))
		return false;
	record->response.payload = get_jsonb(&message);
	record->response.headers = get_jsonb(&message);
	record->response.body = get_body(&message);
	return true;
}

/* ---- records ---- */

static bool
has_secrets(const Response *response)
{
	return response->payload != NULL || response->headers != NULL || response->body != NULL;
}

/* Encrypts the response of a record that is about to be stored. */
void
seal_record(Record *record)
{
	const SealKey *key;

	/* what is stored sealed already stays as it is */
	if (!has_secrets(&record->response))
		return;
	record->response.sealed = NULL;
	record->response.seal_key = NULL;
	key = keyring_newest();
	if (key == NULL)
		return;
	record->response.sealed = encrypt(compose(record), key);
	record->response.seal_key = cstring_to_text(key->name);
	record->response.payload = NULL;
	record->response.headers = NULL;
	record->response.body = NULL;
}

pg_noreturn static void
cannot_open(const Record *record, const SealKey *key)
{
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("response of operation \"%s\" of scope \"%s\" could not be opened",
					text_to_cstring(record->name.key), text_to_cstring(record->name.scope)),
			 errdetail("Key \"%s\" is not the one that it was sealed with, or the stored response is damaged.",
					   key->name),
			 errhint("The operation has ended and does not run again. Put the right key into idempotency.seal_key_file.")));
}

/* Decrypts the response of a record that was stored sealed. */
void
unseal_record(Record *record)
{
	MemoryContext context = CurrentMemoryContext;
	const SealKey *key;
	bool		opened = false;

	if (record->response.sealed == NULL)
		return;
	if (record->response.seal_key == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("response of operation \"%s\" of scope \"%s\" is sealed with an unknown key",
						text_to_cstring(record->name.key), text_to_cstring(record->name.scope))));
	key = keyring_find(record->response.seal_key);
	PG_TRY();
	{
		opened = decompose(decrypt(record->response.sealed, key), record);
	}
	PG_CATCH();
	{
		/* what pgcrypto and the parser say could repeat a part of the response */
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		if (ERRCODE_TO_CATEGORY(error->sqlerrcode) != ERRCODE_EXTERNAL_ROUTINE_INVOCATION_EXCEPTION &&
			ERRCODE_TO_CATEGORY(error->sqlerrcode) != ERRCODE_DATA_EXCEPTION &&
			error->sqlerrcode != ERRCODE_PROTOCOL_VIOLATION)
			PG_RE_THROW();
		FlushErrorState();
		cannot_open(record, key);
	}
	PG_END_TRY();
	if (!opened)
		cannot_open(record, key);
	record->response.sealed = NULL;
	record->response.seal_key = NULL;
}
