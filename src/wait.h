/*
 * wait.h
 *		How long a caller still waits, and waiting for a lease to end.
 */
#ifndef WAIT_H
#define WAIT_H

#include "postgres.h"

#include "portability/instr_time.h"

/* when a wait is over, by a clock that nobody sets */
typedef struct Deadline
{
	instr_time	start;
	int64		microseconds;
} Deadline;

/* one caller's wait for a lease */
typedef struct LeaseWait
{
	int64		pause;			/* microseconds; grows */
} LeaseWait;

extern Deadline deadline_after(int64 microseconds);
extern int64 deadline_left(const Deadline *deadline);
extern void lease_wait_sleep(LeaseWait *wait, int64 microseconds);

#endif							/* WAIT_H */
