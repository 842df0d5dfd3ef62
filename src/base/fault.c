/*
 * fault.c
 *		Lets a session fail, die or wait at a point that a test names.  An empty
 *		file in every build that is not for tests.
 *
 *		idempotency.fault		'point:error', ':kill', ':wait', or several, with commas
 *
 * A waiting session waits until no session holds the advisory lock 428, as
 * pg_advisory_lock(428) takes it.  It polls and does not queue for the lock,
 * so that it may also wait in the middle of a commit, where nothing may fail.
 */
#include "postgres.h"

#include "base/fault.h"

#ifdef IDEM_FAULTS

#include <signal.h>

#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/guc.h"

#include "base/compat.h"

#define RELEASE_LOCK 428

DEFINE_WAIT_EVENT(wait_event_fault, "IdempotencyFault")

static const char *const points[] = {
	"begin-locked",				/* the lock is held, the key not looked up */
	"begin-decided",				/* looked up, nothing written */
	"taken-over",				/* the new lease is written, not committed */
	"end-checked",				/* the fence compared, the end not written */
	"tables-listed",			/* of a ring or else, and no snapshot taken */
	"length-asked",				/* of the file of a table that is not locked */
	"statement-locked",			/* its table is locked, its text not read */
	"count-entered",			/* in the slot of the database, nothing counted */
	"sweep-read",				/* expired rows are locked, not deleted */
	"ring-read",				/* a table is read, writers are locked out, nothing emptied */
	"commit-visible"			/* others see the commit, and wait for its locks */
};

static const char *const actions[] = {"error", "kill", "wait"};

static char *setting_fault = "";
static char *setting_fault_point = "";

static bool
is_one_of(const char *name, int length, const char *const *names, int count)
{
	for (int i = 0; i < count; i++)
	{
		if (strlen(names[i]) == length && strncmp(names[i], name, length) == 0)
			return true;
	}
	return false;
}

static bool
is_fault(const char *name)
{
	const char *colon = strchr(name, ':');

	return colon != NULL &&
		is_one_of(name, colon - name, points, lengthof(points)) &&
		is_one_of(colon + 1, strlen(colon + 1), actions, lengthof(actions));
}

/* Faults separated by commas. */
static bool
check_fault(char **value, void **extra, GucSource source)
{
	char	   *list = pstrdup(*value);
	char	   *save;

	for (char *name = strtok_r(list, ", ", &save); name; name = strtok_r(NULL, ", ", &save))
	{
		if (!is_fault(name))
		{
			GUC_check_errdetail("\"%s\" is not known.", name);
			return false;
		}
	}
	pfree(list);
	return true;
}

/* The setting chooses the point at which the next statements stop. */
static bool
check_fault_point(char **value, void **extra, GucSource source)
{
	if (**value != '\0')
		fault_point(*value);
	return true;
}

void
fault_register(void)
{
	DefineCustomStringVariable("idempotency.fault",
							   "What happens at which point of an operation.",
							   NULL,
							   &setting_fault,
							   "",
							   PGC_SUSET, GUC_NOT_IN_SAMPLE, check_fault, NULL, NULL);

	DefineCustomStringVariable("idempotency.fault_point",
							   "The point that a statement has come to.",
							   NULL,
							   &setting_fault_point,
							   "",
							   PGC_USERSET, GUC_NOT_IN_SAMPLE, check_fault_point, NULL, NULL);
}

/* Is this entry in the list, which was checked before? */
static bool
is_listed(const char *list, const char *word)
{
	Size		length = strlen(word);

	for (const char *at = strstr(list, word); at; at = strstr(at + 1, word))
	{
		bool		starts = at == list || strchr(", ", at[-1]) != NULL;

		/* strchr finds the end of the list as well */
		if (starts && strchr(", ", at[length]) != NULL)
			return true;
	}
	return false;
}

static bool
is_asked_for(const char *name, const char *action)
{
	char		word[64];

	snprintf(word, sizeof(word), "%s:%s", name, action);
	return is_listed(setting_fault, word);
}

/* True when nobody holds the lock that the test does. */
static bool
is_released(void)
{
	LOCKTAG		tag;

	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, 0, RELEASE_LOCK, 1);
	if (LockAcquire(&tag, ShareLock, true, true) == LOCKACQUIRE_NOT_AVAIL)
		return false;
	(void) LockRelease(&tag, ShareLock, true);
	return true;
}

static void
wait_here(void)
{
	while (!is_released())
	{
		CHECK_FOR_INTERRUPTS();
		/* each time, as the look itself may have waited for something else */
		pgstat_report_wait_start(wait_event_fault());
		pg_usleep(2000);
		pgstat_report_wait_end();
	}
}

void
fault_point(const char *name)
{
	if (!is_one_of(name, strlen(name), points, lengthof(points)))
		elog(PANIC, "fault point \"%s\" is not listed", name);
	injection_point(name);
	if (is_asked_for(name, "wait"))
		wait_here();
	if (is_asked_for(name, "kill"))
		(void) kill(MyProcPid, SIGKILL);
	if (is_asked_for(name, "error"))
		ereport(ERROR,
				(errcode(ERRCODE_SYSTEM_ERROR),
				 errmsg("fault at point \"%s\"", name)));
}

#endif							/* IDEM_FAULTS */
