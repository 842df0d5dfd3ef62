# shellcheck shell=bash
# What the scripts in dev/ and test/ share: messages, the path of the tree, the
# PostgreSQL to use, copies of the tree, and a command that gets our signals.
# Sourced, never run.

# Without this, our make would get the flags and the job server of an outer make.
unset MAKEFLAGS MFLAGS MAKELEVEL
# With this, cd goes to other places, and prints them.
unset CDPATH

# shellcheck disable=SC2034  # used by the scripts that source this file
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)

say() {
	printf '%s\n' "$*" >&2
}

die() {
	say "${0##*/}: $*"
	exit 1
}

# go.work says which release of Go is needed.  Of 1.21 and newer, the command downloads
# that by itself, unless GOTOOLCHAIN forbids it.
require_go() {
	(cd "$repo" && go version >/dev/null 2>&1) ||
		die "please install Go $(sed -n 's/^go //p' "$repo/go.work") or newer, from https://go.dev/dl"
}

require_npm() {
	command -v npm >/dev/null || "$repo/dev/provision" nodejs npm >&2
}

# Debian 12 has Node.js 18, which frameworks of today refuse.
require_node() {
	require_npm
	[[ $(node --print 'process.versions.node.split(".")[0]') -ge 20 ]] || die 'please install Node.js 20 or newer'
}

# ---- directories ----

# Scripts change their directory, and neither make nor the settings of a server can do
# with a blank in the path of one.
check_temporary_directory() {
	[[ -d $TMPDIR && -w $TMPDIR ]] || die "TMPDIR=$TMPDIR is no directory that you can write to: set it to one that is, or unset it"
	TMPDIR=$(realpath "$TMPDIR")
	[[ $TMPDIR =~ ^[A-Za-z0-9_./@%+-]+$ ]] || TMPDIR=/tmp
}

# needs_space MEGABYTES DIRECTORY VARIABLE: the variable chooses another directory.
needs_space() {
	local free
	free=$(df --output=avail --block-size=1M "$2" | tail -n 1)
	[[ $free -ge $1 ]] || die "$2 has $((free)) MB left, and $1 MB are needed: set $3 to a directory with more"
}

