# shellcheck shell=bash
# shellcheck disable=SC2154  # repo is set by dev/common.sh
# The cluster "main" of a chroot, on which packages are used.  Sourced, never run.

# shellcheck source=test/packages/readme.sh
source "$repo/test/packages/readme.sh"

pg_config=$(find_pg_config)
major=$(major_version "$pg_config")

create_cluster() {
	silently pg_createcluster --locale C.UTF-8 --pgoption listen_addresses= "$major" main --start && equals 1 sql postgres 'SELECT 1'
}

restart_cluster() {
	silently pg_ctlcluster "$major" main restart
}

as_postgres() {
	(cd / && exec setpriv --reuid=postgres --regid=postgres --init-groups "$@")
}

# sql DATABASE STATEMENT
sql() {
	as_postgres psql -XAtq -v VERBOSITY=sqlstate "$1" -c "$2" 2>&1
}

# makes_first_transaction DATABASE: where nobody has made it yet.
makes_first_transaction() {
	first_transaction as_postgres psql -XAtq "$1"
}

# replays_as_before DATABASE: where the first transaction was made.
replays_as_before() {
	equals 'COMPLETED|t|201|{"balance": 70}' sql "$1" "SELECT outcome, replayed, response_code, response_payload
		FROM idem_begin('order-1', '{\"account\": \"alice\", \"amount\": 30}', scope => 'payments')"
}

preload() {
	pg_conftool "$major" main set shared_preload_libraries idempotency
	restart_cluster
}

# The server starts it just after it accepts connections.
worker_runs() {
	local deadline=$((SECONDS + 60))
	until [[ $(count_workers) == 1 ]]; do
		[[ $SECONDS -lt $deadline ]] || { count_workers; return 1; }
		sleep 0.2
	done
}

count_workers() {
	sql postgres "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'idempotency launcher'"
}

nothing_left() {
	[[ -z $(find / -xdev -path /srv -prune -o -path /tmp -prune -o -name '*idempotency*' -path '*/postgresql/*' -print) ]]
}
