/*
 * digest.h
 *		What is stored of a request's fingerprint.
 */
#ifndef IDEM_DIGEST_H
#define IDEM_DIGEST_H

#include "postgres.h"

#include "idempotency.h"

extern Digest digest_of(const OperationName *name, bytea *fingerprint);
extern bool digest_matches(const OperationName *name, const Digest *stored, const bytea *fingerprint);

#endif							/* IDEM_DIGEST_H */
