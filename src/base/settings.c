/*
 * settings.c
 *		Every setting of the extension, sorted by name.
 *
 * Any role may change settings that concern only the session's own operations.
 * Only the administrator may change settings that protect the server or its
 * storage.
 */
#include "postgres.h"

#include <limits.h>

#include "access/parallel.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "utils/guc.h"
#include "utils/varlena.h"

#include "base/idempotency.h"
#include "base/settings.h"

bool		setting_accept_clear_responses = false;
int			setting_end_wait = 10000;
int			setting_gc_batch_size = 10000;
char	   *setting_gc_databases = "*";
bool		setting_gc_enabled = true;
int			setting_gc_interval = 10;
int			setting_lost_attempts_tracked = 10000;
int			setting_max_attempts = 0;
int			setting_max_lost_attempts = 0;
int			setting_max_operations = 1000;
int			setting_max_response_size = 1024 * 1024;
int			setting_retention = 24 * 60 * 60;
char	   *setting_seal_key_file = "";

/* A list of names, or "*" for every database. */
static bool
check_databases(char **value, void **extra, GucSource source)
{
	char	   *list;
	List	   *names;
	bool		valid;

	if (strcmp(*value, "*") == 0)
		return true;
	list = pstrdup(*value);
	valid = SplitIdentifierString(list, ',', &names);
	if (!valid)
		GUC_check_errdetail("List syntax is invalid.");
	pfree(list);
	return valid;
}

/*
 * If the library is loaded late, a client may have given a setting with its
 * connection, in place of the server's own.  Such a setting is refused only
 * now, and the value of the server's files counts again.
 *
 * Mistakes in the files go to the server's log only.  The messages
 * have paths and parts of lines in them, and the session may be anybody's.
 */
static void
read_files(ConfigVariable **head)
{
	ConfigVariable *tail = NULL;

	if (!ParseConfigFile(ConfigFileName, true, NULL, 0, 0, LOG_SERVER_ONLY, head, &tail) ||
		!ParseConfigFile(PG_AUTOCONF_FILENAME, false, NULL, 0, 0, LOG_SERVER_ONLY, head, &tail))
		ereport(ERROR,
				(errcode(ERRCODE_CONFIG_FILE_ERROR),
				 errmsg("could not read the settings of extension \"%s\" from the configuration files",
						EXTENSION_NAME),
				 errhint("The server's log has the details.")));
}

/* The server itself says at level LOG that a file is missing, with its path. */
static ConfigVariable *
read_files_quietly(void)
{
	int			wanted = client_min_messages;
	ConfigVariable *items = NULL;

	client_min_messages = ERROR;
	PG_TRY();
	{
		read_files(&items);
	}
	PG_FINALLY();
	{
		client_min_messages = wanted;
	}
	PG_END_TRY();
	return items;
}

/*
 * While a parallel query runs, the server gives no setting a value.  So what the session or
 * the server has set would be lost for the rest of the session, also the file of the keys.
 */
static void
refuse_in_parallel(const char *name)
{
	if (IsInParallelMode())
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TRANSACTION_STATE),
				 errmsg("cannot load the library of extension \"%s\" in a parallel query while \"%s\" is set",
						EXTENSION_NAME, name),
				 errhint("Preload the library, or call one of its functions before the query.")));
}

static void
apply_file_settings(ConfigVariable *items)
{
	for (ConfigVariable *item = items; item; item = item->next)
	{
		if (item->ignore || pg_strncasecmp(item->name, EXTENSION_NAME ".", strlen(EXTENSION_NAME) + 1) != 0)
			continue;
		refuse_in_parallel(item->name);
		(void) set_config_option(item->name, item->value, PGC_SIGHUP, PGC_S_FILE,
								 GUC_ACTION_SET, true, LOG_SERVER_ONLY, false);
	}
	FreeConfigVariables(items);
}

/* If an earlier attempt to load the library failed, its settings are defined already. */
static bool
is_defined(const char *name)
{
	return GetConfigOption(name, true, false) != NULL &&
		(GetConfigOptionFlags(name, true) & GUC_CUSTOM_PLACEHOLDER) == 0;
}

/* Is there a value that the server would not let us keep? */
static void
require_no_loss(const char *name)
{
	const char *value = GetConfigOption(name, true, false);

	if (value != NULL && *value != '\0')
		refuse_in_parallel(name);
}

#define DEFINE(kind, name, ...) \
	do { \
		if (!is_defined(name)) \
		{ \
			require_no_loss(name); \
			DefineCustom##kind##Variable(name, __VA_ARGS__); \
		} \
	} while (0)

