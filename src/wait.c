/*
 * wait.c
 *		How long a caller still waits, and waiting for a lease to end.
 *
 * A lease is ended by a commit in some other session, or by time.  Nobody can
 * be asked to signal the first, so the waiter looks again after a pause that
 * grows, and is bounded so that an answer is never late by more.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/wait_event.h"

#include "wait.h"

#define FIRST_PAUSE INT64CONST(2000)
#define LONGEST_PAUSE INT64CONST(50000)

Deadline
deadline_after(int64 microseconds)
{
	Deadline	deadline = {.microseconds = microseconds};

	INSTR_TIME_SET_CURRENT(deadline.start);
	return deadline;
}

/* Microseconds left; not positive when the time is up. */
int64
deadline_left(const Deadline *deadline)
{
	instr_time	spent;

	INSTR_TIME_SET_CURRENT(spent);
	INSTR_TIME_SUBTRACT(spent, deadline->start);
	return deadline->microseconds - (int64) INSTR_TIME_GET_MICROSEC(spent);
}

/* Pauses until it is worth looking again, but no longer than that. */
void
lease_wait_sleep(LeaseWait *wait, int64 microseconds)
{
	int64		pause;

	wait->pause = wait->pause == 0 ? FIRST_PAUSE : Min(wait->pause * 2, LONGEST_PAUSE);
	pause = Min(wait->pause, microseconds);
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 (pause + 999) / 1000, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}
