/*
 * resource.h
 *		Exclusive locks on entities.
 */
#ifndef RESOURCE_H
#define RESOURCE_H

#include "postgres.h"

extern bool resource_lock_all(text **names, int count, int64 wait);

#endif							/* RESOURCE_H */
