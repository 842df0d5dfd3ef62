"""Clients send every message more than once, through random nodes, while shards move and
split, the background rebalancer works, and nodes are killed. Every second client reaches
the coordinator through pgbouncer. Then the books have to balance.

CITUS_MOVES says how many disturbances there are, CITUS_SEED which.
"""

import multiprocessing
import os
import random
import time
from collections import Counter

import psycopg

from cluster import Cluster
from verdict import Verdict

TENANTS = range(1, 25)
CLIENTS = 6
COPIES = 2
OPENING = 1_000_000

MOVES = int(os.environ.get("CITUS_MOVES", "30"))
SEED = int(os.environ.get("CITUS_SEED", "1"))

# The client may go on with the same message: the transaction did not commit, or the
# key tells whether it did. XX000: Citus lost a node in the middle of a commit.
AGAIN = ("40", "08", "57", "ID421", "XX000", "25006", "53", "55")


class Client:
    """One of several that are given the same messages. With a pool, it reaches the coordinator through pgbouncer."""

    def __init__(self, cluster, seed, pool):
        self.cluster = cluster
        self.pool = pool
        self.pooled = 0
        self.random = random.Random(seed)
        self.sessions = {}
        self.states = {}

    def session(self):
        """One with a random node."""
        node = self.random.randrange(len(self.cluster.ports))
        if node not in self.sessions or self.sessions[node].closed:
            self.sessions[node] = self.connect(node)
        return self.sessions[node]

    def connect(self, node):
        """To one of the nodes."""
        if node == 0 and self.pool:
            return self.pool(autocommit=False, connect_timeout=5)
        return self.cluster.connect(node, autocommit=False, connect_timeout=5)

    def pay(self, tenant, key):
        """The whole business transaction once; the outcome, committed."""
        session = self.session()
        with session.transaction():
            outcome = session.execute("SELECT outcome::text FROM idem_begin(%s, scope => %s, wait => '1 s')",
                                      (key, str(tenant))).fetchone()[0]
            if outcome == "ACQUIRED":
                session.execute("UPDATE account SET balance = balance - 1 WHERE tenant = %s", (tenant,))
                session.execute("INSERT INTO payment VALUES (%s, %s)", (tenant, key))
                session.execute("SELECT idem_complete(%s, '{\"paid\": 1}', %s)", (key, str(tenant)))
        self.pooled += self.pool is not None and session is self.sessions.get(0)
        return outcome

    def deliver(self, tenant, key):
        """Until it has an end that will not change."""
        while True:
            try:
                if self.pay(tenant, key) in ("ACQUIRED", "COMPLETED"):
                    return
            except psycopg.Error as error:
                state = error.sqlstate or "08000"
                self.states[state] = self.states.get(state, 0) + 1
                if not state.startswith(AGAIN):
                    raise
                for session in self.sessions.values():
                    if session.info.status != psycopg.pq.ConnStatus.OK:
                        session.close()


def work(cluster, number, pool, stop, results):
    """A process: messages of its own numbering, which its twin has, too. One of the two is behind the pool."""
    client = Client(cluster, (SEED, number).__hash__(), pool if number % COPIES else None)
    pair, done = number // COPIES, []
    try:
        while not stop.is_set():
            tenant = TENANTS[len(done) % len(TENANTS)]
            key = f"{pair}-{len(done)}"
            client.deliver(tenant, key)
            done.append((tenant, key))
        results.put((number, done, client.pooled, client.states, None))
    except BaseException as error:  # noqa: B902: whatever ended the client is what the test is about
        results.put((number, done, client.pooled, client.states, repr(error)))


def move(cluster, chance):
    """One shard, with all that is beside it."""
    tenant = chance.choice(TENANTS)
    node = chance.choice([n for n in range(1, len(cluster.ports)) if n != cluster.node_of(tenant)])
    cluster.move(tenant, node, chance.choice(("force_logical", "block_writes")))
    return 1


def split(cluster, chance):
    """A shard of its own for a tenant; 0: it has one."""
    tenant = chance.choice(TENANTS)
    shared = cluster.value(0, "SELECT count(*) FROM unnest(%s::bigint[]) n"
                           " WHERE get_shard_id_for_distribution_column('account', n) = %s",
                           list(TENANTS), cluster.shard_of(tenant, "account"))
    if shared > 1:
        cluster.do(0, "SELECT isolate_tenant_to_new_shard('account', %s::bigint, 'CASCADE',"
                   " shard_transfer_mode := 'block_writes')", tenant)
    return int(shared > 1)


def kill(cluster, chance):
    cluster.kill(chance.randrange(1, len(cluster.ports)))
    return 1


def rebalance(cluster, chance):
    """The background rebalancer, as soon as there is work for it, until it has ended: the moves that it made."""
    job = None
    with cluster.connect(0) as session:
        while job is None:
            move(cluster, chance)
            job = session.execute("SELECT citus_rebalance_start(shard_transfer_mode := %s::citus.shard_transfer_mode)",
                                  (chance.choice(("force_logical", "block_writes")),)).fetchone()[0]
        session.execute("SET statement_timeout = '180s'")
        session.execute("SELECT citus_job_wait(%s)", (job,))
        return session.execute("SELECT count(*) FROM pg_dist_background_task"
                               " WHERE job_id = %s AND status = 'done'", (job,)).fetchone()[0]


