/*
 * duration.h
 *		Intervals as elapsed time.
 */
#ifndef IDEM_DURATION_H
#define IDEM_DURATION_H

#include "postgres.h"

#include "datatype/timestamp.h"

/* beyond that it is a mistake: no lease, retention or wait is meant to last 100 years */
#define LONGEST_DURATION (INT64CONST(36500) * USECS_PER_DAY)

extern bool duration_of(const Interval *interval, int64 *microseconds);

#endif							/* IDEM_DURATION_H */
