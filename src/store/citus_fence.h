/*
 * citus_fence.h
 *		Fences that grow although each node has a sequence of its own.
 */
#ifndef IDEM_CITUS_FENCE_H
#define IDEM_CITUS_FENCE_H

#include "postgres.h"

#include "schema/catalog.h"

extern int64 citus_fence_next(const Catalog *catalog, text *scope, int64 after);

#endif							/* IDEM_CITUS_FENCE_H */
