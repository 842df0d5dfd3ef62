/*
 * keyring.h
 *		The keys of idempotency.seal_key_file.
 */
#ifndef IDEM_KEYRING_H
#define IDEM_KEYRING_H

#include "postgres.h"

#include "base/settings.h"

typedef struct SealKey
{
	char	   *name;			/* stored in each record that the key has sealed or fingerprinted */
	char	   *secret;
} SealKey;

extern const SealKey *keyring_read_newest(void);
extern const SealKey *keyring_find(const text *name);

static inline bool
keyring_is_used(void)
{
	return setting_seal_key_file != NULL && setting_seal_key_file[0] != '\0';
}

/* The key to use now, or NULL where none is to be used. */
static inline const SealKey *
keyring_newest(void)
{
	return keyring_is_used() ? keyring_read_newest() : NULL;
}

#endif							/* IDEM_KEYRING_H */
