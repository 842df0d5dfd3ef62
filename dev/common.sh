# shellcheck shell=bash
# Functions and variables that the scripts in dev/ and test/ share: messages, the
# path of the tree, and the PostgreSQL to use.  Sourced, never run.

# Without this, our make would get the flags and the job server of an outer make.
unset MAKEFLAGS MFLAGS MAKELEVEL

# shellcheck disable=SC2034  # used by the scripts that source this file
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)

say() {
	printf '%s\n' "$*" >&2
}

die() {
	say "${0##*/}: $*"
	exit 1
}

# True when this pg_config belongs to a server, 15 or newer, that extensions
# can be built for: clients bring a pg_config too, and Debian's server comes
# without headers.
is_complete() {
	local version
	version=$("$1" --version 2>/dev/null) || return 1
	version=${version#PostgreSQL }
	[[ ${version%%[!0-9]*} -ge 15 &&
		-x $("$1" --bindir)/postgres && -e $("$1" --pgxs) &&
		-e $("$1" --includedir-server)/postgres.h ]]
}

# Prints the pg_config to use: the caller's; else that of 15, where results
# are compared; else the newest.  Fails when there is none.
find_pg_config() {
	local candidate
	if [[ -n ${PG_CONFIG:-} ]]; then
		is_complete "$PG_CONFIG" && command -v "$PG_CONFIG"
		return
	fi
	while read -r candidate; do
		if [[ -n $candidate ]] && is_complete "$candidate"; then
			printf '%s\n' "$candidate"
			return
		fi
	done < <(list_pg_configs)
	return 1
}

list_pg_configs() {
	local installed=(/usr/lib/postgresql/*/bin/pg_config
		/usr/pgsql-*/bin/pg_config)
	printf '%s\n' /usr/lib/postgresql/15/bin/pg_config
	printf '%s\n' "${installed[@]}" | sort -rV
	command -v pg_config || true
}
