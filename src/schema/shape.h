/*
 * shape.h
 *		What the extension's tables have to look like.
 */
#ifndef IDEM_SHAPE_H
#define IDEM_SHAPE_H

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

/* what happens if a crash empties a part of the store */
#define LOSS_OF_STORE "finished operations would run again"

pg_noreturn extern void shape_refuse(const char *what);
extern void shape_require_logged(const char *table, char persistence, const char *loss);
extern Oid	shape_require_openable(Oid table, const char *name);
extern void shape_require_raw(Relation table, const char *name, const RawColumn *columns, int count);
extern void shape_require_store(Relation store, Oid status_type);
extern void shape_require_shard(Oid shard, Oid status_type);
extern List *shape_children(Relation table);
extern bool shape_require_member(Oid table, Oid owner);
extern bool shape_is_plain(Relation store, Oid status_type);

#endif							/* IDEM_SHAPE_H */
