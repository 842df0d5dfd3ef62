/*
 * secret.h
 *		The row of idempotency_secret: the secret key of the lock ids.
 */
#ifndef IDEM_SECRET_H
#define IDEM_SECRET_H

#include "postgres.h"

#include "base/siphash.h"

extern SipHashKey secret_read(Oid table);

#endif							/* IDEM_SECRET_H */
