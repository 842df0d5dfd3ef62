/*
 * fault.c
 *		Lets a session fail, die or wait at a point that a test names, and takes
 *		guards out, to see that somebody notices.  An empty file in every build
 *		that is not for tests.
 *
 *		idempotency.fault		'point:error', ':kill', ':wait', or several, with commas
 *		idempotency.guards_off	'lock', 'fence', 'commit', 'sweep'
 *
 * A session that waits does so until nobody holds the advisory lock 428, as
 * pg_advisory_lock(428) takes it.  It looks without queueing up, so that it may
 * wait in the middle of a commit as well, where nothing may fail.
 */
#include "postgres.h"

#include "fault.h"

#ifdef IDEM_FAULTS

#include <signal.h>

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/guc.h"
#include "utils/varlena.h"

#include "compat.h"

#define RELEASE_LOCK 428

DEFINE_WAIT_EVENT(wait_event_fault, "IdempotencyFault")

static const char *const points[] = {
	"begin-locked",				/* the lock is held, the key not looked up */
	"begin-judged",				/* looked up, nothing written */
	"taken-over",				/* the new lease is written, not committed */
	"end-judged",				/* the fence compared, the end not written */
	"sweep-read",				/* expired rows are locked, not deleted */
	"commit-visible"			/* others see the commit, and wait for its locks */
};

static const char *const guards[] = {"lock", "fence", "commit", "sweep"};

static const char *const actions[] = {"error", "kill", "wait"};

static char *setting_fault = "";
static char *setting_fault_point = "";
static char *setting_guards_off = "";

/* The sweep of sweep_pages, without a look at what it deletes. */
Statement	fault_sweep_unchecked = {
	"WITH expired AS MATERIALIZED (SELECT scope, idempotency_key FROM %1$s.idempotency_store"
	" WHERE ctid OPERATOR(pg_catalog.>=) $1 AND ctid OPERATOR(pg_catalog.<) $2"
	" AND expires_at OPERATOR(pg_catalog.<=) $3"
	" AND (status OPERATOR(pg_catalog.<>) 'PENDING'"
	" OR (lease_expires_at OPERATOR(pg_catalog.>) $3) IS NOT TRUE)"
	" LIMIT $4)"
	", removed AS (DELETE FROM %1$s.idempotency_store AS store USING expired"
	" WHERE store.scope OPERATOR(pg_catalog.=) expired.scope"
	" AND store.idempotency_key OPERATOR(pg_catalog.=) expired.idempotency_key"
	" RETURNING store.ctid AS place)"
	" SELECT pg_catalog.count(*), pg_catalog.max(place) FROM removed",
	4, {TIDOID, TIDOID, TIMESTAMPTZOID, INT8OID},.knows_rows = true
};

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

/* Names separated by commas; those that "is_known" knows. */
static bool
check_list(const char *value, bool (*is_known) (const char *))
{
	char	   *list = pstrdup(value);
	char	   *save;

	for (char *name = strtok_r(list, ", ", &save); name; name = strtok_r(NULL, ", ", &save))
	{
		if (!is_known(name))
		{
			GUC_check_errdetail("\"%s\" is not known.", name);
			return false;
		}
	}
	pfree(list);
	return true;
}

static bool
is_fault(const char *name)
{
	const char *colon = strchr(name, ':');

	return colon != NULL &&
		is_one_of(name, colon - name, points, lengthof(points)) &&
		is_one_of(colon + 1, strlen(colon + 1), actions, lengthof(actions));
}

static bool
is_guard(const char *name)
{
	return is_one_of(name, strlen(name), guards, lengthof(guards));
}

static bool
check_fault(char **value, void **extra, GucSource source)
{
	return check_list(*value, is_fault);
}

static bool
check_guards_off(char **value, void **extra, GucSource source)
{
	return check_list(*value, is_guard);
}

/* Setting it is how a statement comes to a point. */
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

	DefineCustomStringVariable("idempotency.guards_off",
							   "Which guards are taken out.",
							   NULL,
							   &setting_guards_off,
							   "",
							   PGC_SUSET, GUC_NOT_IN_SAMPLE, check_guards_off, NULL, NULL);
}

/* Is the word in a list that was checked, alone or between commas? */
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
		/* each time: looking may have waited for something else meanwhile */
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

bool
fault_guard_stands(const char *name)
{
	Assert(is_guard(name));
	return !is_listed(setting_guards_off, name);
}

#endif							/* IDEM_FAULTS */
