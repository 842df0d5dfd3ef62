/*
 * lost_attempts.h
 *		How often the attempt of an operation was lost with its transaction.
 */
#ifndef IDEM_LOST_ATTEMPTS_H
#define IDEM_LOST_ATTEMPTS_H

#include "postgres.h"

#include "storage/lwlock.h"

extern Size lost_attempts_size(void);
extern int	lost_attempts_parts(void);
extern void lost_attempts_attach(LWLockPadded *part_locks);

extern bool lost_attempts_are_counted(void);
extern int32 lost_attempts_of(uint64 id);
extern void lost_attempts_add(uint64 id, int32 limit);
extern void lost_attempts_forget(uint64 id);
extern void lost_attempts_figures(Oid database, int64 *operations, int64 *near_limit);

#endif							/* IDEM_LOST_ATTEMPTS_H */
