/*
 * lock_key.c
 *		The lock key, which makes lock ids secret: the row of idempotency_secret.
 *
 * The table is read without the executor, as the caller has no rights on it.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "catalog/pg_type.h"
#include "utils/rel.h"

#include "base/compat.h"
#include "schema/definition.h"
#include "schema/lock_key.h"

static SipHashKey
key_of_row(HeapTuple row, TupleDesc descriptor)
{
	bool		is_null = true;
	Datum		value = HeapTupleIsValid(row) ? column_of_row(row, 2, descriptor, &is_null) : 0;
	bytea	   *bytes;

	if (is_null)
		definition_refuse("idempotency_secret");
	bytes = DatumGetByteaPP(value);
	if (VARSIZE_ANY_EXHDR(bytes) != SIPHASH_KEY_BYTES)
		definition_refuse("idempotency_secret");
	return siphash_key(VARDATA_ANY(bytes));
}

/*
 * The table is locked.  A fresh snapshot, whatever the isolation level: the key is
 * not data.  There is one row, or sessions could take different ones.
 */
SipHashKey
lock_key_read(Oid table)
{
	static const RawColumn columns[] = {{"only_row", BOOLOID}, {"lock_key", BYTEAOID}};
	Relation	secret = relation_open(table, NoLock);
	SysScanDesc scan;
	SipHashKey	key;

	definition_require_raw(secret, "idempotency_secret", columns, lengthof(columns));
	scan = systable_beginscan(secret, InvalidOid, false, NULL, 0, NULL);
	key = key_of_row(systable_getnext(scan), RelationGetDescr(secret));
	if (HeapTupleIsValid(systable_getnext(scan)))
		definition_refuse("idempotency_secret");
	systable_endscan(scan);
	relation_close(secret, AccessShareLock);
	return key;
}
