/*
 * lock_key.h
 *		The lock key, which makes lock ids secret: the row of idempotency_secret.
 */
#ifndef IDEM_LOCK_KEY_H
#define IDEM_LOCK_KEY_H

#include "postgres.h"

#include "base/siphash.h"

extern SipHashKey lock_key_read(Oid table);

#endif							/* IDEM_LOCK_KEY_H */
