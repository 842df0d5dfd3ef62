/*
 * objects.h
 *		The objects of the extension by their names.
 */
#ifndef IDEM_OBJECTS_H
#define IDEM_OBJECTS_H

#include "postgres.h"

#include "schema/catalog.h"

extern const char *objects_table_name(CatalogTable table);
extern const char *objects_find(Oid extension, Catalog *catalog);
extern void objects_require_logged(const Catalog *catalog, CatalogTable table, const char *loss);
extern bool objects_include_schema(uint32 hash);
extern bool objects_include_type(uint32 hash);

#endif							/* IDEM_OBJECTS_H */
