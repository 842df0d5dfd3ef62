/*
 * wait.c
 *		Deadlines of callers, and waiting for the end of a lease.
 *
 * A lease ends by a commit in another session, or by time.  If the library is
 * preloaded, that commit wakes the waiters through condition variables in
 * shared memory.  All operations share a few of these, so a waiter may be
 * woken for another operation; it looks again.  Without preloading, a waiter
 * looks again after a pause that grows up to a bound.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/condition_variable.h"
#include "storage/latch.h"

#include "base/compat.h"
#include "shared/shared.h"
#include "shared/wait.h"

#define FIRST_PAUSE INT64CONST(2000)
#define LONGEST_PAUSE INT64CONST(50000)
/* COMMIT PREPARED wakes no waiter, and neither does a clock that is set */
#define LONGEST_SLEEP INT64CONST(1000000)

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

static ConditionVariable *
wake_up_of(uint64 id)
{
	return &shared->wake_ups[id % WAKE_UPS];
}

/* From now on the end of the operation's lease wakes us. */
LeaseWait
lease_wait_prepare(uint64 id)
{
	if (shared != NULL)
		ConditionVariablePrepareToSleep(wake_up_of(id));
	return (LeaseWait) {.id = id,.pause = FIRST_PAUSE};
}

static void
pause_for(LeaseWait *wait, int64 microseconds)
{
	int64		pause = Min(wait->pause, microseconds);

	wait->pause = Min(wait->pause * 2, LONGEST_PAUSE);
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 (pause + 999) / 1000, wait_event_lease());
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

/* Sleeps until a waiter should look again, but no longer than that. */
void
lease_wait_sleep(LeaseWait *wait, int64 microseconds)
{
	if (shared == NULL)
		pause_for(wait, microseconds);
	else
		(void) ConditionVariableTimedSleep(wake_up_of(wait->id),
										   (Min(microseconds, LONGEST_SLEEP) + 999) / 1000,
										   wait_event_lease());
}

void
lease_wait_end(void)
{
	if (shared != NULL)
		ConditionVariableCancelSleep();
}

/* The operation's lease has ended, and everybody can see it. */
void
lease_wait_wake(uint64 id)
{
	if (shared != NULL)
		ConditionVariableBroadcast(wake_up_of(id));
}
