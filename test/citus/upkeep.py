"""What an administrator does with a distributed store: looks at the figures of all nodes,
collects while shards move, dumps and restores it, and drops the extension.
"""

import os
import re
import subprocess

import psycopg

from cluster import HOST, Cluster
from verdict import Verdict

TENANTS = range(1, 13)
GUIDE = os.path.join(os.path.dirname(__file__), "../../docs/guide/scaling-out.md")
LEASE = "SELECT fence FROM idem_begin('%s', scope => '%s', lease => '1 h')"


def block_of_guide(first_line):
    """The statements of a block of the guide that begins with this line."""
    with open(GUIDE, encoding="utf-8") as file:
        return re.search(rf"```text\n({re.escape(first_line)}\n.*?)```", file.read(), re.DOTALL).group(1)


def distribute(cluster):
    cluster.do(0, "SELECT create_distributed_table('account', 'tenant', shard_count := 8)")
    cluster.do(0, "SELECT idem_distribute_store('account')")


def error_of(cluster, node, sql, user="postgres"):
    """The SQLSTATE of a statement; None: it succeeds."""
    try:
        cluster.do(node, sql, user=user)
    except psycopg.Error as error:
        return error.sqlstate
    return None


def pay(cluster, node, tenant, key):
    """One business transaction: its outcome."""
    with cluster.connect(node, autocommit=False) as session:
        outcome = session.execute("SELECT outcome::text FROM idem_begin(%s, scope => %s)", (key, str(tenant))).fetchone()[0]
        if outcome == "ACQUIRED":
            session.execute("UPDATE account SET balance = balance - 10 WHERE tenant = %s", (tenant,))
            session.execute("SELECT idem_complete(%s, '{\"paid\": 10}', %s)", (key, str(tenant)))
    return outcome


def counts_for_each_node(verdict, cluster):
    """The counters of all nodes, from one: each node counts what it has done."""
    cluster.everywhere("SELECT idem_stats_reset()")
    for tenant in TENANTS:
        cluster.do(0, LEASE % ("counted", tenant))
    expected = {node: [cluster.node_of(tenant) for tenant in TENANTS].count(node) for node in range(len(cluster.ports))}
    for user in ("postgres", "monitor"):
        found = cluster.everywhere("SELECT acquired FROM idempotency_stats WHERE datname = current_database()", user=user)
        verdict.check({node: int(count) for node, count in found.items()} == expected,
                      f"{user} sees the counters of each node", f"{found}, {expected}")
    verdict.check(expected[0] == 0 and sum(expected.values()) == len(TENANTS), "the coordinator has done none of it", expected)


def shows_owners(verdict, cluster):
    """Leases of all nodes; open and prepared transactions of the node that has them."""
    for node in range(len(cluster.ports)):
        leased = cluster.value(node, "SELECT count(*) FROM idempotency_in_flight WHERE kind = 'leased'")
        verdict.check(leased == len(TENANTS), f"node {node} shows the leases of all", leased)
    tenant = TENANTS[0]
    home = cluster.node_of(tenant)
    others = {node: "0" for node in range(len(cluster.ports)) if node != home}
    for kind, end in (("transaction", "ROLLBACK"), ("prepared", "PREPARE TRANSACTION 'kept'")):
        with cluster.connect(home) as session:
            session.execute("BEGIN")
            session.execute("SELECT idem_begin('open', scope => %s)", (str(tenant),))
            if kind == "prepared":
                session.execute("SELECT idem_complete('open', '1', %s)", (str(tenant),))
                session.execute(end)
            found = cluster.everywhere(f"SELECT count(*) FROM idempotency_in_flight WHERE kind = '{kind}'")
            verdict.check(found == {home: "1", **others}, f"one {kind} is shown where it is", found)
            session.execute("ROLLBACK" if kind == "transaction" else "ROLLBACK PREPARED 'kept'")


