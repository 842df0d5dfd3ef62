/*
 * fence.h
 *		Where fences come from.
 */
#ifndef IDEM_FENCE_H
#define IDEM_FENCE_H

#include "postgres.h"

extern int64 fence_next(int64 after);
extern void fence_keep(int64 fence);
extern void fence_keep_if_free(int64 fence);
extern int64 fence_last(void);

#endif							/* IDEM_FENCE_H */
