/*
 * mark.h
 *		Fences that grow although each node has a sequence of its own.
 */
#ifndef IDEM_MARK_H
#define IDEM_MARK_H

#include "postgres.h"

#include "schema/catalog.h"

extern int64 mark_next_fence(const Catalog *catalog, text *scope, int64 after);

#endif							/* IDEM_MARK_H */
