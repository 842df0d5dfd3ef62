/*
 * compat.h
 *		Every difference between server versions, in the newest spelling.
 */
#ifndef IDEM_COMPAT_H
#define IDEM_COMPAT_H

#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/xact.h"
#include "fmgr.h"
#include "utils/acl.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#if PG_VERSION_NUM < 150000
#error "idempotency needs PostgreSQL 15 or later"
#endif

#if PG_VERSION_NUM >= 160000
#include "varatt.h"
#endif

/*
 * 16 (089480c077) hides the symbols of extensions from each other and shows
 * only what the server must find, functions of SQL among them.
 */
#if PG_VERSION_NUM < 160000
#undef PGDLLEXPORT
#define PGDLLEXPORT __attribute__((visibility("default")))
#endif
#define SQL_FUNCTION(name) \
	extern PGDLLEXPORT Datum name(PG_FUNCTION_ARGS); \
	PG_FUNCTION_INFO_V1(name)

/*
 * 16 (4d2a844242) lets a transaction callback unregister itself while it is
 * called.  Before, the server steps to the next callback through the one that
 * has just returned, so it must stay where it is.
 */
#if PG_VERSION_NUM >= 160000
#define CALLBACK_MAY_UNREGISTER_ITSELF true
#else
#define CALLBACK_MAY_UNREGISTER_ITSELF false
#endif

/*
 * 16 (19d8e2308b) distinguishes which indexes need an entry for a new version
 */
#include "access/tableam.h"

#if PG_VERSION_NUM >= 160000
typedef TU_UpdateIndexes UpdateIndexes;
#else
typedef bool UpdateIndexes;
#define TU_None false
#endif

/* 16 (c727f511bd) has one function for the rights on any kind of object */
#if PG_VERSION_NUM >= 160000
#include "catalog/pg_namespace.h"
#include "catalog/pg_proc.h"

#define function_aclcheck(function, role, mode) \
	object_aclcheck(ProcedureRelationId, function, role, mode)
#define schema_aclcheck(schema, role, mode) \
	object_aclcheck(NamespaceRelationId, schema, role, mode)
#else
#define schema_aclcheck(schema, role, mode) \
	pg_namespace_aclcheck(schema, role, mode)
#define function_aclcheck(function, role, mode) \
	pg_proc_aclcheck(function, role, mode)
#endif

/* 16 (1e10d49b65) can run the triggers of TRUNCATE as the owner of the table */
#if PG_VERSION_NUM >= 160000
#define execute_truncate(tables, oids, logged) \
	ExecuteTruncateGuts(tables, oids, logged, DROP_RESTRICT, false, false)
#else
#define execute_truncate(tables, oids, logged) \
	ExecuteTruncateGuts(tables, oids, logged, DROP_RESTRICT, false)
#endif

/* 16 (e4d6ae9b5e) exports this look-up */
#if PG_VERSION_NUM < 160000
#include "access/table.h"
#include "catalog/pg_extension.h"
#include "utils/fmgroids.h"

