/*
 * keyring.h
 *		The keys of idempotency.seal_key_file.
 */
#ifndef IDEM_KEYRING_H
#define IDEM_KEYRING_H

#include "postgres.h"

typedef struct SealKey
{
	char	   *name;			/* stored in each record that the key has sealed or fingerprinted */
	char	   *secret;
} SealKey;

extern bool keyring_is_used(void);
extern const SealKey *keyring_newest(void);
extern const SealKey *keyring_find(const text *name);

#endif							/* IDEM_KEYRING_H */
