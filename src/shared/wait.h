/*
 * wait.h
 *		Deadlines of callers, and waiting for the end of a lease.
 */
#ifndef IDEM_WAIT_H
#define IDEM_WAIT_H

#include "postgres.h"

#include "portability/instr_time.h"

/* the end of a wait, by a clock that nobody sets */
typedef struct Deadline
{
	instr_time	start;
	int64		microseconds;
} Deadline;

/* one caller's wait for a lease */
typedef struct LeaseWait
{
	uint64		id;				/* of the operation */
	int64		pause;			/* microseconds; grows */
} LeaseWait;

extern Deadline deadline_after(int64 microseconds);
extern int64 deadline_left(const Deadline *deadline);

extern LeaseWait lease_wait_prepare(uint64 id);
extern void lease_wait_sleep(LeaseWait *wait, int64 microseconds);
extern void lease_wait_end(void);
extern void lease_wait_wake(uint64 id);

#endif							/* IDEM_WAIT_H */
