/*
 * parts.h
 *		The tables that the store's rows are in: itself, or its partitions.
 */
#ifndef IDEM_PARTS_H
#define IDEM_PARTS_H

#include "postgres.h"

extern void parts_read(Oid key);
extern bool parts_include(Oid relation);
extern bool parts_include_schema(uint32 hash);
extern bool parts_have_key(const char *schema, const char *table, const char *name);

#endif							/* IDEM_PARTS_H */
