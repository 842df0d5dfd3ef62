# shellcheck shell=bash
# What the harnesses share: a verdict, whatever happens; the verdicts of what they
# run; and the private server that most of them run on.  Sourced, never run.
#
# A harness says give_verdict once its arguments are read.  From then on the last
# line that it prints is "N passed, N failed", and it exits with 0 only if
# something passed and nothing failed.  That holds where a step of its own fails,
# and where a signal ends it.  The lines before it, "failed: ...", name what failed, so
# that nobody has to search the output for it.

# shellcheck source=dev/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../dev/common.sh"

passed=0
failed=0
failures=()   # what failed, in words
good=0        # of the verdict that was added last
bad=0
stopped=false # by a signal
work=         # of make_work
made_work=
harness=$(realpath "$0")
harness=${harness#"$repo"/}

# ---- the verdict ----

give_verdict() {
	trap 'end_with_verdict $?' EXIT
	trap 'stop INT' INT
	trap 'stop TERM' TERM
	trap 'stop HUP' HUP
}

end_with_verdict() {
	trap '' INT TERM HUP
	set +e
	end_groups
	[[ $1 -eq 0 ]] || note 1 "$harness ended with status $1"
	at_end
	[[ -z $made_work ]] || rm -rf --one-file-system "$made_work"
	name_failures
	echo "$passed passed, $failed failed"
	[[ $failed -eq 0 && $passed -gt 0 ]] || exit 1
	exit 0
}

# As many as fit on a screen.
name_failures() {
	[[ ${#failures[@]} -eq 0 ]] || printf 'failed: %s\n' "${failures[@]:0:20}"
	[[ ${#failures[@]} -le 20 ]] || echo "failed: and $((${#failures[@]} - 20)) more, see \"not ok\" above"
}

# For a harness to define: what is cleared away, or kept, before the verdict.
at_end() {
	:
}

# make_work NAME: a directory, $work, that any user may enter, and that goes away before
# the verdict.
make_work() {
	made_work=$(mktemp -d "${TMPDIR:-/tmp}/idempotency-$1.XXXXXX")
	chmod 755 "$made_work"
	# shellcheck disable=SC2034  # for the harness
	work=$made_work
}

# Passes the signal on to the command that runs for us; its verdict still counts.
stop() {
	stopped=true
	forward "$1" 1
}

# note STATUS WHAT: counts it as passed if the status is 0.
note() {
	if [[ $1 -eq 0 ]]; then
		passed=$((passed + 1))
		echo "ok: $2"
	else
		failed=$((failed + 1))
		failures+=("$2")
		echo "not ok: $2"
	fi
}

# expect WHAT COMMAND [ARG...]: the command succeeds.
expect() {
	local status=0
	"${@:2}" || status=$?
	note "$status" "$1"
}

# silently COMMAND [ARG...]: what it says is shown only if it fails.
silently() {
	local said status=0
	said=$("$@" 2>&1) || status=$?
	[[ $status -eq 0 ]] || printf '%s\n' "$said"
	return "$status"
}

# equals VALUE COMMAND...: it prints the value, whatever its status.
equals() {
	local said
	said=$("${@:2}") || true
	[[ $said == "$1" ]] || { printf '%s\n' "expected: $1" "got: $said"; return 1; }
}

# is_wanted NAME PATTERN...: whether one of the patterns fits the name, or there is none.
is_wanted() {
	local pattern
	[[ $# -gt 1 ]] || return 0
	for pattern in "${@:2}"; do
		# shellcheck disable=SC2053  # a pattern
		[[ $1 != $pattern ]] || return 0
	done
	return 1
}

# ---- the verdicts of others ----

# absorb COMMAND [ARG...]: runs it, shows what it says except for its verdict and the
# names of what failed, and adds these to ours.
absorb() {
	local status=0 file
	file=$(mktemp "${TMPDIR:-/tmp}/idempotency-verdict.XXXXXX")
	set -m
	"$@" </dev/null | hold_back_verdict "$file" &
	set +m
	child=$(jobs -p %%)
	wait_for_child || status=$?
	add_verdict "$file" "$status" "${1##*/}"
	rm "$file"
	! $stopped || exit 1
}

# Only the last line is a verdict.  It gets into the file, with what failed.  Signals are for the
# command in front of us, and what it says at its end is still to be read.
hold_back_verdict() {
	trap '' INT TERM HUP
	exec perl -e '
		$| = 1;
		while (<STDIN>) {
			print "    $held" if defined $held;
			undef $held;
			if (/^\d+ passed, \d+ failed$/) { $held = $_; next }
			push @failed, $_ if /^(?:failed|not ok)\b/;
			print unless /^failed: /;
		}
		open my $file, ">", $ARGV[0] or die "$ARGV[0]: $!";
		print $file @failed, $held // "";' "$1"
}

# add_verdict FILE STATUS WHAT [PREFIX]: the verdict is the last line of the file; make adds
# one of its own to a failure.  The prefix says where each failure was.
add_verdict() {
	local numbers=(0 0) names
	if [[ $(tail -n 2 "$1" | grep -v '^make: \*\*\* ' | tail -n 1) =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed$ ]]; then
		numbers=("${BASH_REMATCH[@]:1}")
	fi
	mapfile -t names < <(sed -n "s/^failed: //p" "$1")
	[[ ${#names[@]} -gt 0 ]] || mapfile -t names < <(sed -nE 's/^not ok:? +//p' "$1")
	add "${numbers[@]}" "$2" "$3" "${names[@]/#/${4:-}}"
}

# add PASSED FAILED STATUS WHAT [FAILURE...]: leaves what is added in $good and $bad.  What
# ended with an error and names no failure is one, and so is what did nothing.
add() {
	good=$1
	bad=$2
	if [[ $bad -eq 0 ]] && [[ $3 -ne 0 || $good -eq 0 ]]; then
		bad=1
		set -- "$@" "$4 ended with status $3 after $good that passed, and named no failure"
		echo "not ok: ${*: -1}"
	elif [[ $bad -gt 0 && $# -eq 4 ]]; then
		set -- "$@" "$4: $bad, see above"
	fi
	passed=$((passed + good))
	failed=$((failed + bad))
	[[ $bad -eq 0 ]] || failures+=("${@:5}")
}

# ---- commands side by side ----

lanes=$(nproc)            # how many at a time
logs=                     # the directory of what they say
declare -A lane_of=()     # pid => name
declare -A started_at=()

# start NAME LOG COMMAND [ARG...]: as soon as a lane is free.
start() {
	local name=$1 log=$2
	shift 2
	while [[ ${#lane_of[@]} -ge $lanes ]]; do
		finish_one
	done
	# in a process group of its own, so that one signal ends all of it
	set -m
	"$@" >"$log" 2>&1 </dev/null &
	set +m
	lane_of[$!]=$name
	started_at[$name]=$SECONDS
}

finish_all() {
	while [[ ${#lane_of[@]} -gt 0 ]]; do
		finish_one
	done
}

# Calls finished NAME STATUS when the next one ends.
finish_one() {
	local pid name status=0
	wait -n -p pid "${!lane_of[@]}" || status=$?
	! $stopped || exit 1
	name=${lane_of[$pid]}
	unset "lane_of[$pid]"
	finished "$name" "$status"
}

# Shows what it said, and adds its verdict.  For a harness to define, if its logs are not
# in $logs, or if it shows something else.
finished() {
	echo "==== $1"
	show_log "$logs/$1.log"
	add_verdict "$logs/$1.log" "$2" "$1" "$logs/$1.log: "
	echo "==== $1: $good passed, $bad failed, status $2, $((SECONDS - started_at[$1])) seconds"
}

# show_log LOG: without single tests that passed, and with its verdict indented, as ours
# shall be the last.
show_log() {
	sed -e '/^ok /d' -e 's/^[0-9]* passed, [0-9]* failed$/    &/' "$1"
}

# Each stops its own servers when a signal ends it.
end_groups() {
	local group
	for group in "${!lane_of[@]}" $child; do
		kill -TERM -- "-$group" 2>/dev/null
	done
	wait
}

# ---- the private server ----

# on_server [OPTION...] COMMAND [ARG...]: absorbs a command on a server for tests.
# Options are those of dev/throwaway-server.
on_server() {
	absorb "$repo/dev/throwaway-server" --for-tests "$@"
}

# guard_taken_out ARG...: sets mutant to the option of dev/throwaway-server that builds
# the server without the guard of "--without-guard GUARD".  The program in the server
# gets it, too, and knows what has to be seen then.
guard_taken_out() {
	mutant=()
	while [[ $# -gt 1 ]]; do
		# shellcheck disable=SC2034  # for the harness
		[[ $1 != --without-guard ]] || mutant=(--without "$2")
		shift
	done
}

# What single TAP tests need: a real pg_cron, strace to cut a connection, and a
# clock to set.
provision_for_tap() {
	local cron
	"$repo/dev/provision"
	cron=$(cron_package "$(major_version "$(find_pg_config)")")
	"$repo/dev/provision" strace faketime ${cron:+"$cron"}
}

# Where the server has Citus if Citus is installed for it.
citus_control() {
	echo "$("$(find_pg_config)" --sharedir)/extension/citus.control"
}

need_citus() {
	[[ -e $(citus_control) ]] ||
		die "there is no $(citus_control), so nothing is tested: install the package of Citus' vendor, or name by PG_CONFIG a PostgreSQL that has Citus"
}

# run_tap PG_CONFIG DIRECTORY TEST... [:: ARG...]: counts the top-level assertions of
# TAP tests, which write into the directory.  Raw output is kept there for counting;
# prove itself shows a summary, and stays silent about what went well.  Two more at a time
# than there are processors: half of the time the tests wait, for a round of the collector say.
run_tap() {
	local directory=$2 status=0 programs names name
	programs=$("$1" --pgxs)
	programs=${programs%/makefiles/pgxs.mk}/test
	shift 2
	mkdir -p "$directory/raw" "$directory/tmp_check/log"
	own "$directory"
	"${drop[@]}" env PERL5LIB="$programs/perl:$repo/test/kit/perl" \
		PG_REGRESS="$programs/regress/pg_regress" PG_TEST_PORT_DIR="$directory" \
		TESTDIR="$directory" TESTDATADIR="$directory/tmp_check" \
		TESTLOGDIR="$directory/tmp_check/log" \
		PERL_TEST_HARNESS_DUMP_TAP="$directory/raw" \
		prove --timer -j "$(($(nproc) + 2))" "$@" || status=$?
	mapfile -t names < <(name_failed_tap "$directory/raw")
	add "$(count_tap "$directory" '^ok')" \
		"$(($(count_tap "$directory" '^not ok') + $(count_dead "$directory")))" \
		"$status" prove "${names[@]}"
	grep -rhiE '^(not )?ok.*# *skip' "$directory/raw" || true
	for name in $(printf '%s\n' "${names[@]%%.pl:*}" | sort -u); do
		show_tails "$directory/tmp_check/log/regress_log_${name##*/}"
	done
}

# The assertions that failed, and the tests that ended before they could say how many
# assertions they had, each after the name of its file.
name_failed_tap() {
	(cd "$1" && {
		{ grep -rE '^not ok' . || true; } | grep -viE '# *(skip|todo)' | sed -E 's|^\./||; s|:not ok +[0-9]+ +-? *|: |'
		{ grep -rLE '^1\.\.[0-9]' . || true; } | sed 's|^\./\(.*\)|\1: it ended too early|'
	})
}

# Skipped assertions did not run, and a failure marked TODO is expected.
count_tap() {
	grep -rhE "$2" "$1/raw" | grep -civE '# *(skip|todo)' || true
}

count_dead() {
	{ grep -rLE '^1\.\.[0-9]' "$1/raw" || true; } | wc -l
}

# unpack_server FLAVOR DIRECTORY [VERSION]: a server that was built from source, where any
# user may read it, as it may not read a home directory.
unpack_server() {
	local packed
	packed=$("$repo/test/kit/source-server" "$1" "${@:3}")
	mkdir -p "$2"
	chmod 755 "$2"
	tar -C "$2" -xzf "$packed" --no-same-owner
}

show_tails() {
	local file
	for file in "$@"; do
		if [[ -e $file ]]; then
			echo "==> ${file##*/} <=="
			tail -n 30 "$file"
		fi
	done
}
