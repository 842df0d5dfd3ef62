/*
 * operation_owner.h
 *		Which sessions may end an operation, and which error all others get.
 */
#ifndef IDEM_OPERATION_OWNER_H
#define IDEM_OPERATION_OWNER_H

#include "postgres.h"

#include "operation/operation_internal.h"

extern int64 operation_owner_fence(const Handle *handle);
extern bool operation_owner_find(const Handle *handle, int64 fence, Record *found);
extern void operation_owner_require(const Handle *handle, int64 fence, Record *found);

#endif							/* IDEM_OPERATION_OWNER_H */
