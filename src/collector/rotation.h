/*
 * rotation.h
 *		Rotates the ring of tables.
 */
#ifndef IDEM_ROTATION_H
#define IDEM_ROTATION_H

#include "postgres.h"

#include "schema/catalog.h"

extern int64 rotate_ring(const Catalog *catalog, int max_rotations, int *rotated);

#endif							/* IDEM_ROTATION_H */
