/*
 * tokens.h
 *		Text and jsonb as bytes with the same meaning in every database.
 */
#ifndef IDEM_TOKENS_H
#define IDEM_TOKENS_H

#include "postgres.h"

#include "lib/stringinfo.h"
#include "utils/jsonb.h"

extern void tokens_put_text(StringInfo message, const char *bytes, int length);
extern bool tokens_put_jsonb(StringInfo message, Jsonb *value, int max_depth);
extern Jsonb *tokens_get_jsonb(StringInfo message);

#endif							/* IDEM_TOKENS_H */
