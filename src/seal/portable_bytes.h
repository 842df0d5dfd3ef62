/*
 * portable_bytes.h
 *		Text and jsonb as bytes with the same meaning in every database.
 */
#ifndef IDEM_PORTABLE_BYTES_H
#define IDEM_PORTABLE_BYTES_H

#include "postgres.h"

#include "lib/stringinfo.h"
#include "utils/jsonb.h"

extern void portable_put_text(StringInfo message, const char *bytes, int length);
extern bool portable_put_jsonb(StringInfo message, Jsonb *value, int max_depth);
extern Jsonb *portable_get_jsonb(StringInfo message);

#endif							/* IDEM_PORTABLE_BYTES_H */
