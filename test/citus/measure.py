"""What a distributed store costs beside the bare business statements, on the same
cluster: added milliseconds and processor seconds, and WAL, for one to three workers.

One client, as the machine has all nodes. Rounds alternate; medians are printed.
"""

import os
import statistics
import time

from cluster import Cluster

ROUNDS = int(os.environ.get("CITUS_ROUNDS", "5"))
OPERATIONS = 300


def bare(session, key, tenant):
    """Two business statements."""
    with session.transaction():
        session.execute("UPDATE account SET balance = balance - 1 WHERE tenant = %s", (tenant,))
        session.execute("INSERT INTO payment VALUES (%s, %s)", (tenant, key))


def kept(session, key, tenant):
    """The same as an operation."""
    with session.transaction():
        session.execute("SELECT outcome FROM idem_begin(%s, scope => %s)", (key, str(tenant)))
        session.execute("UPDATE account SET balance = balance - 1 WHERE tenant = %s", (tenant,))
        session.execute("INSERT INTO payment VALUES (%s, %s)", (tenant, key))
        session.execute("SELECT idem_complete(%s, '{\"paid\": 1}', %s)", (key, str(tenant)))


def processor_seconds(cluster):
    ticks = 0
    for node in range(len(cluster.ports)):
        with open(f"{cluster.directory(node)}/postmaster.pid", encoding="utf-8") as file:
            parent = file.readline().strip()
        for pid in [parent, *children(parent)]:
            with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
                fields = file.read().rsplit(")", 1)[1].split()
            ticks += sum(int(each) for each in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def children(parent):
    with open(f"/proc/{parent}/task/{parent}/children", encoding="utf-8") as file:
        return file.read().split()


def wal(cluster):
    return sum(cluster.value(node, "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint") for node in range(len(cluster.ports)))


def measure(cluster, kind, node, name):
    """Milliseconds, processor seconds for 1,000 operations, and WAL of one operation."""
    with cluster.connect(node, autocommit=False) as session:
        kind(session, f"{name}-warm", 1)
        began, used, written = time.monotonic(), processor_seconds(cluster), wal(cluster)
        for number in range(OPERATIONS):
            kind(session, f"{name}-{number}", number % 24 + 1)
        return ((time.monotonic() - began) / OPERATIONS * 1000,
                (processor_seconds(cluster) - used) / OPERATIONS * 1000,
                (wal(cluster) - written) / OPERATIONS)


def medians(rows):
    return [statistics.median(column) for column in zip(*rows)]


def report(cluster, workers, node):
    rows = {bare: [], kept: []}
    # the first rows of each shard cost more WAL
    for kind in rows:
        measure(cluster, kind, node, f"{workers}-{node}-{kind.__name__}-before")
    for turn in range(ROUNDS):
        for kind, found in rows.items():
            found.append(measure(cluster, kind, node, f"{workers}-{node}-{kind.__name__}-{turn}"))
    for kind, found in rows.items():
        latency, used, written = medians(found)
        print(f"{workers} workers, client at {'the coordinator' if node == 0 else 'a worker'}, {kind.__name__}: "
              f"{latency:.2f} ms, {used:.2f} CPU seconds for 1,000, {written / 1000:.2f} kB of WAL", flush=True)


def main():
    """One server alone, then one to three workers."""
    for workers in (0, 1, 2, 3):
        with Cluster(f"measure{workers}", workers) as cluster:
            cluster.do(0, "CREATE TABLE account (tenant bigint PRIMARY KEY, balance bigint NOT NULL)")
            cluster.do(0, "CREATE TABLE payment (tenant bigint NOT NULL, key text NOT NULL)")
            if workers:
                cluster.do(0, "SELECT create_distributed_table('account', 'tenant', shard_count := 12)")
                cluster.do(0, "SELECT create_distributed_table('payment', 'tenant', colocate_with := 'account')")
            cluster.do(0, "INSERT INTO account SELECT n, 0 FROM generate_series(1, 24) n")
            if workers:
                cluster.do(0, "SELECT idem_distribute_store('account')")
            report(cluster, workers, 0)
            if workers:
                report(cluster, workers, 1)


main()
