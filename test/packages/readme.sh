# shellcheck shell=bash
# shellcheck disable=SC2154  # repo is set by dev/common.sh
# What the README says, for tests that do it.  Sourced, never run.

readme=$repo/README.md

# readme_command WHAT: the command line of the README that has the comment "# WHAT",
# without what makes the package.
readme_command() {
	local line
	line=$(grep -m 1 -E "^(make|packaging/deb) [a-z0-9]+ && .* # $1(;|$)" "$readme") || die "the README has no command for $1"
	sed -e 's/ *# .*//' -e 's/^[a-z/]* [a-z0-9]* && //' <<<"$line"
}

# runs_readme_command WHAT DIRECTORY: as root, there.
runs_readme_command() (
	command=$(readme_command "$1") || exit
	# shellcheck disable=SC2317  # the command calls it
	sudo() { "$@"; }
	cd "$2" && eval "$command"
)

# first_transaction COMMAND [ARG...]: runs the section "First transaction", and
# compares what it prints with what the README says.  The command, psql -XAtq say, gets
# SQL as its standard input, for a database where nobody has run the section before.
first_transaction() {
	[[ $(expected_answers | wc -l) -ge 5 ]] || { echo 'the README has no first transaction'; return 1; }
	# a function without a result prints an empty line
	diff <(expected_answers) <(statements | "$@" 2>&1 | grep -v '^$')
}

statements() {
	echo '\set VERBOSITY sqlstate'
	# no notice that the extension is there already
	echo 'SET client_min_messages = warning;'
	awk '/^## / { inside = $0 == "## First transaction" }
		/^```/ { block = inside && $0 == "```sql"; next }
		block' "$readme"
}

# "-- => 70" is a row, "-- ERROR: ID422" an error.
expected_answers() {
	statements | sed -n -e 's/^-- => //p' -e 's/^-- ERROR: /ERROR:  /p'
}
