/*
 * delegate.c
 *		Calls that Citus is to send to the node that has the operation.
 *
 * Citus sends a call of a distributed function to the node of one of its
 * arguments, if this argument has the type of the tenants.  The scope is text.
 * So where tenants are no text, each function has a variant with one more
 * argument, the tenant, and the planner calls the variant: the rows of tenant 42
 * are in the scope '42'.
 *
 * Nothing here is needed for the guarantees: a call that Citus does not send is
 * refused by the node that got it.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "nodes/pathnodes.h"
#include "nodes/value.h"
#include "optimizer/clauses.h"
#include "optimizer/optimizer.h"
#include "optimizer/planner.h"
#include "parser/parse_func.h"
#include "parser/parsetree.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "catalog.h"
#include "citus.h"
#include "compat.h"
#include "delegate.h"

#define FUNCTIONS "idem_"

/* Citus plans a generic plan of such a call as a local one, which must not win. */
#define PROHIBITIVE_COST 1e30

/* a call of ours that is all that a query does */
typedef struct SoleCall
{
	FuncExpr   *call;
	char	   *name;
	List	   *arguments;		/* all of them, in their order */
	char	  **argument_names;
	bool		needs_parameters;	/* the scope is a parameter, whose value is not known yet */
} SoleCall;

static planner_hook_type previous_planner = NULL;

/* operations that this transaction has begun on other nodes, less those that it has ended */
static int	open_elsewhere = 0;

/* The only forms that Citus sends: SELECT f(...), and SELECT ... FROM f(...). */
static FuncExpr *
only_call(Query *query)
{
	List	   *from = query->jointree ? query->jointree->fromlist : NIL;
	Node	   *found = NULL;

	if (query->commandType != CMD_SELECT || list_length(from) > 1)
		return NULL;
	if (from == NIL && list_length(query->targetList) == 1)
		found = (Node *) ((TargetEntry *) linitial(query->targetList))->expr;
	else if (from != NIL && IsA(linitial(from), RangeTblRef))
	{
		RangeTblEntry *entry = rt_fetch(((RangeTblRef *) linitial(from))->rtindex, query->rtable);

		if (entry->rtekind == RTE_FUNCTION && list_length(entry->functions) == 1)
			found = ((RangeTblFunction *) linitial(entry->functions))->funcexpr;
	}
	return found != NULL && IsA(found, FuncExpr) ? (FuncExpr *) found : NULL;
}

static void
read_arguments(SoleCall *sole)
{
	HeapTuple	function = SearchSysCache1(PROCOID, ObjectIdGetDatum(sole->call->funcid));
	Oid		   *types;
	char	   *modes;

	if (!HeapTupleIsValid(function))
		elog(ERROR, "cache lookup failed for function %u", sole->call->funcid);
	sole->arguments = expand_function_arguments(sole->call->args, false, sole->call->funcresulttype, function);
	(void) get_func_arg_info(function, &types, &sole->argument_names, &modes);
	ReleaseSysCache(function);
}

static Node *
argument_named(const SoleCall *sole, const char *name)
{
	for (int i = 0; sole->argument_names != NULL && i < list_length(sole->arguments); i++)
	{
		if (strcmp(sole->argument_names[i], name) == 0)
			return list_nth(sole->arguments, i);
	}
	return NULL;
}

/* Is it a call of a function of the extension for one scope, and the store distributed? */
static bool
find_sole_call(Query *query, SoleCall *sole)
{
	const Catalog *catalog;

	memset(sole, 0, sizeof(SoleCall));
	sole->call = only_call(query);
	if (sole->call == NULL)
		return false;
	sole->name = get_func_name(sole->call->funcid);
	if (sole->name == NULL || strncmp(sole->name, FUNCTIONS, strlen(FUNCTIONS)) != 0)
		return false;
	read_arguments(sole);
	if (argument_named(sole, "scope") == NULL)
		return false;
	catalog = catalog_open_if_free(AccessShareLock);
	return catalog != NULL && catalog->store_distributed &&
		strcmp(get_namespace_name(get_func_namespace(sole->call->funcid)), catalog->schema) == 0;
}

