/*
 * duration.h
 *		Intervals as elapsed time.
 */
#ifndef IDEM_DURATION_H
#define IDEM_DURATION_H

#include "postgres.h"

#include "datatype/timestamp.h"

extern bool duration_of(const Interval *interval, int64 *microseconds);

#endif							/* IDEM_DURATION_H */
