/*
 * seal.c
 *		Responses that are encrypted in the store.
 *
 * Where a key is configured, payload, headers and body become one OpenPGP
 * message (symmetric, AES-256, with its modification detection code), so that
 * neither the table nor the WAL nor a dump has them in clear.  Inside, the
 * message names the operation, its attempt and how that ended: if it is moved to another
 * row, or if the status changes, it cannot be opened.  That of a note of progress names no
 * attempt, as the next one gets it.
 */
#include "postgres.h"

#include "fmgr.h"
#include "lib/stringinfo.h"
#include "libpq/pqformat.h"
#include "utils/builtins.h"

#include "base/compat.h"
#include "base/settings.h"
#include "seal/keyring.h"
#include "seal/pgp.h"
#include "seal/portable_bytes.h"
#include "seal/seal.h"

#define FORMAT_VERSION 1

/* levels of payload and headers: they must open with a small max_stack_depth, too */
#define DEEPEST 1000

/* ---- what is inside ---- */

/* The sealed content of a record: the response of an end, or a note of the owner of a lease. */
static const char *
content(const Record *record)
{
	return record->status == STATUS_PENDING ? "progress" : "response";
}

pg_noreturn static void
too_deep(const Record *record)
{
	ereport(ERROR,
			(errcode(ERRCODE_IDEM_TOO_LARGE),
			 errmsg("%s of operation \"%s\" of scope \"%s\" is nested too deeply to be sealed", content(record),
					text_to_cstring(record->name.key), text_to_cstring(record->name.scope)),
			 errdetail("Payload and headers may have %d levels.", DEEPEST),
			 errhint(record->status == STATUS_PENDING ? "Store the progress in another form." :
					 "Store the response in another form, or as response_body.")));
}

/* SQL NULL is a byte 0. */
static bool
put_presence(StringInfo message, const struct varlena *value)
{
	pq_sendbyte(message, value != NULL);
	return value != NULL;
}

/* A value from the store may be toasted. */
static void
put_jsonb(StringInfo message, const Record *record, struct varlena *value)
{
	if (put_presence(message, value) &&
		!portable_put_jsonb(message, (Jsonb *) pg_detoast_datum(value), DEEPEST))
		too_deep(record);
}

static void
put_body(StringInfo message, struct varlena *body)
{
	if (!put_presence(message, body))
		return;
	body = pg_detoast_datum_packed(body);
	pq_sendint32(message, VARSIZE_ANY_EXHDR(body));
	pq_sendbytes(message, VARDATA_ANY(body), VARSIZE_ANY_EXHDR(body));
}

/* Names the record of the response: if one of these values changes, the message does not open. */
static void
put_identity(StringInfo message, const Record *record)
{
	pq_sendbyte(message, FORMAT_VERSION);
	portable_put_text(message, VARDATA_ANY(record->name.scope), VARSIZE_ANY_EXHDR(record->name.scope));
	portable_put_text(message, VARDATA_ANY(record->name.key), VARSIZE_ANY_EXHDR(record->name.key));
	pq_sendbyte(message, record->status);
	/* a note of progress goes from one attempt to the next */
	pq_sendint32(message, record->status == STATUS_PENDING ? 0 : record->attempt);
	pq_sendbyte(message, record->response.has_code);
	pq_sendint32(message, record->response.has_code ? record->response.code : 0);
}

static bytea *
compose_message(const Record *record)
{
	StringInfoData message;

	pq_begintypsend(&message);
	put_identity(&message, record);
	put_jsonb(&message, record, record->response.payload);
	put_jsonb(&message, record, record->response.headers);
	put_body(&message, record->response.body);
	return pq_endtypsend(&message);
}

static bool
belongs_to(StringInfo message, const Record *record)
{
	StringInfoData expected;

	initStringInfo(&expected);
	put_identity(&expected, record);
	return expected.len <= message->len &&
		memcmp(pq_getmsgbytes(message, expected.len), expected.data, expected.len) == 0;
}

static struct varlena *
get_body(StringInfo message)
{
	int			length;

	if (!pq_getmsgbyte(message))
		return NULL;
	length = pq_getmsgint(message, 4);
	return (struct varlena *) cstring_to_text_with_len(pq_getmsgbytes(message, length), length);
}

static struct varlena *
get_jsonb(StringInfo message)
{
	return pq_getmsgbyte(message) ? (struct varlena *) portable_get_jsonb(message) : NULL;
}

/* false: it is not that of this record */
static bool
decompose_message(bytea *plain, Record *record)
{
	StringInfoData message = {
		.data = VARDATA_ANY(plain),.len = VARSIZE_ANY_EXHDR(plain),.maxlen = VARSIZE_ANY_EXHDR(plain)
	};

	if (!belongs_to(&message, record))
		return false;
	record->response.payload = get_jsonb(&message);
	record->response.headers = get_jsonb(&message);
	record->response.body = get_body(&message);
	pq_getmsgend(&message);
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

	/* a response that is sealed already stays as it is */
	if (!has_secrets(&record->response))
		return;
	record->response.sealed = NULL;
	record->response.seal_key = NULL;
	key = keyring_newest();
	if (key == NULL)
		return;
	record->response.sealed = pgp_seal(compose_message(record), key->secret);
	record->response.seal_key = cstring_to_text(key->name);
	record->response.payload = NULL;
	record->response.headers = NULL;
	record->response.body = NULL;
}

