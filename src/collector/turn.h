/*
 * turn.h
 *		Turns the ring of tables.
 */
#ifndef IDEM_TURN_H
#define IDEM_TURN_H

#include "postgres.h"

#include "schema/catalog.h"

extern int64 turn_ring(const Catalog *catalog, int max_turns, int *turned);

#endif							/* IDEM_TURN_H */