def disturbance(step):
    """Which one comes now: most are moves."""
    return {4: split, 8: kill}.get(step % 10, rebalance if step % 15 == 12 else move)


def disturb(cluster, chance):
    """One after the other; how many of each hit. What Citus ends because of a deadlock is repeated."""
    counts = {"move": 0, "split": 0, "kill": 0, "rebalance": 0, "failed": 0}
    for step in range(MOVES):
        kind = disturbance(step)
        for _ in range(3):
            try:
                counts[kind.__name__] += kind(cluster, chance)
                break
            except psycopg.Error as error:
                counts["failed"] += 1
                print(f"step {step}: {kind.__name__}: {str(error).splitlines()[0]}", flush=True)
    return counts


def rests(cluster):
    """What is left of transactions, once Citus has had time to recover them."""
    left = None
    for _ in range(60):
        left = sum(cluster.value(node, "SELECT (SELECT count(*) FROM pg_prepared_xacts)"
                                 " + (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 7648)")
                   for node in range(len(cluster.ports)))
        if left == 0:
            break
        cluster.do(0, "SELECT recover_prepared_transactions()")
        time.sleep(1)
    return left


def balances(verdict, cluster, delivered):
    """Every message that a client saw the end of took effect once, and no other did."""
    payments = cluster.do(0, "SELECT tenant, key, count(*) FROM payment GROUP BY 1, 2")
    found = {(tenant, key): times for tenant, key, times in payments}
    twice = [message for message, times in found.items() if times > 1]
    verdict.check(not twice, "no message took effect twice", twice[:5])
    lost = [message for message in delivered if message not in found]
    verdict.check(not lost, "none was lost", lost[:5])
    spent = len(TENANTS) * OPENING - cluster.value(0, "SELECT sum(balance)::bigint FROM account")
    verdict.check(spent == len(found), "the accounts agree with the payments", f"{spent}, {len(found)}")
    records = cluster.value(0, "SELECT count(*) FROM idempotency_store WHERE status = 'COMPLETED' AND idempotency_key <> ''")
    verdict.check(records == len(found), "and the records do", f"{records}, {len(found)}")
    double = cluster.value(0, "SELECT count(*) FROM (SELECT FROM idempotency_store"
                           " GROUP BY tenant, scope, idempotency_key HAVING count(*) > 1) d")
    verdict.check(double == 0, "one row for each key", double)


def prepare(cluster):
    cluster.do(0, "CREATE TABLE account (tenant bigint PRIMARY KEY, balance bigint NOT NULL)")
    cluster.do(0, "CREATE TABLE payment (tenant bigint NOT NULL, key text NOT NULL)")
    cluster.do(0, "ALTER TABLE payment REPLICA IDENTITY FULL")
    cluster.do(0, "SELECT create_distributed_table('account', 'tenant', shard_count := 8)")
    cluster.do(0, "SELECT create_distributed_table('payment', 'tenant', colocate_with := 'account')")
    cluster.do(0, "INSERT INTO account SELECT n, %s FROM unnest(%s::bigint[]) n", OPENING, list(TENANTS))
    cluster.do(0, "SELECT idem_distribute_store('account')")


def run_clients(cluster, pool):
    """Until all disturbances have come: what the clients say, and how often each hit."""
    stop, results = multiprocessing.Event(), multiprocessing.Queue()
    clients = [multiprocessing.Process(target=work, args=(cluster, n, pool, stop, results)) for n in range(CLIENTS)]
    for client in clients:
        client.start()
    counts = disturb(cluster, random.Random(SEED))
    stop.set()
    ends = [results.get(timeout=120) for _ in clients]
    for client in clients:
        client.join(60)
    return ends, counts


def hits(verdict, counts):
    """Every kind of disturbance happened."""
    verdict.check(counts["move"] > MOVES // 2, "most moves were made", counts)
    for kind in ("split", "kill", "rebalance"):
        verdict.check(counts[kind] > 0, f"so was at least one {kind}", counts)


def is_intact(verdict, cluster):
    """The indexes of all shards."""
    cluster.do(0, "CREATE EXTENSION amcheck")
    for node in range(1, len(cluster.ports)):
        checked = cluster.do(node, "SELECT bt_index_check(c.oid, true) FROM pg_class c"
                             " WHERE c.relkind = 'i' AND c.relname LIKE 'idempotency_store_pkey%%'")
        verdict.check(len(checked) > 0, f"amcheck finds nothing on node {node}")


def main():
    with Verdict() as verdict, Cluster("moves") as cluster, cluster.pooler(2) as pool:
        prepare(cluster)
        began = time.monotonic()
        ends, counts = run_clients(cluster, pool)
        delivered = {message for _, done, _, _, _ in ends for message in done}
        pooled = sum(behind for _, _, behind, _, _ in ends)
        states = sum((Counter(seen) for _, _, _, seen, _ in ends), Counter())
        print(f"{time.monotonic() - began:.0f} seconds, seed {SEED}, {counts}, {len(delivered)} messages, "
              f"{pooled} deliveries through pgbouncer, errors that were repeated: {dict(states)}")
        for number, _, _, _, error in ends:
            verdict.check(error is None, f"client {number} came to its end", error)
        verdict.check(pooled > 0, "some of them behind pgbouncer", pooled)
        hits(verdict, counts)
        left = rests(cluster)
        verdict.check(left == 0, "no lock and no prepared transaction is left", left)
        balances(verdict, cluster, delivered)
        is_intact(verdict, cluster)


main()
