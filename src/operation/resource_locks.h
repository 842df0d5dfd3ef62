/*
 * resource_locks.h
 *		Exclusive locks on entities.
 */
#ifndef IDEM_RESOURCE_LOCKS_H
#define IDEM_RESOURCE_LOCKS_H

#include "postgres.h"

extern bool resource_lock_all(text **names, int count, int64 wait);

#endif							/* IDEM_RESOURCE_LOCKS_H */