def lets_monitor(verdict, cluster):
    """The view of the guide, for those who may not read the store."""
    state = error_of(cluster, 0, "SELECT * FROM idempotency_in_flight", user="monitor")
    verdict.check(state == "42501", "pg_monitor alone may not read the view", state)
    with cluster.connect(0) as session:
        session.execute(block_of_guide("-- for monitoring"))
    cluster.do(0, "ALTER ROLE monitor SET search_path = monitoring, public")
    for node in range(len(cluster.ports)):
        rows = cluster.do(node, "SELECT kind, scope, idempotency_key, age IS NOT NULL, lease_left > '0', pid, gid"
                          " FROM idempotency_in_flight", user="monitor")
        verdict.check(sorted(rows) == sorted(("leased", str(tenant), None, True, True, None, None) for tenant in TENANTS),
                      f"that of the guide shows the leases on node {node}", rows)
    for object_name in ("idempotency_in_flight", "operations_in_flight()"):
        state = error_of(cluster, 0, f"SELECT * FROM monitoring.{object_name}", user="app")
        verdict.check(state == "42501", f"nobody else may read {object_name}", state)


def collects_later(verdict, cluster):
    """A shard whose place is just changing is passed over; nothing waits for it."""
    for tenant in TENANTS:
        cluster.do(0, "SELECT idem_set_policy(%s, retention => '1 ms')", str(tenant))
    for tenant in TENANTS:
        pay(cluster, 0, tenant, "gone")
    gone = "SELECT count(*) FROM idempotency_store WHERE idempotency_key = 'gone'"
    cluster.do(0, "SELECT pg_sleep(0.01)")
    with cluster.moving(TENANTS[0]):
        removed = sum(int(count) for count in cluster.everywhere("SELECT idem_gc()").values())
        left = cluster.value(0, gone)
        verdict.check(removed + left == len(TENANTS) and 0 < left < len(TENANTS), "a shard that is being moved is passed over",
                      f"{removed}, {left}")
    removed = sum(int(count) for count in cluster.everywhere("SELECT idem_gc()").values())
    verdict.check(removed == left and cluster.value(0, gone) == 0, "and collected later", f"{removed}, {left}")
    for tenant in TENANTS:
        cluster.do(0, "SELECT idem_set_policy(%s)", str(tenant))


def run_tool(cluster, program, database, *arguments):
    subprocess.run([program, "-h", cluster.work, "-p", str(cluster.ports[0]), "-U", "postgres", "-d", database, *arguments],
                   check=True)


def make_databases(cluster, name):
    """A new cluster in databases of the same servers, up to the restored data of the coordinator."""
    for node in range(len(cluster.ports)):
        cluster.do(node, f"CREATE DATABASE {name}")
    cluster.database = name
    for node in range(len(cluster.ports)):
        cluster.do(node, "CREATE EXTENSION citus")
        cluster.do(node, "CREATE EXTENSION idempotency")
    cluster.do(0, "SELECT idem_prepare_node('bigint')")


def join(cluster):
    """The nodes of the new cluster."""
    cluster.do(0, "SELECT citus_set_coordinator_host(%s, %s)", HOST, cluster.ports[0])
    for port in cluster.ports[1:]:
        cluster.do(0, "SELECT citus_add_node(%s, %s)", HOST, port)


def fences(cluster, key):
    """A fence of a new lease of each tenant; the leases are released, so no row keeps it."""
    given = {}
    with cluster.connect(0) as session:
        for tenant in TENANTS:
            given[tenant] = session.execute(LEASE % (key, tenant)).fetchone()[0]
            session.execute("SELECT idem_release(%s, %s, %s)", (key, str(tenant), given[tenant]))
    return given


def grow(verdict, cluster, before, where):
    """The next fences are greater than these."""
    after = fences(cluster, "again")
    fell = {tenant: (before[tenant], after[tenant]) for tenant in TENANTS if after[tenant] <= before[tenant]}
    verdict.check(not fell, f"no fence falls back, {where}", fell)


