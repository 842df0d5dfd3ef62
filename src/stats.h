/*
 * stats.h
 *		Counts what happens, where the library is preloaded.
 */
#ifndef IDEM_STATS_H
#define IDEM_STATS_H

#include "postgres.h"

#include "shared.h"

extern void stats_add(Counter counter, int64 amount);
extern void stats_set(Counter counter, int64 value);

static inline void
stats_count(Counter counter)
{
	if (shared != NULL)
		stats_add(counter, 1);
}

#endif							/* IDEM_STATS_H */
