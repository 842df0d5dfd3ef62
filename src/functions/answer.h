/*
 * answer.h
 *		An answer as a value of type idem_operation.
 */
#ifndef IDEM_ANSWER_H
#define IDEM_ANSWER_H

#include "postgres.h"

#include "access/tupdesc.h"
#include "utils/tuplestore.h"

#include "operation/operation.h"

extern Datum answer_to_datum(const Answer *answer);
extern void answer_to_tuplestore(const Answer *answer, Tuplestorestate *store,
								 TupleDesc descriptor);
extern OperationName name_of_operation(Datum operation, int64 *fence);

#endif							/* IDEM_ANSWER_H */
