/*
 * owner.h
 *		Which sessions may end an operation, and which error all others get.
 */
#ifndef IDEM_OWNER_H
#define IDEM_OWNER_H

#include "postgres.h"

#include "operation/operation_internal.h"

extern int64 owned_fence(const Handle *handle);
extern bool owner_finds(const Handle *handle, int64 fence, Record *found);
extern void owner_requires(const Handle *handle, int64 fence, Record *found);

#endif							/* IDEM_OWNER_H */
