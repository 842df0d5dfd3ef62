# shellcheck shell=bash
# What the scripts in dev/ and test/ share: messages, the path of the tree, the
# PostgreSQL to use, copies of the tree, and a command that gets our signals.
# Sourced, never run.

# Without this, our make would get the flags and the job server of an outer make.
unset MAKEFLAGS MFLAGS MAKELEVEL

# shellcheck disable=SC2034  # used by the scripts that source this file
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
# where what took long to make is kept
# shellcheck disable=SC2034
cache=${IDEMPOTENCY_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/idempotency}

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
	[[ $(major_version "$1" 2>/dev/null) -ge 15 &&
		-x $("$1" --bindir)/postgres && -e $("$1" --pgxs) &&
		-e $("$1" --includedir-server)/postgres.h ]]
}

# major_version PG_CONFIG: 15, say.
major_version() {
	local version
	version=$("$1" --version) || return 1
	version=${version#PostgreSQL }
	echo "${version%%[!0-9]*}"
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

# Prints the pg_config of a server whose headers are not installed, but whose package
# of headers dev/provision keeps.
find_bare_server() {
	local candidate
	[[ -z ${PG_CONFIG:-} ]] || return 1
	while read -r candidate; do
		if [[ -x ${candidate%/*}/postgres ]] && headers_package "$candidate" >/dev/null; then
			printf '%s\n' "$candidate"
			return
		fi
	done < <(list_pg_configs)
	return 1
}

# headers_package PG_CONFIG
headers_package() {
	local version
	version=$(major_version "$1" 2>/dev/null) && [[ $version -ge 15 ]] &&
		compgen -G "$cache/postgresql-server-dev-${version}_*.deb" | head -n 1 | grep .
}

# ---- Debian ----

# The versions of PostgreSQL that are supported, and tested.
# shellcheck disable=SC2034
supported=(15 17 18 19)
# for messages: 15|17|18|19
# shellcheck disable=SC2034
any_version=$(IFS='|'; echo "${supported[*]}")

# suite_of VERSION: the Debian release that has this PostgreSQL.
suite_of() {
	case $1 in
		15) echo bookworm ;;
		17) echo trixie ;;
		18) echo forky ;;
		19) echo experimental ;;
		*) return 1 ;;
	esac
}

# cron_package VERSION: pg_cron for this PostgreSQL; nothing where Debian has none yet.
cron_package() {
	[[ $1 -ge 19 ]] || echo "postgresql-$1-cron"
}

# The mirror that this machine's apt uses, by what the lists say of themselves, as
# a mirror may have any name.
find_mirror() {
	local mirror
	mirror=$(list_mirrors)
	if [[ -z $mirror ]]; then
		apt-get -qq update >&2
		mirror=$(list_mirrors)
	fi
	[[ -n $mirror ]] || die 'the apt sources of this machine name no mirror of Debian'
	echo "$mirror"
}

list_mirrors() {
	# shellcheck disable=SC2016  # for apt to expand
	apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' \
		'Origin: Debian' 'Label: Debian' | sed -n 1p
}

# ---- copies of the tree ----

# copy_tree DIRECTORY: products of a build stay behind, they may be another
# server's, and so do packages.
copy_tree() {
	local status=0
	tar -C "$repo" -cf "$1.tar" --exclude=./.git --exclude=./dist --exclude='*.o' \
		--exclude='*.bc' --exclude='*.so' . 2>/dev/null || status=$?
	# 1: a file changed while it was read, which editors may do.
	[[ $status -le 1 ]] || die "cannot copy the tree"
	mkdir -p "$1"
	tar -C "$1" -xf "$1.tar" --no-same-owner
	rm "$1.tar"
}

drop=()       # prefix that gives up root

# drop_root HOME: a server refuses to run as root. So root's servers, and what is
# built and run for them, run as "postgres", or "nobody".
drop_root() {
	local user=postgres
	[[ $EUID -eq 0 ]] || return 0
	id -u "$user" >/dev/null 2>&1 || user=nobody
	drop=(setpriv --reuid="$user" --regid="$(id -g "$user")" --init-groups
		env HOME="$1")
}

# own DIRECTORY...: gives them to that user.
own() {
	[[ $EUID -ne 0 ]] || chown -R "$("${drop[@]}" id -u)" "$@"
}

# build_quietly LOG COMMAND...: shows what the build said if it failed, or warned.
build_quietly() {
	local log=$1
	shift
	if ! "${drop[@]}" "$@" >"$log" 2>&1 || grep -v '^make' "$log" | grep -q 'warning:'; then
		cat "$log" >&2
		die "the build failed, or warned"
	fi
}

# Chroots have the network of the machine.
free_port() {
	perl -MIO::Socket::INET -e 'print IO::Socket::INET->new(Listen => 1, LocalAddr => "127.0.0.1")->sockport'
}

# ---- a command that gets our signals ----

child=

# pass_on_signals STATUS: exits with the status if there is no command yet.
pass_on_signals() {
	local name
	for name in INT TERM HUP; do
		# shellcheck disable=SC2064  # expanded now
		trap "forward $name $1" "$name"
	done
}

forward() {
	[[ -n $child ]] || exit "$2"
	kill -s "$1" -- "-$child" 2>/dev/null ||
		kill -s "$1" "$child" 2>/dev/null || true
}

# Waits for $child.  A trapped signal ends "wait" early, the child may live on.
wait_for_child() {
	local status
	while :; do
		status=0
		wait "$child" || status=$?
		kill -0 "$child" 2>/dev/null || break
	done
	child=
	return "$status"
}
