/*
 * expiry.h
 *		The care for a store that is partitioned by expiry.
 */
#ifndef IDEM_EXPIRY_H
#define IDEM_EXPIRY_H

#include "postgres.h"

#include "schema/catalog.h"

extern int64 expiry_tend(const Catalog *catalog, int max_parts);

#endif							/* IDEM_EXPIRY_H */