# Where what took long to make is kept: where the caller says, else where such files
# belong, else, if we cannot write there, beside temporary files.
choose_cache() {
	local home=${HOME:-} chosen above beside=${TMPDIR:-/tmp}/idempotency-cache-$EUID
	[[ -n $home ]] || home=$(getent passwd "$EUID" | cut -d : -f 6)
	chosen=${IDEMPOTENCY_CACHE:-${XDG_CACHE_HOME:-$home/.cache}/idempotency}
	above=$chosen
	while [[ ! -e $above && $above == */* ]]; do
		above=${above%/*}
	done
	# nobody else's directory: what is kept there is run
	if [[ -n ${IDEMPOTENCY_CACHE:-} || -w ${above:-/} || (-e $beside && (! -O $beside || -L $beside)) ]]; then
		echo "$chosen"
	else
		echo "$beside"
	fi
}

make_cache() {
	{ mkdir -p "$cache" && [[ -w $cache ]]; } 2>/dev/null ||
		die "cannot write to $cache: set IDEMPOTENCY_CACHE to a directory that you can write to"
}

# is_kept DIRECTORY: whether it was made as a whole, by us or by root. What others left there
# under its name is not run.
is_kept() {
	[[ -e $1/complete && ! -L $1 && ($(stat -c %u "$1") == 0 || -O $1) ]]
}

# make_kept DIRECTORY COMMAND...: makes the directory by the command, one at a time of all copies of the
# tree. What was left half done is made again.
make_kept() (
	! is_kept "$1" || exit 0
	exec 9<"$(dirname "$1")"
	flock 9
	! is_kept "$1" || exit 0
	rm -rf "$1"
	mkdir "$1" || die "cannot make $1: remove it, or set TMPDIR"
	"${@:2}" >&2 9<&-
	chmod -R a+rX "$1"
	touch "$1/complete"
)

[[ -z ${TMPDIR:-} ]] || check_temporary_directory
# shellcheck disable=SC2034
cache=$(choose_cache)

# ---- the PostgreSQL to use ----

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
	if [[ -n ${PG_CONFIG:-} ]]; then
		is_complete "$PG_CONFIG" && command -v "$PG_CONFIG"
		return
	fi
	first_pg_config is_complete
}

# Prints the pg_config of a server that lacks its headers.
find_bare_server() {
	[[ -z ${PG_CONFIG:-} ]] && first_pg_config is_server
}

# first_pg_config CONDITION
first_pg_config() {
	local candidate
	while read -r candidate; do
		if [[ -n $candidate ]] && "$1" "$candidate"; then
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

is_server() {
	[[ $(major_version "$1" 2>/dev/null) -ge 15 && -x $("$1" --bindir)/postgres ]]
}

# server_version PG_CONFIG: 15.18, say; pg_config's own may be that of the client.
server_version() {
	"$("$1" --bindir)/postgres" --version | sed 's/^[^)]*) \([^ ]*\).*/\1/'
}

# package_version PG_CONFIG: that of the server's package, which the server names.
package_version() {
	"$("$1" --bindir)/postgres" --version | sed -n 's/.*(\(Debian\|Ubuntu\) \(.*\))$/\2/p'
}

# headers_version PG_CONFIG: of which PostgreSQL its headers are.
headers_version() {
	sed -n 's/^#define PG_VERSION "\([^ "]*\).*/\1/p' "$("$1" --includedir-server)/pg_config.h" 2>/dev/null
}

# headers_package PG_CONFIG: the package with its headers, in the cache: that of exactly
# this server, else the newest one, which is newer.
headers_package() {
	local exact kept version
	exact=$(package_version "$1")
	kept=$(list_headers "$1" | grep -F "_${exact}_" || list_headers "$1" | sort -V | tail -n 1)
	version=${kept##*/*-[0-9][0-9]_}
	[[ -n $exact && -n $kept ]] && dpkg --compare-versions "${version%_*}" ge "$exact" && echo "$kept"
}

list_headers() {
	compgen -G "$cache/postgresql-server-dev-$(major_version "$1")_*.deb" || true
}

# ---- Debian ----

# The versions of PostgreSQL that are supported, and tested.  What else names them is
# compared with these by test/lint-versions.py.
# shellcheck disable=SC2034
supported=(15 16 17 18 19)
# those that Debian has: packages for it are made for these
packaged=(15 17 18 19)
# for messages: 15|16|17|18|19
# shellcheck disable=SC2034
any_version=$(IFS='|'; echo "${supported[*]}")

# suite_of VERSION: the Debian release that has this PostgreSQL; for 16, which none has
# (dev/postgresql-16), the one that it is tested on.
suite_of() {
	case $1 in
		15 | 16) echo bookworm ;;
		17) echo trixie ;;
		18) echo forky ;;
		19) echo experimental ;;
		*) return 1 ;;
	esac
}

debian_has() {
	[[ " ${packaged[*]} " == *" $1 "* ]]
}

# cron_package VERSION: pg_cron for this PostgreSQL; nothing where Debian has none: for 19
# there is none yet.
cron_package() {
	! debian_has "$1" || [[ $1 -ge 19 ]] || echo "postgresql-$1-cron"
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

# copy_tree DIRECTORY [PLACE]: products of a build stay behind, they may be another
# server's.  So does what is installed and built in clients and examples, which is larger
# than all the rest, but for that in the place.
copy_tree() {
	local place without=(./.git ./dist __pycache__ '*.o' '*.bc' '*.so')
	for place in clients examples; do
		[[ $place == "${2:-}" ]] || without+=("./$place/*/node_modules" "./$place/*/.build" "./$place/*/target")
	done
	mkdir -p "$1"
	# 1: a file changed while it was read, which editors may do.
	{ tar -C "$repo" -cf - "${without[@]/#/--exclude=}" . 2>/dev/null || [[ $? -le 1 ]]; } |
		tar -C "$1" -xf - --no-same-owner || die "cannot copy the tree"
}

# clone_tree DIRECTORY: what a clone of the next commit would have.
clone_tree() {
	mkdir "$1"
	git -C "$repo" -c safe.directory="$repo" ls-files -z --cached --others --exclude-standard --deduplicate |
		(cd "$repo" && perl -0 -l000 -ne 'print if -e') |
		tar -C "$repo" --null --files-from=- -cf - | tar -C "$1" -xf - --no-same-owner
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
	if ! "${drop[@]}" "$@" >"$log" 2>&1 || grep -v '^make' "$log" | grep 'warning:' >/dev/null; then
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
