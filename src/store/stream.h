/*
 * stream.h
 *		The high-water marks of streams.
 */
#ifndef IDEM_STREAM_H
#define IDEM_STREAM_H

#include "postgres.h"

#include "base/idempotency.h"
#include "schema/catalog.h"

extern bool stream_advance(const Catalog *catalog, const OperationName *stream, int64 seq);

#endif							/* IDEM_STREAM_H */
