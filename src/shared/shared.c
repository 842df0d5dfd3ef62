/*
 * shared.c
 *		What all sessions share in memory, where the library is preloaded.
 *
 * Without preloading there is no such memory, and everything else works:
 * waiters look again after a pause, nothing is counted, and there is no
 * collector.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

#include "base/compat.h"
#include "base/idempotency.h"
#include "shared/lost_attempts.h"
#include "shared/shared.h"

Shared	   *shared = NULL;
LWLock	   *shared_lock = NULL;

static shmem_request_hook_type previous_request_hook = NULL;
static shmem_startup_hook_type previous_startup_hook = NULL;

static void
request_shared(void)
{
	if (previous_request_hook)
		previous_request_hook();
	RequestAddinShmemSpace(add_size(sizeof(Shared), lost_attempts_size()));
	RequestNamedLWLockTranche(EXTENSION_NAME, 1 + lost_attempts_parts());
}

static void
initialize_shared(Shared *fresh)
{
	for (int i = 0; i < WAKE_UPS; i++)
		ConditionVariableInit(&fresh->wake_ups[i]);
	for (int i = 0; i < COUNTED_DATABASES; i++)
	{
		pg_atomic_init_u64(&fresh->databases[i].word, 0);
		for (int counter = 0; counter < COUNTERS; counter++)
			pg_atomic_init_u64(&fresh->databases[i].counts[counter], 0);
	}
	pg_atomic_init_u32(&fresh->given_back, 0);
	for (int i = 0; i < VISITORS; i++)
		pg_atomic_init_u64(&fresh->visitors[i], 0);
	pg_atomic_init_u64(&fresh->visit_result, 0);
}

static void
attach_shared(void)
{
	LWLockPadded *locks;
	bool		found;

	if (previous_startup_hook)
		previous_startup_hook();
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	shared = ShmemInitStruct(EXTENSION_NAME, sizeof(Shared), &found);
	if (!found)
		initialize_shared(shared);
	locks = GetNamedLWLockTranche(EXTENSION_NAME);
	shared_lock = &locks[0].lock;
	lost_attempts_attach(&locks[1]);
	LWLockRelease(AddinShmemInitLock);
}

void
shared_register(void)
{
	if (!process_shared_preload_libraries_in_progress)
		return;
	previous_request_hook = shmem_request_hook;
	shmem_request_hook = request_shared;
	previous_startup_hook = shmem_startup_hook;
	shmem_startup_hook = attach_shared;
}