/* The value of an expression that needs no row; NULL: it has none yet. */
static Const *
value_of(Node *expression, ParamListInfo parameters)
{
	PlannerGlobal global = {.type = T_PlannerGlobal,.boundParams = parameters};
	PlannerInfo planner = {.type = T_PlannerInfo,.glob = &global};
	Node	   *value = eval_const_expressions(&planner, copyObject(expression));

	return IsA(value, Const) && !((Const *) value)->constisnull ? (Const *) value : NULL;
}

/* The same function with the tenant as its last argument; InvalidOid: there is none. */
static Oid
find_variant(const SoleCall *sole)
{
	List	   *name = list_make2(makeString(get_namespace_name(get_func_namespace(sole->call->funcid))),
								  makeString(sole->name));
	int			count = list_length(sole->arguments);
	Oid		   *types = palloc((count + 1) * sizeof(Oid));

	for (int i = 0; i < count; i++)
		types[i] = exprType(list_nth(sole->arguments, i));
	types[count] = citus_tenant_type();
	return LookupFuncName(name, count + 1, types, true);
}

/* Lets the query call the variant, if the scope is known. */
static void
give_tenant(SoleCall *sole, ParamListInfo parameters)
{
	Oid			variant = find_variant(sole);
	Node	   *scope = argument_named(sole, "scope");
	Const	   *value;

	if (!OidIsValid(variant))
		return;
	value = value_of(scope, parameters);
	sole->needs_parameters = value == NULL;
	if (value == NULL)
		return;
	sole->call->args = lappend(list_copy(sole->arguments), citus_tenant_const(DatumGetTextPP(value->constvalue)));
	sole->call->funcid = variant;
	sole->call->funcformat = COERCE_EXPLICIT_CALL;
}

/* What the call adds to the operations that are open elsewhere, if Citus sends it. */
static int
opens(const SoleCall *sole)
{
	Node	   *lease = argument_named(sole, "lease");

	if (strncmp(sole->name, "idem_begin", 10) == 0)
		return lease == NULL || (IsA(lease, Const) && ((Const *) lease)->constisnull) ? 1 : 0;
	if (strncmp(sole->name, "idem_complete", 13) == 0 ||
		strcmp(sole->name, "idem_fail") == 0 || strcmp(sole->name, "idem_release") == 0)
		return -1;
	return 0;
}

static PlannedStmt *
plan_call(Query *query, const char *text, int options, ParamListInfo parameters)
{
	SoleCall	sole;
	bool		is_ours = IsTransactionState() && find_sole_call(query, &sole);
	PlannedStmt *planned;

	if (is_ours)
		give_tenant(&sole, parameters);
	planned = previous_planner ? previous_planner(query, text, options, parameters) :
		standard_planner(query, text, options, parameters);
	if (is_ours && sole.needs_parameters)
		planned->planTree->total_cost = PROHIBITIVE_COST;
	if (is_ours && IsA(planned->planTree, CustomScan))
		open_elsewhere += opens(&sole);
	return planned;
}

/*
 * Citus commits what one node has written in one phase, and reports a refusal of
 * that node as an error of its own.  With two phases the client gets the error of
 * the guard, with its SQLSTATE.  Called before Citus' own callback, as that one was
 * registered first.
 */
static void
transaction_ends(XactEvent event, void *argument)
{
	if (event == XACT_EVENT_PRE_COMMIT)
	{
		if (open_elsewhere > 0)
			citus_commit_in_two_phases();
	}
	else if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT || event == XACT_EVENT_PREPARE)
		open_elsewhere = 0;
}

/* Only a server with Citus needs this. */
void
delegate_register(void)
{
	if (!citus_is_preloaded())
		return;
	previous_planner = planner_hook;
	planner_hook = plan_call;
	RegisterXactCallback(transaction_ends, NULL);
}
