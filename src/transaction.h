/*
 * transaction.h
 *		The begins and ends of this transaction.
 */
#ifndef IDEM_TRANSACTION_H
#define IDEM_TRANSACTION_H

#include "postgres.h"

#include "idempotency.h"
#include "journal.h"

extern void transaction_register(void);
extern const OperationName *transaction_begun_elsewhere(const OperationName *name);
extern void transaction_reserve(int count);

#endif							/* IDEM_TRANSACTION_H */
