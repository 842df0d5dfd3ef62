"""Sealed responses of a distributed store: the key file of each node, nodes that lack it, and
sealing anew on all of them.
"""

import os

import psycopg

from cluster import Cluster
from verdict import Verdict

TENANTS = range(1, 13)
SECRETS = {"k1": "1" * 64, "k2": "2" * 64, "k3": "3" * 64}
LATE = 3    # the node that gets its key later than the others
SEAL_ALL = "SELECT idem_reseal()"


def give_keys(cluster, node, *names):
    """The key file of a node, the newest key last."""
    path = f"{cluster.work}/keys-{node}"
    with open(os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.writelines(f"{name} {SECRETS[name]}\n" for name in names)
    os.replace(f"{path}.new", path)
    return path


def give_all_keys(cluster, *names):
    for node in range(len(cluster.ports)):
        give_keys(cluster, node, *names)


def store(cluster, node, tenant, key):
    """A response of a tenant; the SQLSTATE that refuses it, or None."""
    try:
        with cluster.connect(node, autocommit=False) as session:
            session.execute("SELECT idem_begin(%s, '{\"amount\": 10}', %s)", (key, str(tenant)))
            session.execute("SELECT idem_complete(%s, jsonb_build_object('tenant', %s::bigint), %s)", (key, tenant, str(tenant)))
    except psycopg.Error as error:
        return error.sqlstate
    return None


def replay(cluster, node, tenant, key, request="NULL"):
    """The stored response, or the SQLSTATE that refuses it."""
    try:
        outcome, response = cluster.do(node, "SELECT outcome::text, response_payload"
                                       f" FROM idem_begin(%s, {request}, %s, lease => '1 h')", key, str(tenant))[0]
    except psycopg.Error as error:
        return error.sqlstate
    return response["tenant"] if outcome == "COMPLETED" else outcome


def replays(verdict, cluster, what, *keys):
    """Every response comes from every node."""
    wrong = [(node, tenant, key) for node in range(len(cluster.ports)) for tenant in TENANTS for key in keys
             if replay(cluster, node, tenant, key) != tenant]
    verdict.check(not wrong, what, wrong)


def stored_with(cluster):
    """How many responses are sealed with which key; None: in clear."""
    return dict(cluster.do(0, "SELECT seal_key, count(*) FROM idempotency_store"
                           " WHERE sealed IS NOT NULL OR response_payload IS NOT NULL GROUP BY 1"))


def seal_anew(cluster):
    """All nodes: how many each has sealed."""
    return {node: int(sealed) for node, sealed in cluster.everywhere(SEAL_ALL).items()}


def needs_key_everywhere(verdict, cluster):
    """A node that lacks the file, or the key, stores and replays nothing."""
    for tenant in TENANTS:
        store(cluster, tenant % 4, tenant, "clear")
    verdict.check(stored_with(cluster) == {None: len(TENANTS)}, "without a key all are in clear", stored_with(cluster))
    for node in range(len(cluster.ports)):
        cluster.configure(node, "idempotency.accept_clear_responses", "on")
        cluster.configure(node, "idempotency.seal_key_file", f"{cluster.work}/keys-{node}")
        if node != LATE:
            give_keys(cluster, node, "k1")
    late = [tenant for tenant in TENANTS if cluster.node_of(tenant) == LATE]
    verdict.check(len(late) > 0, "some tenants are on the node that has no file yet", late)
    for tenant in TENANTS:
        for node in (0, LATE):
            state = store(cluster, node, tenant, f"first-{node}")
            verdict.check(state == ("58P01" if tenant in late else None),
                          f"tenant {tenant} from node {node}, one node without a file", state)
    stored = cluster.value(0, "SELECT count(*) FROM idempotency_store WHERE idempotency_key LIKE 'first%%'")
    verdict.check(stored == 2 * (len(TENANTS) - len(late)), "what is refused is not stored in clear either", stored)
    moves_to_late(verdict, cluster, next(tenant for tenant in TENANTS if tenant not in late))
    give_keys(cluster, LATE, "k1")
    for tenant in late:
        for node in (0, LATE):
            verdict.check(store(cluster, node, tenant, f"first-{node}") is None, f"tenant {tenant}, when the node has the file")


def answers(verdict, cluster, tenant, expected, what):
    """The response of a tenant, or the SQLSTATE that refuses it."""
    got = replay(cluster, 0, tenant, "first-0")
    verdict.check(got == expected, what, got)


def moves_to_late(verdict, cluster, tenant):
    """A sealed response comes to a node that cannot open it, and back."""
    home = cluster.node_of(tenant)
    cluster.move(tenant, LATE)
    answers(verdict, cluster, tenant, "58P01", "58P01 on a node without the file")
    give_keys(cluster, LATE, "k2")
    answers(verdict, cluster, tenant, "55000", "55000 where the file has another key")
    cluster.configure(LATE, "idempotency.seal_key_file", "")
    answers(verdict, cluster, tenant, "55000", "55000 on a node without the setting")
    cluster.configure(LATE, "idempotency.seal_key_file", f"{cluster.work}/keys-{LATE}")
    cluster.move(tenant, home)
    answers(verdict, cluster, tenant, tenant, "and it is opened again where the key is")


def seals_clear_ones(verdict, cluster):
    """What was stored before the key, on all nodes."""
    replays(verdict, cluster, "all are replayed meanwhile", "clear", "first-0")
    in_clear = stored_with(cluster)[None]
    sealed = seal_anew(cluster)
    verdict.check(sum(sealed.values()) == in_clear == len(TENANTS), "each response in clear is sealed once", sealed)
    verdict.check(sealed[0] == 0 and all(sealed[node] > 0 for node in (1, 2, 3)), "each worker seals its own", sealed)
    verdict.check(set(stored_with(cluster)) == {"k1"}, "nothing is in clear", stored_with(cluster))
    verdict.check(sum(seal_anew(cluster).values()) == 0, "and nothing is left to seal")
    for node in range(len(cluster.ports)):
        cluster.configure(node, "idempotency.accept_clear_responses", "off")
    replays(verdict, cluster, "all are replayed afterwards", "clear", "first-0", f"first-{LATE}")


def refuses_clear_ones(verdict, cluster):
    """A node without the setting stores in clear what no other node believes."""
    tenant = next(tenant for tenant in TENANTS if cluster.node_of(tenant) == LATE)
    cluster.configure(LATE, "idempotency.seal_key_file", "")
    verdict.check(store(cluster, 0, tenant, "unseen") is None, "a node without the setting stores in clear")
    cluster.move(tenant, 1)
    got = replay(cluster, 0, tenant, "unseen")
    verdict.check(got == "55000", "which another node refuses", got)
    cluster.configure(LATE, "idempotency.seal_key_file", f"{cluster.work}/keys-{LATE}")


def rotates(verdict, cluster):
    """A second key, and the first one goes."""
    total = sum(stored_with(cluster).values())
    give_all_keys(cluster, "k1", "k2")
    sealed = 0
    for node in range(len(cluster.ports)):
        with cluster.connect(node) as session:
            calls = iter(lambda: session.execute("SELECT idem_reseal(4)").fetchone()[0], 0)
            sealed += sum(calls)
    verdict.check(sealed == total, "a few at a time, on one node after the other", f"{sealed}, {total}")
    verdict.check(stored_with(cluster) == {"k2": total}, "all have the new key", stored_with(cluster))
    is_fingerprinted(verdict, cluster)
    give_all_keys(cluster, "k2")
    replays(verdict, cluster, "the first key is not needed for any response", "clear", "first-0", f"first-{LATE}")
    got = replay(cluster, 0, TENANTS[0], "first-0", "'{\"amount\": 10}'")
    verdict.check(got == "55000", "but for fingerprints it is", got)
    give_all_keys(cluster, "k1", "k2")


def is_fingerprinted(verdict, cluster):
    """The fingerprint of one node is that of all others."""
    tenant = TENANTS[0]
    for node in (1, 2, 3):
        cluster.move(tenant, node)
        got = replay(cluster, 0, tenant, "first-0", "'{\"amount\": 10.0}'")
        verdict.check(got == tenant, f"the same request on node {node}", got)
        got = replay(cluster, 0, tenant, "first-0", "'{\"amount\": 11}'")
        verdict.check(got == "ID422", f"another request on node {node}", got)


def passes_over_moving(verdict, cluster):
    """A shard whose place is just changing is sealed another time; nothing waits for it."""
    give_all_keys(cluster, "k1", "k2", "k3")
    total = sum(stored_with(cluster).values())
    with cluster.moving(TENANTS[0]):
        while sum(seal_anew(cluster).values()) > 0:
            pass
    left = stored_with(cluster).get("k2", 0)
    verdict.check(0 < left < total, "a shard that is being moved is passed over", f"{left}, {total}")
    verdict.check(sum(seal_anew(cluster).values()) == left, "and sealed later")
    verdict.check(stored_with(cluster) == {"k3": total}, "so all have the newest key", stored_with(cluster))


def main():
    with Verdict() as verdict, Cluster("sealing") as cluster:
        cluster.do(0, "CREATE EXTENSION pgcrypto")
        cluster.do(0, "CREATE TABLE account (tenant bigint PRIMARY KEY)")
        cluster.do(0, "SELECT create_distributed_table('account', 'tenant', shard_count := 8)")
        cluster.do(0, "SELECT idem_distribute_store('account')")
        needs_key_everywhere(verdict, cluster)
        seals_clear_ones(verdict, cluster)
        refuses_clear_ones(verdict, cluster)
        rotates(verdict, cluster)
        passes_over_moving(verdict, cluster)


main()
