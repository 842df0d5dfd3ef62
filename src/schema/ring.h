/*
 * ring.h
 *		The rows of idempotency_ring: which range each table of the ring has.
 */
#ifndef IDEM_RING_H
#define IDEM_RING_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "nodes/pg_list.h"

extern List *ring_read(Oid table);
extern void ring_range(const List *ranges, const char *name, TimestampTz *from, TimestampTz *until);

#endif							/* IDEM_RING_H */
