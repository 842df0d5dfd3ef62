/*
 * memory_errors.c
 *		Mistakes for test/memcheck, which has to find them.
 */
#include "postgres.h"

#include "fmgr.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(read_after_pfree);
PG_FUNCTION_INFO_V1(decide_on_nothing);
PG_FUNCTION_INFO_V1(write_past_end);

/* Keeps the compiler from knowing what the memory holds. */
static char *
allocate(void)
{
	char	   *volatile memory = palloc(24);

	return memory;
}

Datum
read_after_pfree(PG_FUNCTION_ARGS)
{
	char	   *memory = allocate();

	memory[0] = 'x';
	pfree(memory);
	PG_RETURN_BOOL(*(volatile char *) memory == 'x');
}

/* The decision is on bytes that nobody wrote. */
Datum
decide_on_nothing(PG_FUNCTION_ARGS)
{
	if (*(volatile char *) allocate() == 'x')
		PG_RETURN_BOOL(true);
	PG_RETURN_BOOL(false);
}

Datum
write_past_end(PG_FUNCTION_ARGS)
{
	((volatile char *) allocate())[24] = 'x';
	PG_RETURN_BOOL(true);
}
