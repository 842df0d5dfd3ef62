/*
 * handler_failure.h
 *		Which errors of a handler are a failure of the operation, and what is
 *		stored of these errors.
 */
#ifndef IDEM_HANDLER_FAILURE_H
#define IDEM_HANDLER_FAILURE_H

#include "postgres.h"

#include "base/idempotency.h"

extern bool failure_is_stored(int sqlstate);
extern Response failure_response(const ErrorData *error, int32 limit);

#endif							/* IDEM_HANDLER_FAILURE_H */