def is_restored(verdict, cluster):
    """A dump of the coordinator has all records, and the fences go on above its marks."""
    for tenant in TENANTS:
        pay(cluster, tenant % 4, tenant, "charge")
    cluster.do(0, "CREATE ROLE owner")
    cluster.do(0, "SELECT idem_claim_scope('12', 'owner')")
    before = fences(cluster, "again")
    dump = f"{cluster.work}/dump"
    run_tool(cluster, "pg_dump", cluster.database, "-Fc", "-f", dump)
    make_databases(cluster, "restored")
    run_tool(cluster, "pg_restore", "restored", "--exit-on-error", dump)
    join(cluster)
    distribute(cluster)
    outcomes = [pay(cluster, tenant % 4, tenant, "charge") for tenant in TENANTS]
    verdict.check(set(outcomes) == {"COMPLETED"}, "every record is there", outcomes)
    balances = cluster.value(0, "SELECT array_agg(DISTINCT balance) FROM account")
    verdict.check(balances == [80], "and every business row", balances)
    leases = cluster.value(1, "SELECT count(*) FROM idempotency_in_flight WHERE idempotency_key = 'counted'")
    verdict.check(leases == len(TENANTS), "and every lease", leases)
    state = error_of(cluster, 2, "SELECT idem_begin('charge', scope => '12')", user="app")
    verdict.check(state == "ID403", "a claim holds again", state)
    grow(verdict, cluster, before, "where the shards were")
    homes = {tenant: cluster.node_of(tenant) for tenant in TENANTS}
    before = fences(cluster, "again")
    for tenant, home in homes.items():
        cluster.move(tenant, home % 3 + 1, "block_writes")
    grow(verdict, cluster, before, "elsewhere")


def is_dropped(verdict, cluster):
    """DROP EXTENSION: refused while the store is distributed; after that nothing is left, and it can be had again."""
    state = error_of(cluster, 0, "DROP EXTENSION idempotency")
    verdict.check(state == "2BP01", "refused while the store is distributed", state)
    verdict.check(pay(cluster, 1, 1, "charge") == "COMPLETED", "which goes on")
    # what moves have left behind, which Citus removes by itself some time later
    cluster.do(0, "CALL citus_cleanup_orphaned_resources()")
    cluster.do(0, "SELECT idem_undistribute_store()")
    cluster.do(0, "DROP EXTENSION idempotency")
    left = cluster.everywhere("SELECT count(*) FROM pg_class WHERE relname LIKE 'idempotency%'"
                              " AND relnamespace = 'public'::regnamespace")
    verdict.check(set(left.values()) == {"0"}, "nothing is left on any node", left)
    cluster.do(0, "CREATE EXTENSION idempotency")
    cluster.do(0, "SELECT idem_distribute_store('account')")
    outcomes = [pay(cluster, node, 1, "charge") for node in (1, 0, 2)]
    verdict.check(outcomes == ["ACQUIRED", "COMPLETED", "COMPLETED"], "and a new one is distributed again", outcomes)


def main():
    with Verdict() as verdict, Cluster("upkeep") as cluster:
        cluster.do(0, "CREATE ROLE monitor LOGIN IN ROLE pg_monitor")
        cluster.do(0, "CREATE ROLE app LOGIN")
        cluster.do(0, "SELECT idem_grant('app')")
        cluster.do(0, "CREATE TABLE account (tenant bigint PRIMARY KEY, balance bigint NOT NULL)")
        cluster.do(0, "INSERT INTO account SELECT n, 100 FROM unnest(%s::bigint[]) n", list(TENANTS))
        distribute(cluster)
        counts_for_each_node(verdict, cluster)
        shows_owners(verdict, cluster)
        lets_monitor(verdict, cluster)
        collects_later(verdict, cluster)
        is_restored(verdict, cluster)
        is_dropped(verdict, cluster)


main()
