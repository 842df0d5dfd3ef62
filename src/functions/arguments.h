/*
 * arguments.h
 *		Reads and checks the arguments of SQL functions.
 */
#ifndef IDEM_ARGUMENTS_H
#define IDEM_ARGUMENTS_H

#include "postgres.h"

#include "fmgr.h"

#include "base/compat.h"
#include "base/idempotency.h"
#include "operation/operation.h"

/* of no argument of the function */
#define NO_ARGUMENT (-1)

/* a function that begins an operation, and the positions of its arguments */
typedef struct BeginArguments
{
	const char *function;
	int			key;
	int			request;
	int			scope;
	int			request_hash;
	int			lease;			/* NO_ARGUMENT: never leased */
	int			wait;
	int			max_attempts;
	bool		request_is_used;	/* not only hashed: the hash may be given beside it */
} BeginArguments;

extern void require_unrestricted(const char *function);
extern void require_writable(const char *function);
extern void require_argument(FunctionCallInfo fcinfo, int argument, const char *name);
extern text *required_text(FunctionCallInfo fcinfo, int argument, const char *name);
extern text *scope_argument(FunctionCallInfo fcinfo, int argument);
extern text **text_array(FunctionCallInfo fcinfo, int argument, const char *name,
						 const char *element, int *count);
extern OperationName name_arguments(FunctionCallInfo fcinfo, int key, int scope);
extern void check_name(text *value, const char *name, bool may_be_empty);

extern int64 optional_duration(FunctionCallInfo fcinfo, int argument,
							   const char *name, bool may_be_zero);
extern int64 required_duration(FunctionCallInfo fcinfo, int argument,
							   const char *name, bool may_be_zero);

extern int64 required_bigint(FunctionCallInfo fcinfo, int argument, const char *name);
extern int64 checked_fence(int64 fence);
extern int64 optional_fence(FunctionCallInfo fcinfo, int argument);
extern int32 optional_count(FunctionCallInfo fcinfo, int argument,
							const char *name, int32 absent);
extern int32 positive_count(FunctionCallInfo fcinfo, int argument, const char *name);
extern bool required_bool(FunctionCallInfo fcinfo, int argument, const char *name);
extern bytea *checked_hash(Datum value);
pg_noreturn extern void refuse_request_and_hash(void);
extern BeginRequest begin_arguments(FunctionCallInfo fcinfo, const BeginArguments *positions);
extern Response response_arguments(FunctionCallInfo fcinfo, int payload, int code);

#endif							/* IDEM_ARGUMENTS_H */
