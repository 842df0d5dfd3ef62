/*
 * citus_delegate.c
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
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "nodes/pathnodes.h"
#include "optimizer/clauses.h"
#include "optimizer/optimizer.h"
#include "optimizer/planner.h"
#include "parser/parsetree.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "base/compat.h"
#include "citus/citus.h"
#include "citus/remote_operations.h"
#include "functions/citus_delegate.h"
#include "schema/catalog.h"

#define FUNCTIONS "idem_"

/* Citus makes a local plan of such a call without a scope: the server must not choose it. */
#define PROHIBITIVE_COST 1e30

/* a call of ours that is all that a query does */
typedef struct SoleCall
{
	FuncExpr   *call;
	char	   *name;
	List	   *arguments;		/* all of them, in their order */
	char	  **argument_names;
	Const	   *scope;			/* NULL: a parameter, whose value is not known yet */
} SoleCall;

static planner_hook_type previous_planner = NULL;

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

static char *
schema_of(const SoleCall *sole)
{
	return get_namespace_name(get_func_namespace(sole->call->funcid));
}

static const text *
scope_of(const SoleCall *sole)
{
	return DatumGetTextPP(sole->scope->constvalue);
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
	return catalog != NULL && catalog->store_kind == STORE_DISTRIBUTED &&
		catalog_has_function(sole->call->funcid);
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
	int			count = list_length(sole->arguments);
	Oid		   *types = palloc((count + 1) * sizeof(Oid));

	for (int i = 0; i < count; i++)
		types[i] = exprType(list_nth(sole->arguments, i));
	types[count] = citus_tenant_type();
	return catalog_find_function(schema_of(sole), sole->name, count + 1, types);
}

/* Lets the query call the variant, if the scope is known. */
static void
give_tenant(SoleCall *sole, ParamListInfo parameters)
{
	Oid			variant = find_variant(sole);

	sole->scope = value_of(argument_named(sole, "scope"), parameters);
	if (!OidIsValid(variant) || sole->scope == NULL)
		return;
	sole->call->args = lappend(list_copy(sole->arguments), citus_tenant_const(scope_of(sole)));
	sole->call->funcid = variant;
	sole->call->funcformat = COERCE_EXPLICIT_CALL;
}

/* Citus sends the call: does that begin or end an operation on another node? */
static void
note_sent(const SoleCall *sole)
{
	Node	   *lease = argument_named(sole, "lease");
	bool		is_leased = lease != NULL && !(IsA(lease, Const) && ((Const *) lease)->constisnull);

	if (strcmp(sole->name, "idem_begin_batch") == 0)
		remote_operation_begun(schema_of(sole), scope_of(sole), true);
	else if (strcmp(sole->name, "idem_begin") == 0 && !is_leased)
		remote_operation_begun(schema_of(sole), scope_of(sole), false);
	else if (strncmp(sole->name, "idem_complete", 13) == 0 ||
			 strcmp(sole->name, "idem_fail") == 0 || strcmp(sole->name, "idem_release") == 0)
		remote_operation_ended();
}

static PlannedStmt *
plan_call(Query *query, const char *text, int options, ParamListInfo parameters EXPLAIN_PARAMETER)
{
	SoleCall	sole;
	bool		is_ours = IsTransactionState() && find_sole_call(query, &sole);
	PlannedStmt *planned;

	if (is_ours)
		give_tenant(&sole, parameters);
	planned = previous_planner ? previous_planner(query, text, options, parameters EXPLAIN_ARGUMENT) :
		standard_planner(query, text, options, parameters EXPLAIN_ARGUMENT);
	if (is_ours && sole.scope == NULL)
		planned->planTree->total_cost = PROHIBITIVE_COST;
	else if (is_ours && IsA(planned->planTree, CustomScan))
		note_sent(&sole);
	return planned;
}

/* Only a server with Citus needs this. */
void
delegate_register(void)
{
	if (!citus_is_preloaded())
		return;
	previous_planner = planner_hook;
	planner_hook = plan_call;
	remote_operations_register();
}
