/*
 * utf8.h
 *		Text as UTF-8, whatever the encoding of the database.
 */
#ifndef IDEM_UTF8_H
#define IDEM_UTF8_H

#include "postgres.h"

#include "mb/pg_wchar.h"

/* bytes that need not end with a NUL; not a copy where nothing had to change */
typedef struct Bytes
{
	const char *start;
	int			length;
} Bytes;

extern Bytes utf8_of(const char *start, int length);
extern Bytes utf8_of_text(const text *value);

/* Are the bytes of this database's text hashed as they are? */
static inline bool
utf8_is_stored(void)
{
	return GetDatabaseEncoding() == PG_UTF8 || GetDatabaseEncoding() == PG_SQL_ASCII;
}

#endif							/* IDEM_UTF8_H */
