/*
 * keyring.c
 *		The keys of idempotency.seal_key_file: a line each, a name and a secret.
 *		The last one is the newest.
 *
 * The file is read by the server, never through SQL, and read again when it
 * has changed.  It must be the server's own and closed to others, as the key
 * file of a certificate must be.  No message repeats a line of it.
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "catalog/pg_authid.h"
#include "common/string.h"
#include "miscadmin.h"
#include "storage/fd.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "base/compat.h"
#include "base/settings.h"
#include "seal/keyring.h"

#define LONGEST_NAME 63
#define SHORTEST_SECRET 32
#define LARGEST_FILE 65536

#ifdef __APPLE__
#define NANOSECONDS(status) ((status).st_mtimespec.tv_nsec)
#else
#define NANOSECONDS(status) ((status).st_mtim.tv_nsec)
#endif

static MemoryContext keys_context = NULL;
static SealKey *keys = NULL;
static int	key_count = 0;
static struct stat read_from;	/* the file as it was when it was read */

/* Adds the path of the file: for roles that may see the setting, and for the server's log. */
static int
detail_of_line(int line)
{
	bool		may_see = has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_SETTINGS);

	if (may_see && line > 0)
		return errdetail("The problem is in or near line %d of file \"%s\".", line, setting_seal_key_file);
	if (may_see)
		return errdetail("The file is \"%s\".", setting_seal_key_file);
	if (line > 0)
		(void) errdetail("The problem is in or near line %d.", line);
	return errdetail_log("The file is \"%s\", line %d.", setting_seal_key_file, line);
}

pg_noreturn static void
bad_file(const char *why, int line)
{
	ereport(ERROR,
			(errcode(ERRCODE_CONFIG_FILE_ERROR),
			 errmsg("idempotency.seal_key_file cannot be used: %s", why),
			 detail_of_line(line),
			 errhint("The file has one line \"name secret\" for each key, the newest key last. A secret has at least %d characters. Make it with \"openssl rand -hex 32\".",
					 SHORTEST_SECRET)));
}

pg_noreturn static void
file_failed(const char *what)
{
	ereport(ERROR,
			(errcode_for_file_access(),
			 errmsg("could not %s the file of idempotency.seal_key_file: %m", what),
			 detail_of_line(0),
			 errhint("Put the file there with every key that stored operations need, and make it readable for the server. Or correct the setting. Until then, no response is stored, neither sealed nor in clear.")));
}

/* Only the server's user or root may write the file, and only the server may read it. */
static void
check_access(const struct stat *status)
{
	if (!S_ISREG(status->st_mode))
		bad_file("it is not a regular file", 0);
	if (status->st_uid != geteuid() && status->st_uid != 0)
		bad_file("it belongs neither to the server's user nor to root", 0);
	if ((status->st_uid == geteuid() && (status->st_mode & (S_IRWXG | S_IRWXO)) != 0) ||
		(status->st_uid == 0 && (status->st_mode & (S_IWGRP | S_IXGRP | S_IRWXO)) != 0))
		ereport(ERROR,
				(errcode(ERRCODE_CONFIG_FILE_ERROR),
				 errmsg("idempotency.seal_key_file cannot be used: others may read or write it"),
				 detail_of_line(0),
				 errhint("Its permissions must be u=rw (0600) or less if it belongs to the server's user, or u=rw,g=r (0640) or less if it belongs to root.")));
}

static char *
read_file(int file, const struct stat *status)
{
	char	   *contents;
	int			length = 0;
	int			got;

	if (status->st_size > LARGEST_FILE)
		bad_file("it is too large", 0);
	contents = palloc(LARGEST_FILE + 1);
	while (length < LARGEST_FILE &&
		   (got = read(file, contents + length, LARGEST_FILE - length)) != 0)
	{
		if (got < 0)
			file_failed("read");
		length += got;
	}
	contents[length] = '\0';
	if (strlen(contents) != length)
		bad_file("it is not a text", 0);
	/* its writer may not be ready: a part of a secret can be long enough */
	if (length > 0 && contents[length - 1] != '\n')
		bad_file("its last line does not end with a newline", 0);
	return contents;
}

