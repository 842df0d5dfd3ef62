/*
 * fingerprint.h
 *		What is remembered of a request, and the keys of steps.
 */
#ifndef IDEM_FINGERPRINT_H
#define IDEM_FINGERPRINT_H

#include "postgres.h"

#include "utils/jsonb.h"

extern bytea *fingerprint_of(Jsonb *request);
extern text *step_key(text *key, text *step);

#endif							/* IDEM_FINGERPRINT_H */
