/*
 * no_memory.c
 *		Lets one allocation of this session fail, the server's own as well as
 *		ours.  Only for test/t/060_out_of_memory.pl.
 *
 * All memory contexts share tables of functions, one for each kind.  In that of
 * the common kind, the functions that allocate are replaced by ones that count.
 */
#include "postgres.h"

#include <sys/mman.h>
#include <unistd.h>

#include "access/xact.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/memnodes.h"
#include "storage/lock.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/memutils.h"

#if PG_VERSION_NUM >= 170000
#include "utils/memutils_internal.h"
#endif

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(fail_allocation);
PG_FUNCTION_INFO_V1(allocation_failed);
PG_FUNCTION_INFO_V1(forget_caches);
PG_FUNCTION_INFO_V1(run_until_error);

static MemoryContextMethods original;
static bool replaced = false;

/* how many allocations are still to succeed; negative: none will fail */
static int	left = -1;
static bool failed = false;

/*
 * Where the server itself does not bear it, nothing fails: while a transaction
 * or a savepoint starts or ends; in the table of its statistics, which grows
 * before it has the memory; in its settings, where it ends the session; and where a savepoint catches that there was no
 * memory for the owners of a local lock, and the lock is taken once more.
 */
static bool
is_spared(MemoryContext context, Size size)
{
	return CritSectionCount > 0 || ExitOnAnyError ||
		(IsTransactionOrTransactionBlock() && !IsTransactionState()) ||
		strncmp(context->name, "PgStat", 6) == 0 ||
		strcmp(context->name, "GUCMemoryContext") == 0 ||
		(context == TopMemoryContext && size == 8 * sizeof(LOCALLOCKOWNER));
}

static bool
fails_now(MemoryContext context, Size size)
{
	if (left < 0 || is_spared(context, size) || left-- > 0)
		return false;
	failed = true;
	return true;
}

#if PG_VERSION_NUM >= 170000

static void *
counted_alloc(MemoryContext context, Size size, int flags)
{
	if (fails_now(context, size))
		return MemoryContextAllocationFailure(context, size, flags);
	return original.alloc(context, size, flags);
}

static void *
counted_realloc(void *pointer, Size size, int flags)
{
	if (fails_now(GetMemoryChunkContext(pointer), size))
		return MemoryContextAllocationFailure(GetMemoryChunkContext(pointer), size, flags);
	return original.realloc(pointer, size, flags);
}

#else

static void *
counted_alloc(MemoryContext context, Size size)
{
	return fails_now(context, size) ? NULL : original.alloc(context, size);
}

#if PG_VERSION_NUM >= 160000
static void *
counted_realloc(void *pointer, Size size)
{
	return fails_now(GetMemoryChunkContext(pointer), size) ? NULL : original.realloc(pointer, size);
}
#else
static void *
counted_realloc(MemoryContext context, void *pointer, Size size)
{
	return fails_now(GetMemoryChunkContext(pointer), size) ? NULL : original.realloc(context, pointer, size);
}
#endif

#endif

static void
replace(void)
{
	MemoryContextMethods *methods = unconstify(MemoryContextMethods *, TopMemoryContext->methods);
	uintptr_t	page = sysconf(_SC_PAGESIZE);
	uintptr_t	start = (uintptr_t) methods & ~(page - 1);
	uintptr_t	end = (uintptr_t) (methods + 1);

	if (mprotect((void *) start, end - start, PROT_READ | PROT_WRITE) != 0)
		elog(ERROR, "could not make the functions of memory contexts writable: %m");
	/* the server describes all of its memory there each time */
	if (freopen("/dev/null", "w", stderr) == NULL)
		elog(ERROR, "could not open /dev/null: %m");
	original = *methods;
	methods->alloc = counted_alloc;
	methods->realloc = counted_realloc;
	replaced = true;
}

/* fail_allocation(n): the n-th allocation from now on fails; 0: none does */
Datum
fail_allocation(PG_FUNCTION_ARGS)
{
	if (!replaced)
		replace();
	failed = false;
	left = PG_GETARG_INT32(0) - 1;
	PG_RETURN_VOID();
}

/*
 * run_until_error(sql text): runs it; after an error no more allocations fail.  Who catches an
 * error may delete the memory that its calls have used, so it must not be the current one.
 */
Datum
run_until_error(PG_FUNCTION_ARGS)
{
	char	   *sql = text_to_cstring(PG_GETARG_TEXT_PP(0));

	SPI_connect();
	PG_TRY();
	{
		SPI_execute(sql, false, 0);
	}
	PG_CATCH();
	{
		left = -1;
		if (CurrentMemoryContext != ErrorContext)
			elog(ERROR, "an error was raised again in memory context \"%s\"", CurrentMemoryContext->name);
		PG_RE_THROW();
	}
	PG_END_TRY();
	left = -1;
	SPI_finish();
	PG_RETURN_VOID();
}

/* Has it failed?  From now on none does. */
Datum
allocation_failed(PG_FUNCTION_ARGS)
{
	left = -1;
	PG_RETURN_BOOL(failed);
}

/* As if everything that is remembered of the catalogs had changed. */
Datum
forget_caches(PG_FUNCTION_ARGS)
{
	InvalidateSystemCaches();
	PG_RETURN_VOID();
}