static bool
is_name(const char *name)
{
	int			length = strlen(name);

	return length <= LONGEST_NAME && pg_is_ascii(name);
}

static bool
is_known(const char *name)
{
	for (int i = 0; i < key_count; i++)
	{
		if (strcmp(keys[i].name, name) == 0)
			return true;
	}
	return false;
}

static void
add_key(char *name, char *secret, int line)
{
	if (!is_name(name))
		bad_file("the name of a key is too long or not in ASCII", line);
	if (secret == NULL || strlen(secret) < SHORTEST_SECRET)
		bad_file("a secret is too short", line);
	if (strtok(NULL, " \t\r") != NULL)
		bad_file("a line has more than a name and a secret", line);
	if (is_known(name))
		bad_file("a name occurs twice", line);
	keys = repalloc(keys, (key_count + 1) * sizeof(SealKey));
	keys[key_count++] = (SealKey)
	{
		.name = name,.secret = secret
	};
}

static void
read_keys(char *contents)
{
	int			number = 0;
	char	   *line;

	keys = palloc(sizeof(SealKey));
	while ((line = strsep(&contents, "\n")) != NULL)
	{
		char	   *name = strtok(line, " \t\r");

		number++;
		if (name != NULL && name[0] != '#')
			add_key(name, strtok(NULL, " \t\r"), number);
	}
	if (key_count == 0)
		bad_file("it has no key", 0);
}

static void
forget_keys(void)
{
	for (int i = 0; i < key_count; i++)
		explicit_bzero(keys[i].secret, strlen(keys[i].secret));
	key_count = 0;
	memset(&read_from, 0, sizeof(read_from));
	if (keys_context == NULL)
		keys_context = AllocSetContextCreate(TopMemoryContext, "idempotency seal keys",
											 ALLOCSET_SMALL_SIZES);
	else
		MemoryContextReset(keys_context);
}

static bool
is_unchanged(const struct stat *status)
{
	return key_count > 0 &&
		status->st_dev == read_from.st_dev && status->st_ino == read_from.st_ino &&
		status->st_size == read_from.st_size &&
		status->st_mtime == read_from.st_mtime && NANOSECONDS(*status) == NANOSECONDS(read_from) &&
		status->st_mode == read_from.st_mode && status->st_uid == read_from.st_uid;
}

/* Reads the file, whose status is given, into a list of keys. */
static void
read_anew(const char *path)
{
	MemoryContext caller = CurrentMemoryContext;
	struct stat status;
	int			file;

	forget_keys();
	file = OpenTransientFile(path, O_RDONLY | PG_BINARY);
	if (file < 0)
		file_failed("open");
	if (fstat(file, &status) < 0)
		file_failed("look at");
	check_access(&status);
	MemoryContextSwitchTo(keys_context);
	PG_TRY();
	{
		read_keys(read_file(file, &status));
	}
	PG_CATCH();
	{
		/* an incomplete list is not used */
		key_count = 0;
		PG_RE_THROW();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(caller);
	CloseTransientFile(file);
	read_from = status;
}

static void
refresh_keyring(void)
{
	struct stat status;

	/* a relative path is one in the data directory, as for all settings */
	if (stat(setting_seal_key_file, &status) < 0)
		file_failed("open");
	/* opening anything but a regular file could block */
	if (!S_ISREG(status.st_mode))
		bad_file("it is not a regular file", 0);
	if (!is_unchanged(&status))
		read_anew(setting_seal_key_file);
}

/* The newest key of a keyring that is used. */
const SealKey *
keyring_read_newest(void)
{
	refresh_keyring();
	return &keys[key_count - 1];
}

/*
 * The key of that name; an error if the file has none, as what it sealed
 * cannot be opened.
 */
const SealKey *
keyring_find(const text *name)
{
	char	   *wanted = text_to_cstring(name);

	if (keyring_is_used())
	{
		refresh_keyring();
		for (int i = 0; i < key_count; i++)
		{
			if (strcmp(keys[i].name, wanted) == 0)
				return &keys[i];
		}
	}
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("key \"%s\" is not in idempotency.seal_key_file", wanted),
			 errdetail("Stored operations were sealed or fingerprinted with it."),
			 errhint("Put the line of this key back into the file, before that of the newest key.")));
}