static inline Oid
get_extension_schema(Oid extension)
{
	Relation	catalog = table_open(ExtensionRelationId, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	Oid			schema = InvalidOid;

	ScanKeyInit(&key, Anum_pg_extension_oid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(extension));
	scan = systable_beginscan(catalog, ExtensionOidIndexId, true, NULL, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
		schema = ((Form_pg_extension) GETSTRUCT(tuple))->extnamespace;
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	return schema;
}
#endif

/*
 * 16 (1c27d16e6e) casts walkers to what they are called with.  Before, the
 * headers declare them without parameters, which means none since C23.
 */
#include "nodes/nodeFuncs.h"

#if PG_VERSION_NUM < 160000
#define as_walker(function) ((bool (*) ()) (void (*) (void)) (function))
#else
#define as_walker(function) (function)
#endif

/* 17 (c9af054653) lets extensions name what they wait for */
#include "utils/wait_event.h"

#if PG_VERSION_NUM >= 170000
#define DEFINE_WAIT_EVENT(function, name) \
static inline uint32 \
function(void) \
{ \
	static uint32 event = 0; \
	if (event == 0) \
		event = WaitEventExtensionNew(name); \
	return event; \
}
#else
#define DEFINE_WAIT_EVENT(function, name) \
static inline uint32 \
function(void) \
{ \
	return PG_WAIT_EXTENSION; \
}
#endif
DEFINE_WAIT_EVENT(wait_event_lease, "IdempotencyLease")
DEFINE_WAIT_EVENT(wait_event_launcher, "IdempotencyLauncher")
DEFINE_WAIT_EVENT(wait_event_collector, "IdempotencyCollector")

/* 17 (519fc1bd9e) has infinite intervals */
#ifndef INTERVAL_NOT_FINITE
#define INTERVAL_NOT_FINITE(interval) false
#endif

/* 17 (c8e318b1b8) can ask for a stronger lock, too */
#if PG_VERSION_NUM >= 170000
#define lock_held_by_me(tag, mode) LockHeldByMe(tag, mode, false)
#else
#define lock_held_by_me(tag, mode) LockHeldByMe(tag, mode)
#endif

/*
 * The minor releases of November 2026 mark a composite value with the version of its
 * type, in a function that was a macro.  One library serves all minor releases of a
 * major version, so it is linked weakly, and called where the server has it.
 */
#ifdef DatumGetHeapTupleHeader
#define composite_of_datum(datum) DatumGetHeapTupleHeader(datum)
#else
#pragma weak DatumGetHeapTupleHeader
static inline HeapTupleHeader
composite_of_datum(Datum datum)
{
	return DatumGetHeapTupleHeader != NULL ? DatumGetHeapTupleHeader(datum) :
		(HeapTupleHeader) PG_DETOAST_DATUM(datum);
}
#endif

/*
 * In place of heap_getattr(), which is compiled into the library and calls another
 * function of these minor releases.  This has the check of the server that runs.
 */
static inline Datum
column_of_row(HeapTuple row, AttrNumber number, TupleDesc descriptor, bool *is_null)
{
	Datum		values[MaxTupleAttributeNumber];
	bool		nulls[MaxTupleAttributeNumber];

	heap_deform_tuple(row, descriptor, values, nulls);
	*is_null = nulls[number - 1];
	return values[number - 1];
}

/* the minor releases of August 2023 (c66a7d75e6) mark half-dropped databases */
#ifndef DATCONNLIMIT_INVALID_DB
#define DATCONNLIMIT_INVALID_DB (-2)
#endif

/* 16 (3057465acf) counts the settings in the same call */
#if PG_VERSION_NUM >= 160000
#define all_settings(count) get_guc_variables(count)
#else
#define all_settings(count) (*(count) = GetNumConfigOptions(), get_guc_variables())
#endif

/* 17 (c1ec02be1d) lets an access method keep state over several inserts */
#if PG_VERSION_NUM >= 170000
#define insert_cleanup(index, info) index_insert_cleanup(index, info)
#else
#define insert_cleanup(index, info) ((void) 0)
#endif

/* 18 (28e7a99ac) spells it so, before the declaration */
#if PG_VERSION_NUM < 180000
#define pg_noreturn __attribute__((noreturn))
#endif

/* 18 (9324c8c580) lets a library tell its name and version */
#ifndef PG_MODULE_MAGIC_EXT
#define PG_MODULE_MAGIC_EXT(...) PG_MODULE_MAGIC
#endif

/* 18 (14ffaece0f) has deferrable keys in the relation's index list */
#if PG_VERSION_NUM >= 180000
#define primary_key_index(relation) RelationGetPrimaryKeyIndex(relation, false)
#else
#define primary_key_index(relation) RelationGetPrimaryKeyIndex(relation)
#endif

/*
 * 19 lets a table's access method see how an index is scanned.
 * 18 (0fbceae841) counts index searches for EXPLAIN.
 */
#if PG_VERSION_NUM >= 190000
#define begin_index_scan(heap, index, snapshot, keys) \
	index_beginscan(heap, index, snapshot, NULL, keys, 0, SO_NONE)
#elif PG_VERSION_NUM >= 180000
#define begin_index_scan(heap, index, snapshot, keys) \
	index_beginscan(heap, index, snapshot, NULL, keys, 0)
#else
#define begin_index_scan(heap, index, snapshot, keys) \
	index_beginscan(heap, index, snapshot, keys, 0)
#endif

/* 19 gives changes of a table options, and takes one of them for "changing partition" */
#if PG_VERSION_NUM >= 190000
#define update_version(store, version, slot, command, failure, mode, indexes) \
	table_tuple_update(store, version, slot, command, 0, InvalidSnapshot, \
					   InvalidSnapshot, true, failure, mode, indexes)
#define delete_version(store, version, command, failure) \
	table_tuple_delete(store, version, command, 0, InvalidSnapshot, \
					   InvalidSnapshot, true, failure)
#else
#define update_version(store, version, slot, command, failure, mode, indexes) \
	table_tuple_update(store, version, slot, command, InvalidSnapshot, \
					   InvalidSnapshot, true, failure, mode, indexes)
#define delete_version(store, version, command, failure) \
	table_tuple_delete(store, version, command, InvalidSnapshot, \
					   InvalidSnapshot, true, failure, false)
#endif

/* 19 has one state for the value under construction and its result */
#include "utils/jsonb.h"

#if PG_VERSION_NUM >= 190000
#define json_push(in, token, value) pushJsonbValue(in, token, value)
#else
typedef struct JsonBuild
{
	JsonbValue *result;
	JsonbParseState *parseState;
} JsonBuild;
#define JsonbInState JsonBuild

static inline void
json_push(JsonbInState *in, JsonbIteratorToken token, JsonbValue *value)
{
	in->result = pushJsonbValue(&in->parseState, token, value);
}
#endif

/* 19 passes the EXPLAIN that it plans for to the planner */
#if PG_VERSION_NUM >= 190000
#define EXPLAIN_PARAMETER , struct ExplainState *explain
#define EXPLAIN_ARGUMENT , explain
#else
#define EXPLAIN_PARAMETER
#define EXPLAIN_ARGUMENT
#endif

/* 19 hands the jumble out to be read only */
#if PG_VERSION_NUM >= 190000
typedef const struct JumbleState *JumbleArgument;
#else
typedef struct JumbleState *JumbleArgument;
#endif

/* 19 says it in words of the compiler, and no longer lets a comment do */
#ifndef pg_fallthrough
#define pg_fallthrough __attribute__((fallthrough))
#endif

/*
 * 17 (d86d20f0ba) has points that tests attach to, where the server was built
 * for that; 18 (371f2db8b0) gives them an argument.
 */
#ifndef USE_INJECTION_POINTS
#define injection_point(name) ((void) 0)
#else
#include "utils/injection_point.h"
#if PG_VERSION_NUM >= 180000
#define injection_point(name) INJECTION_POINT(name, NULL)
#else
#define injection_point(name) INJECTION_POINT(name)
#endif
#endif

#endif							/* IDEM_COMPAT_H */
