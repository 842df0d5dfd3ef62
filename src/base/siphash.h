/*
 * siphash.h
 *		SipHash-2-4, a keyed hash for short inputs.
 */
#ifndef IDEM_SIPHASH_H
#define IDEM_SIPHASH_H

#include "postgres.h"

#define SIPHASH_KEY_BYTES 16

typedef struct SipHashKey
{
	uint64		words[2];
} SipHashKey;

extern SipHashKey siphash_key(const void *bytes);
extern uint64 siphash(const SipHashKey *key, const void *bytes, Size length);

#endif							/* IDEM_SIPHASH_H */
