/*
 * seal.h
 *		Responses that are encrypted in the store.
 */
#ifndef IDEM_SEAL_H
#define IDEM_SEAL_H

#include "postgres.h"

#include "base/idempotency.h"

extern void seal_record(Record *record);
extern void unseal_record(Record *record);
extern void seal_keep(Record *record);
extern void seal_anew(Record *record);

#endif							/* IDEM_SEAL_H */
