/*
 * statement.h
 *		Runs one SQL statement on the extension's tables.
 */
#ifndef IDEM_STATEMENT_H
#define IDEM_STATEMENT_H

#include "postgres.h"

#include "executor/spi.h"
#include "utils/snapshot.h"

#include "schema/catalog.h"
#include "schema/record.h"

#define STATEMENT_PARAMETERS (RECORD_COLUMNS + 1)

typedef struct Statement
{
	const char *text;			/* %1$s is the table of the store, or else the extension's schema */
	int			count;			/* of parameters */
	Oid			types[STATEMENT_PARAMETERS];	/* InvalidOid: idempotency_status */
	bool		knows_rows;		/* their positions or keys: no need to read the table */
	bool		in_pg_catalog;	/* no other schema is searched: operators need no schema in the text */
	CatalogTable table;			/* the only one that it names, but for those of the server */
	Oid			store_table;	/* the store or a table of it, if it names that instead */

	/* the runner's own */
	SPIPlanPtr	plan;
	Oid			relation;		/* which has the table's name, and is locked */
	uint64		generation;		/* of the catalog that the plan is for */
	Oid			planned_for;	/* the store_table of the plan */
	bool		is_running;
	struct Statement *inner;	/* for a call while it runs */
	struct Statement *next;		/* that has a plan */
} Statement;

extern void statement_register(void);
extern uint64 statement_run(Statement *wanted, const Catalog *catalog,
							Datum *values, const bool *nulls, Snapshot snapshot);
extern Datum statement_column(int row, int column, bool *is_null);
extern void statement_columns(int row, Datum *values, bool *nulls);
extern void statement_finish(void);

#endif							/* IDEM_STATEMENT_H */
