/*
 * visit.h
 *		The data that the launcher and its workers exchange: see visit.c.
 */
#ifndef IDEM_VISIT_H
#define IDEM_VISIT_H

#include "postgres.h"

/* how long a worker stays in a database; it leaves by itself */
#define VISIT_MICROSECONDS INT64CONST(2000000)

typedef enum VisitResult
{
	VISIT_FAILED,				/* unless the worker reports another result */
	VISIT_DONE,
	VISIT_MORE					/* there is a backlog: come again soon */
} VisitResult;

/* what a worker is started with, in bgw_extra */
typedef struct Visit
{
	Oid			database;
	uint32		number;
} Visit;

/* the launcher's side */
extern Visit visit_announce(Oid database);
extern VisitResult visit_result(void);
extern bool visit_is_possible(Oid database);
extern void visit_cancel(Oid database);
extern bool visit_is_long(Oid database);

/* the worker's side */
extern bool visit_begin(const Visit *visit);
extern void visit_report(const Visit *visit, VisitResult result);
extern bool visit_is_cancelled(void);
extern void visit_takes_long(bool takes_long);

extern bool visit_nap(int64 microseconds, uint32 wait_event);

#endif							/* IDEM_VISIT_H */
