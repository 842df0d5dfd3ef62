/*
 * pgp.h
 *		OpenPGP messages under a secret, made and opened by pgcrypto.
 */
#ifndef IDEM_PGP_H
#define IDEM_PGP_H

#include "postgres.h"

extern void pgp_require(void);
extern bytea *pgp_seal(bytea *plain, const char *secret);
extern bytea *pgp_open(bytea *message, const char *secret);

#endif							/* IDEM_PGP_H */