static const char *
consequence(const Record *record)
{
	return record->status == STATUS_PENDING ?
		"The operation is not taken over until its progress can be handed on." :
		"The operation has ended and does not run again.";
}

pg_noreturn static void
cannot_open(const Record *record, const SealKey *key, int sqlerrcode)
{
	bool		too_complex = sqlerrcode == ERRCODE_STATEMENT_TOO_COMPLEX;
	bool		other_encoding = sqlerrcode == ERRCODE_UNTRANSLATABLE_CHARACTER;

	ereport(ERROR,
			(errcode(too_complex || other_encoding ? sqlerrcode : ERRCODE_DATA_CORRUPTED),
			 errmsg("%s of operation \"%s\" of scope \"%s\" could not be opened", content(record),
					text_to_cstring(record->name.key), text_to_cstring(record->name.scope)),
			 too_complex ? errdetail("It is nested too deeply for max_stack_depth.") :
			 other_encoding ? errdetail("It has a character that the encoding of this database lacks.") :
			 errdetail("Key \"%s\" has another secret than at the time of sealing, or the stored message was damaged or changed.",
					   key->name),
			 errhint("%s %s", consequence(record),
					 too_complex ? "Raise max_stack_depth." :
					 other_encoding ? "Use a database in UTF8." :
					 "Put the right key into idempotency.seal_key_file.")));
}

/* Errors of pgcrypto, of the parser and of conversions: they could repeat a part of the response. */
static bool
is_about_message(int sqlerrcode)
{
	return ERRCODE_TO_CATEGORY(sqlerrcode) == ERRCODE_EXTERNAL_ROUTINE_INVOCATION_EXCEPTION ||
		ERRCODE_TO_CATEGORY(sqlerrcode) == ERRCODE_DATA_EXCEPTION ||
		sqlerrcode == ERRCODE_PROTOCOL_VIOLATION || sqlerrcode == ERRCODE_DATA_CORRUPTED ||
		sqlerrcode == ERRCODE_STATEMENT_TOO_COMPLEX;
}

static void
open_with(Record *record, const SealKey *key)
{
	MemoryContext context = CurrentMemoryContext;
	bool		opened = false;

	PG_TRY();
	{
		bytea	   *plain = pgp_open(record->response.sealed, key->secret);

		opened = plain != NULL && decompose_message(plain, record);
	}
	PG_CATCH();
	{
		int			code = geterrcode();

		if (!is_about_message(code))
			PG_RE_THROW();
		MemoryContextSwitchTo(context);
		FlushErrorState();
		cannot_open(record, key, code);
	}
	PG_END_TRY();
	if (!opened)
		cannot_open(record, key, ERRCODE_DATA_CORRUPTED);
}

/*
 * With a key, what is stored in clear is neither replayed nor handed on: a role
 * that can write to the table could have put it there.
 */
static void
check_clear(const Record *record)
{
	if (!has_secrets(&record->response) || !keyring_is_used() || setting_accept_clear_responses)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("%s of operation \"%s\" of scope \"%s\" is stored in clear, though there is a seal key", content(record),
					text_to_cstring(record->name.key), text_to_cstring(record->name.scope)),
			 errdetail("It was stored before there was a key, or somebody has changed the row."),
			 errhint("%s If it was stored before there was a key, set idempotency.accept_clear_responses = on, run idem_reseal, and set it to off again.", consequence(record))));
}

static void
open_sealed(Record *record)
{
	if (record->response.seal_key == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("%s of operation \"%s\" of scope \"%s\" is sealed with an unknown key", content(record),
						text_to_cstring(record->name.key), text_to_cstring(record->name.scope))));
	open_with(record, keyring_find(record->response.seal_key));
	record->response.sealed = NULL;
	record->response.seal_key = NULL;
}

/* Decrypts the response of a record that was stored sealed. */
void
unseal_record(Record *record)
{
	if (record->response.sealed != NULL)
		open_sealed(record);
	else
		check_clear(record);
}

static bool
is_sealed_with_newest(const Record *record)
{
	const SealKey *key = keyring_newest();

	return key == NULL || (record->response.seal_key != NULL &&
						   strcmp(text_to_cstring(record->response.seal_key), key->name) == 0);
}

/*
 * Prepares a record that was read and will be stored again, with what is sealed in it.
 * Meanwhile idem_reseal may seal the row with the newest key, and then the older key may
 * be removed.  So what an older key has sealed is opened here: it is stored with the newest.
 */
void
seal_keep(Record *record)
{
	if (record->response.sealed == NULL)
		check_clear(record);
	else if (!is_sealed_with_newest(record))
		open_sealed(record);
}

/* Seals a stored response with the newest key, also one that is in clear. */
void
seal_anew(Record *record)
{
	if (record->response.sealed != NULL)
		open_sealed(record);
	seal_record(record);
}
