/*
 * utf8.h
 *		Text as UTF-8, whatever the encoding of the database.
 */
#ifndef IDEM_UTF8_H
#define IDEM_UTF8_H

#include "postgres.h"

/* bytes that need not end with a NUL; not a copy where nothing had to change */
typedef struct Bytes
{
	const char *start;
	int			length;
} Bytes;

extern bool utf8_is_stored(void);
extern Bytes utf8_of(const char *start, int length);
extern Bytes utf8_of_text(const text *value);

#endif							/* IDEM_UTF8_H */
