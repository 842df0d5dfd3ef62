/*
 * fingerprint.h
 *		What is remembered of a request: its fingerprint (fingerprint.c), and
 *		what is stored of that (fingerprint_digest.c).  And the keys of steps.
 */
#ifndef IDEM_FINGERPRINT_H
#define IDEM_FINGERPRINT_H

#include "postgres.h"

#include "utils/jsonb.h"

#include "base/idempotency.h"

extern bytea *fingerprint_of(Jsonb *request);
extern text *step_key(text *key, text *step);

extern Digest digest_of(const OperationName *name, bytea *fingerprint);
extern bool digest_matches(const OperationName *name, const Digest *stored, const bytea *fingerprint);

#endif							/* IDEM_FINGERPRINT_H */