static void
define_sealing(void)
{
	DEFINE(Bool, "idempotency.accept_clear_responses",
		   "Replays responses that are stored in clear though there is a seal key.",
		   "For the time between the first key and the end of idem_reseal.",
		   &setting_accept_clear_responses,
		   false,
		   PGC_SUSET, 0, NULL, NULL, NULL);

	DEFINE(String, "idempotency.seal_key_file",
		   "File of the keys that responses are sealed with.",
		   "Without it they are stored as they are.",
		   &setting_seal_key_file,
		   "",
		   PGC_SIGHUP, GUC_SUPERUSER_ONLY, NULL, NULL, NULL);
}

static void
define_collection(void)
{
	DEFINE(Int, "idempotency.gc_batch_size",
		   "How many expired records the collector removes in one transaction.",
		   NULL,
		   &setting_gc_batch_size,
		   10000, 1, 1000000,
		   PGC_SIGHUP, 0, NULL, NULL, NULL);

	DEFINE(String, "idempotency.gc_databases",
		   "Which databases the collector visits: names separated by commas, or *.",
		   NULL,
		   &setting_gc_databases,
		   "*",
		   PGC_SIGHUP, GUC_LIST_INPUT, check_databases, NULL, NULL);

	DEFINE(Bool, "idempotency.gc_enabled",
		   "Lets the background collector work.",
		   "It needs the library in shared_preload_libraries.",
		   &setting_gc_enabled,
		   true,
		   PGC_SIGHUP, 0, NULL, NULL, NULL);

	DEFINE(Int, "idempotency.gc_interval",
		   "How long the collector sleeps after a round through the databases.",
		   NULL,
		   &setting_gc_interval,
		   10, 1, 86400,
		   PGC_SIGHUP, GUC_UNIT_S, NULL, NULL, NULL);
}

static void
define_operations(void)
{
	DEFINE(Int, "idempotency.end_wait",
		   "How long an end by fence waits for the lock of its operation.",
		   "Zero means not at all.",
		   &setting_end_wait,
		   10000, 0, INT_MAX,
		   PGC_USERSET, GUC_UNIT_MS, NULL, NULL, NULL);

	/* without preloading there is no memory for it, and no such setting can be made */
	DEFINE(Int, "idempotency.lost_attempts_tracked",
		   "How many operations with lost attempts the server remembers.",
		   "Zero means none. It needs the library in shared_preload_libraries.",
		   &setting_lost_attempts_tracked,
		   10000, 0, 1000000,
		   process_shared_preload_libraries_in_progress ? PGC_POSTMASTER : PGC_SIGHUP,
		   0, NULL, NULL, NULL);

	DEFINE(Int, "idempotency.max_attempts",
		   "How many attempts an operation may have.",
		   "Zero means no limit. An argument of idem_begin overrides it.",
		   &setting_max_attempts,
		   0, 0, INT_MAX,
		   PGC_USERSET, 0, NULL, NULL, NULL);

	DEFINE(Int, "idempotency.max_lost_attempts",
		   "How many attempts of an operation may be lost with their transaction.",
		   "Zero means no limit. It needs the library in shared_preload_libraries.",
		   &setting_max_lost_attempts,
		   0, 0, INT_MAX,
		   PGC_USERSET, 0, NULL, NULL, NULL);

	DEFINE(Int, "idempotency.max_operations_per_transaction",
		   "How many operations one transaction may begin or end.",
		   "Each holds an entry of the shared lock table until the transaction ends.",
		   &setting_max_operations,
		   1000, 1, 1000000,
		   PGC_SUSET, 0, NULL, NULL, NULL);

	DEFINE(Int, "idempotency.max_response_size",
		   "How large a stored response may be: payload, headers and body together.",
		   NULL,
		   &setting_max_response_size,
		   1024 * 1024, 0, 512 * 1024 * 1024,
		   PGC_SUSET, GUC_UNIT_BYTE, NULL, NULL, NULL);

	DEFINE(Int, "idempotency.retention",
		   "How long an ended operation is remembered.",
		   "An argument of idem_complete, idem_fail or idem_call overrides it.",
		   &setting_retention,
		   24 * 60 * 60, 1, INT_MAX,
		   PGC_USERSET, GUC_UNIT_S, NULL, NULL, NULL);
}

void
settings_define(void)
{
	ConfigVariable *items = NULL;

	/* what may run in a parallel worker uses no setting */
	if (IsParallelWorker() && IsInParallelMode())
		return;
	/* before anything is defined: a call that fails here can be tried again */
	if (!process_shared_preload_libraries_in_progress)
		items = read_files_quietly();
	define_sealing();
	define_collection();
	define_operations();
	MarkGUCPrefixReserved("idempotency");
	apply_file_settings(items);
}
