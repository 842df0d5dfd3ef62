/*
 * definition.h
 *		Which definition the extension's tables must have.
 */
#ifndef IDEM_DEFINITION_H
#define IDEM_DEFINITION_H

#include "postgres.h"

#include "nodes/pg_list.h"
#include "utils/rel.h"

#include "base/compat.h"

/* of a table that is read without the executor */
typedef struct RawColumn
{
	const char *name;
	Oid			type;
} RawColumn;

/* what happens if a crash empties a table of the store */
#define LOSS_OF_STORE "finished operations would run again"

pg_noreturn extern void definition_refuse(const char *what);
extern void definition_require_logged(const char *table, char persistence, const char *loss);
extern Oid	definition_require_openable(Oid table, const char *name);
extern void definition_require_raw(Relation table, const char *name, const RawColumn *columns, int count);
extern void definition_require_store(Relation store, Oid status_type);
extern void definition_require_shard(Oid shard, Oid status_type);
extern List *definition_children(Relation table);
extern bool definition_require_member(Oid table, Oid owner);
extern bool definition_is_plain(Relation store, Oid status_type);

#endif							/* IDEM_DEFINITION_H */
