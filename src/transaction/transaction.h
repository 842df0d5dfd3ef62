/*
 * transaction.h
 *		Refuses COMMIT while an operation of this transaction is unfinished.
 */
#ifndef IDEM_TRANSACTION_H
#define IDEM_TRANSACTION_H

#include "postgres.h"

#include "base/idempotency.h"

extern void transaction_register(void);
extern const OperationName *transaction_begun_with_key(const OperationName *name);
extern void transaction_require_ended(void);

#endif							/* IDEM_TRANSACTION_H */
