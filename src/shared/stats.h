/*
 * stats.h
 *		Counts events, if the library is preloaded.
 */
#ifndef IDEM_STATS_H
#define IDEM_STATS_H

#include "postgres.h"

#include "base/idempotency.h"
#include "shared/shared.h"

/* the figures of a database */
typedef struct Figures
{
	Oid			database;
	int64		counts[COUNTERS];
} Figures;

extern void stats_add(Counter counter, int64 amount);
extern void stats_set(Counter counter, int64 value);
extern void stats_count_begin(Outcome outcome, bool taken_over);
extern void stats_reset(void);

extern void stats_show_this_database(void);
extern bool stats_read(int slot, Figures *figures);
extern void stats_give_back(Oid database);

static inline void
stats_count(Counter counter)
{
	if (shared != NULL)
		stats_add(counter, 1);
}

#endif							/* IDEM_STATS_H */
