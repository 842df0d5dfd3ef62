"""Clients behind pgbouncer in transaction mode, in front of the coordinator: they share one
connection, and what one leaves in it meets the next.
"""

import psycopg

from cluster import Cluster, knows_statements
from verdict import Verdict

TENANTS = range(1, 9)
BEGIN = "SELECT outcome::text FROM idem_begin(%s, scope => %s)"


def pay(session, tenant, key):
    """One business transaction: its outcome."""
    with session.transaction():
        outcome = session.execute(BEGIN, (key, str(tenant))).fetchone()[0]
        if outcome == "ACQUIRED":
            session.execute("UPDATE account SET balance = balance - 1 WHERE tenant = %s", (tenant,))
            session.execute("SELECT idem_complete(%s, '{\"paid\": 1}', %s)", (key, str(tenant)))
    return outcome


def takes_effect_once(verdict, cluster, clients):
    """Each client sends each message, from connection to connection in turn."""
    servers = {client.execute("SELECT pg_backend_pid()").fetchone()[0] for client in clients}
    verdict.check(len(servers) == 1, "the clients share a connection", servers)
    for tenant in TENANTS:
        outcomes = [pay(client, tenant, "charge") for client in clients * 2]
        verdict.check(outcomes == ["ACQUIRED"] + ["COMPLETED"] * (len(outcomes) - 1), f"tenant {tenant}: once", outcomes)
    balances = cluster.value(0, "SELECT array_agg(DISTINCT balance) FROM account")
    verdict.check(balances == [99], "and so are the business writes", balances)


def ends_for_another(verdict, clients):
    """A lease belongs to nobody's session."""
    first, second = clients[:2]
    fence = first.execute("SELECT fence FROM idem_begin('lease', scope => '5', lease => '1 h')").fetchone()[0]
    seen = second.execute("SELECT outcome::text FROM idem_begin('lease', scope => '5', lease => '1 h')").fetchone()[0]
    verdict.check(seen == "IN_PROGRESS", "another client waits for its end", seen)
    second.execute("SELECT idem_complete('lease', '1', '5', fence => %s)", (fence,))
    seen = first.execute("SELECT outcome::text FROM idem_begin('lease', scope => '5', lease => '1 h')").fetchone()[0]
    verdict.check(seen == "COMPLETED", "and may end it", seen)


def error_of_open(client, tenant):
    """The SQLSTATE of a transaction that writes on several nodes and leaves an operation unfinished."""
    try:
        with client.transaction():
            client.execute("UPDATE account SET balance = balance - 1")
            client.execute("SELECT idem_begin('open', scope => %s)", (str(tenant),))
    except psycopg.Error as error:
        return error.sqlstate
    return None


def leaves_nothing(verdict, cluster, clients):
    """What one client has not finished is refused for this client, and for no other."""
    first, second = clients[:2]
    for tenant in TENANTS:
        state = error_of_open(first, tenant)
        verdict.check(state == "ID428", f"tenant {tenant}: an unfinished operation is refused", state)
        outcome = pay(second, tenant, "next")
        verdict.check(outcome == "ACQUIRED", "the next transaction of the connection commits", outcome)
    balances = cluster.value(0, "SELECT array_agg(DISTINCT balance) FROM account")
    verdict.check(balances == [98], "and nothing else was committed", balances)


def prepares_statements(verdict, clients):
    """In a transaction as SQL; over transactions where pgbouncer knows of them."""
    for number, client in enumerate(clients):
        with client.transaction():
            client.execute("PREPARE step (text, text) AS SELECT outcome::text FROM idem_begin($1, scope => $2)")
            outcomes = [client.execute(f"EXECUTE step ('charge', '{tenant}')").fetchone()[0] for tenant in list(TENANTS) * 2]
            client.execute("DEALLOCATE step")
        verdict.check(set(outcomes) == {"COMPLETED"}, f"client {number}: PREPARE and EXECUTE within a transaction", outcomes)
    named = knows_statements()
    outcomes = [client.execute(BEGIN, ("charge", str(tenant)), prepare=named).fetchone()[0]
                for tenant in list(TENANTS) * 2 for client in clients]
    verdict.check(set(outcomes) == {"COMPLETED"}, "prepared under a name, and used by all clients" if named
                  else "prepared without a name, as this pgbouncer forgets names", outcomes)


def pipelines(verdict, clients):
    """Several calls at once."""
    with clients[0].pipeline():
        cursors = [clients[0].execute(BEGIN, ("charge", str(tenant))) for tenant in TENANTS]
    outcomes = {cursor.fetchone()[0] for cursor in cursors}
    verdict.check(outcomes == {"COMPLETED"}, "a pipeline for tenants of all nodes", outcomes)


def main():
    with Verdict() as verdict, Cluster("pooled", 2) as cluster, cluster.pooler(1) as connect:
        cluster.do(0, "CREATE TABLE account (tenant bigint PRIMARY KEY, balance bigint NOT NULL)")
        cluster.do(0, "SELECT create_distributed_table('account', 'tenant', shard_count := 4)")
        cluster.do(0, "INSERT INTO account SELECT n, 100 FROM unnest(%s::bigint[]) n", list(TENANTS))
        cluster.do(0, "SELECT idem_distribute_store('account')")
        clients = [connect(autocommit=True) for _ in range(3)]
        takes_effect_once(verdict, cluster, clients)
        ends_for_another(verdict, clients)
        leaves_nothing(verdict, cluster, clients)
        prepares_statements(verdict, clients)
        pipelines(verdict, clients)


main()
