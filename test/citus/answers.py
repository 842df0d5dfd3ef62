"""What a distributed store answers, from every node and for every type of tenants."""

import threading
import time

import psycopg

from cluster import HOST, Cluster
from ports import free_ports
from verdict import Verdict

# type of the tenants, and two of them
TYPES = {
    "bigint": (5, 6),
    "integer": (5, 6),
    "uuid": ("0d2f6d1e-5f0c-4a3a-8a43-0a5c7e6d1b01", "0d2f6d1e-5f0c-4a3a-8a43-0a5c7e6d1b02"),
    "text": ("acme", "büro"),
    'text COLLATE "C"': ("acme", "büro"),
    "varchar(40)": ("acme", "büro"),
}


def error_of(cluster, node, statements, user="postgres"):
    """The SQLSTATE that a transaction ends with; None: it commits."""
    session = cluster.connect(node, user=user, autocommit=False)
    try:
        for statement in statements:
            session.execute(statement)
        session.commit()
        return None
    except psycopg.Error as error:
        return error.sqlstate
    finally:
        session.close()


def error_in(session, statement):
    """The SQLSTATE of one statement."""
    try:
        session.execute(statement)
        return None
    except psycopg.Error as error:
        return error.sqlstate


def refuses(verdict, cluster, node, state, *statements, user="postgres"):
    """The transaction ends with that SQLSTATE."""
    got = error_of(cluster, node, statements, user=user)
    verdict.check(got == state, f"{state} from node {node}: {statements[-1][:90]}", f"got {got}")


def answers(verdict, cluster, node, expected, sql, *arguments):
    """The statement gives this value."""
    got = cluster.value(node, sql, *arguments)
    verdict.check(got == expected, f"{expected} from node {node}: {sql[:90]}", f"got {got}")


def keeps_its_name(verdict, cluster, node, call):
    """While the call waits, nobody gives the name of the schema to another one, whose functions would run as the superuser."""
    with (cluster.connect(node, autocommit=False) as holder, cluster.connect(node, autocommit=False) as caller,
          cluster.connect(node, autocommit=False) as owner):
        holder.execute("SET citus.enable_ddl_propagation = off")
        holder.execute("ALTER SEQUENCE idempotency_fence OWNER TO postgres")
        holder.execute("LOCK TABLE idempotency_store IN ACCESS SHARE MODE")
        thread = threading.Thread(target=error_in, args=(caller, call))
        thread.start()
        while thread.is_alive() and not cluster.value(node, "SELECT count(*) FROM pg_locks WHERE pid = %s AND NOT granted",
                                                      caller.info.backend_pid):
            time.sleep(0.01)
        owner.execute("SET citus.enable_ddl_propagation = off")
        owner.execute("SET lock_timeout = '10ms'")
        waits = thread.is_alive()
        got = error_in(owner, "ALTER SCHEMA public RENAME TO other")
        verdict.check(waits and got == "55P03", f"node {node}: the schema keeps its name during {call}", f"{waits}, {got}")
        caller.cancel()
        thread.join()
        for session in (owner, caller, holder):
            session.rollback()


def has_no_store(verdict, cluster):
    """What could not be right was refused before anybody distributed anything."""
    refuses(verdict, cluster, 1, "55000", "SELECT idem_begin('k', lease => '1 h')")
    cluster.do(0, "SELECT create_distributed_table('idempotency_store', 'scope')")
    for node in (0, 1):
        refuses(verdict, cluster, node, "55000", "SELECT idem_begin('k', lease => '1 h')")
        refuses(verdict, cluster, node, "55000", "SELECT idem_gc()")
    cluster.do(0, "SELECT idem_undistribute_store()")
    cluster.do(0, "SELECT create_reference_table('idempotency_store')")
    refuses(verdict, cluster, 0, "55000", "SELECT idem_begin('k', lease => '1 h')")
    cluster.do(0, "SELECT idem_undistribute_store()")
    answers(verdict, cluster, 0, "ACQUIRED", "SELECT outcome::text FROM idem_begin('k', lease => '1 h')")
    cluster.do(0, "DELETE FROM idempotency_store")


def is_refused(verdict, cluster):
    """idem_distribute_store says what it needs."""
    cluster.do(0, "CREATE TABLE local (id int PRIMARY KEY)")
    cluster.do(0, "CREATE TABLE of_day (day date)")
    cluster.do(0, "SELECT create_distributed_table('of_day', 'day')")
    refuses(verdict, cluster, 0, "ID400", "SELECT idem_distribute_store(NULL)")
    refuses(verdict, cluster, 0, "55000", "SELECT idem_distribute_store('local')")
    refuses(verdict, cluster, 0, "55000", "SELECT idem_distribute_store('of_day')")
    refuses(verdict, cluster, 1, "55000", "SELECT idem_distribute_store('of_day')")
    refuses(verdict, cluster, 0, "42501", "SET ROLE pg_monitor", "SELECT idem_undistribute_store()")
    cluster.do(0, "CREATE ROLE app LOGIN")
    cluster.do(0, "SELECT idem_grant('app')")
    refuses(verdict, cluster, 0, "42501", "SELECT idem_distribute_store('of_day')", user="app")
    # what another role has put on its table would run with the rights of a superuser
    for node, call in ((0, "SELECT idem_distribute_store('of_day')"), (0, "SELECT idem_undistribute_store()"),
                       (1, "SELECT idem_prepare_node('bigint')")):
        refuses(verdict, cluster, node, "42501", "ALTER TABLE idempotency_scope OWNER TO app", call)
    # shards do not inherit: what is in a ring of this node would be lost
    refuses(verdict, cluster, 1, "0A000", "SELECT idem_partition_store('1 day')", "SELECT idem_prepare_node('bigint')")
    # whom somebody lets call a function of his own, which has the name of one of ours
    cluster.do(0, "CREATE ROLE eve")
    cluster.do(0, "CREATE FUNCTION idem_begin(int) RETURNS int LANGUAGE sql AS 'SELECT 1'")
    cluster.do(0, "GRANT EXECUTE ON FUNCTION idem_begin(int) TO eve")


def distribute(cluster, kind):
    """Business tables of tenants of a type, and the store beside them."""
    first, second = TYPES[kind]
    cluster.tenants = kind
    if kind == "uuid":
        # its name has quotes then
        cluster.do(0, f"ALTER DATABASE {cluster.database} SET quote_all_identifiers = on")
    cluster.do(0, f"CREATE TABLE account (tenant {kind} PRIMARY KEY, balance bigint NOT NULL)")
    cluster.do(0, "SELECT create_distributed_table('account', 'tenant', shard_count := 8)")
    cluster.do(0, "INSERT INTO account VALUES (%s, 100), (%s, 100)", first, second)
    cluster.do(0, "GRANT SELECT, UPDATE ON account TO app")
    for _ in range(2):     # the second time, as for a new node, the column of the tenants is there
        cluster.do(0, "SELECT idem_distribute_store('account')")


def pay(cluster, node, tenant, key, user="app"):
    """One business transaction: its outcome."""
    with cluster.connect(node, user=user, autocommit=False) as session:
        outcome = session.execute("SELECT outcome::text FROM idem_begin(%s, '{\"amount\": 10}', %s)",
                                  (key, str(tenant))).fetchone()[0]
        if outcome == "ACQUIRED":
            session.execute("UPDATE account SET balance = balance - 10 WHERE tenant = %s", (tenant,))
            session.execute("SELECT idem_complete(%s, '{\"paid\": 10}', %s)", (key, str(tenant)))
        return outcome


def takes_effect_once(verdict, cluster, kind):
    """The same transaction from each node."""
    for tenant in TYPES[kind]:
        outcomes = [pay(cluster, node, tenant, "charge") for node in (2, 0, 1, 3, 0)]
        verdict.check(outcomes == ["ACQUIRED"] + ["COMPLETED"] * 4, f"{kind}: a key takes effect once, from every node", outcomes)
        balance = cluster.value(0, "SELECT balance FROM account WHERE tenant = %s", tenant)
        verdict.check(balance == 90, f"{kind}: and so does its business write", balance)
        here = cluster.value(0, f"SELECT count(*) FROM idempotency_store WHERE tenant = %s::{kind}", tenant)
        verdict.check(here == 1, f"{kind}: the record has the tenant", here)


def belongs_together(verdict, cluster, kind):
    """Record and effect are on one node, whichever that is."""
    for tenant in TYPES[kind]:
        nodes = [cluster.node_of(tenant, table) for table in ("account", "idempotency_store")]
        verdict.check(nodes[0] == nodes[1], f"{kind}: record and effect are on one node", nodes)


def refuses_other_scopes(verdict, cluster, kind):
    """A scope that is no tenant."""
    if kind in ("bigint", "integer", "uuid"):
        for node in (0, 1):
            refuses(verdict, cluster, node, "ID400", "SELECT idem_begin('k', scope => 'nobody')")
            refuses(verdict, cluster, node, "ID400", "SELECT * FROM idem_begin('k', lease => '1 h')")


def guards_commit(verdict, cluster):
    """An unfinished operation is ID428 for the client, however many nodes have written."""
    begin = "SELECT idem_begin('open', scope => '{}')"
    write = "UPDATE account SET balance = balance - 1 WHERE tenant = {}"
    for node in (0, 1):
        refuses(verdict, cluster, node, "ID428", begin.format(5))
        refuses(verdict, cluster, node, "ID428", begin.format(5), write.format(5))
        refuses(verdict, cluster, node, "ID428", write.format(6), begin.format(5), write.format(5))
        refuses(verdict, cluster, node, "ID428", write.format(6), begin.format(5), begin.format(6))
        # where the node of the client could lose count
        end = "SELECT idem_complete('open', '1', scope => '5')"
        refuses(verdict, cluster, node, "ID428", begin.format(5), "SAVEPOINT s", end, "ROLLBACK TO s")
        refuses(verdict, cluster, node, "ID428", "SELECT idem_begin_batch('{open,more}', scope => '5')", end)
        refuses(verdict, cluster, node, "ID428", begin.format(5), user="app")
        session = cluster.connect(node, autocommit=False)
        session.execute(begin.format(5))
        verdict.check(error_in(session, "COMMIT") == "ID428", f"COMMIT from node {node} is refused")
        status = session.info.transaction_status
        verdict.check(status == psycopg.pq.TransactionStatus.IDLE, "and has ended the transaction", status)
        session.close()
    left = cluster.value(0, "SELECT sum(balance) FROM account")
    verdict.check(left == 180, "and nothing of it was committed", left)
    # a deferred trigger belongs to the transaction, and may end the operation
    cluster.do(0, """CREATE TABLE job (); CREATE FUNCTION end_late() RETURNS trigger LANGUAGE plpgsql AS $$
        DECLARE ended record;
        BEGIN SELECT * INTO ended FROM idem_complete('late', '1', scope => '5'); RETURN NULL; END $$""")
    cluster.do(0, "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON job DEFERRABLE INITIALLY DEFERRED"
                  " FOR EACH ROW EXECUTE FUNCTION end_late()")
    late = error_of(cluster, 0, ("SELECT idem_begin('late', scope => '5')", "INSERT INTO job DEFAULT VALUES"))
    verdict.check(late is None, "an operation that a deferred trigger ends is finished", late)
    cluster.do(0, "DROP TABLE job; DROP FUNCTION end_late()")


def runs_elsewhere_never(verdict, cluster):
    """Where Citus does not send a call, the answer is right or an error, and never another node's."""
    away = 1 if cluster.node_of(5) != 1 else 2
    home = cluster.node_of(5)
    undelegated = (
        "SELECT (idem_begin('charge', scope => '5')).outcome",
        "WITH x AS MATERIALIZED (SELECT * FROM idem_begin('charge', scope => '5')) SELECT outcome FROM x",
        "SELECT outcome FROM idem_begin('charge', scope => '5') WHERE clock_timestamp() IS NOT NULL",
        "SELECT idem_begin('charge', scope => s) FROM (VALUES ('5')) v (s)",
        "DO $$ DECLARE r idem_operation; BEGIN r := idem_begin('charge', scope => '5'); END $$",
        "DO $$ BEGIN PERFORM idem_begin('charge', scope => '5'); END $$",
        "SELECT idem_complete(ROW('ACQUIRED', '5', 'charge', 1, false, false, NULL, NULL, NULL, NULL, NULL, NULL, NULL,"
        " now(), now(), now())::idem_operation)",
    )
    for statement in undelegated:
        refuses(verdict, cluster, away, "ID421", statement)
    for statement in undelegated[:3]:
        got = error_of(cluster, home, [statement])
        verdict.check(got is None, f"the node that has it answers: {statement[:60]}", got)
    with cluster.connect(away) as session:
        session.execute("DO $$ DECLARE r record; BEGIN SELECT * INTO r FROM idem_begin('charge', scope => '5');"
                        " IF r.outcome <> 'COMPLETED' THEN RAISE 'wrong'; END IF; END $$")
        outcomes = [session.execute("SELECT outcome::text FROM idem_begin(%s, scope => %s, request => '{\"amount\": 10}')",
                                    ("charge", "5"), prepare=True).fetchone()[0] for _ in range(12)]
        verdict.check(set(outcomes) == {"COMPLETED"}, "a prepared statement, also after twelve runs", outcomes)
        with session.pipeline():
            cursors = [session.execute("SELECT outcome::text FROM idem_begin('charge', scope => '5')") for _ in range(3)]
        verdict.check([c.fetchone()[0] for c in cursors] == ["COMPLETED"] * 3, "a pipeline")


def keeps_fences(verdict, cluster):
    """A fence is greater than all before, whatever has become of their rows, and wherever the shard is."""
    fences = []
    lease = "SELECT fence FROM idem_begin('lease', scope => '5', lease => '1 h')"

    def release():
        fences.append(cluster.value(0, lease))
        verdict.check(cluster.value(1, "SELECT idem_release('lease', '5', %s)", fences[-1]), "released, from another node")

    for node in (1, 2, 3, 1, 1, 3):
        cluster.move(5, node)
        release()
        release()
    verdict.check(fences == sorted(set(fences)), "fences grow over releases and moves", fences)
    cluster.do(0, "SELECT isolate_tenant_to_new_shard('account', 5, 'CASCADE', shard_transfer_mode := 'block_writes')")
    release()
    fences.append(cluster.value(0, "SELECT fence FROM idem_begin('short', scope => '5', lease => '1 ms')"))
    cluster.do(0, "SELECT pg_sleep(0.01)")
    fences.append(cluster.value(0, "SELECT fence FROM idem_begin('short', scope => '5', lease => '1 h')"))
    verdict.check(fences == sorted(set(fences)), "and over a split and a takeover", fences)


def holds_rules_everywhere(verdict, cluster):
    """Claims and policies are in force on every node at once."""
    cluster.do(0, "CREATE ROLE owner LOGIN")
    cluster.do(0, "SELECT idem_grant('owner')")
    for node in (0, 1, 2, 3):
        cluster.do(node, "SELECT outcome FROM idem_begin('charge', scope => '6')", user="app")
    cluster.do(0, "SELECT idem_claim_scope('6', 'owner')")
    for node in (0, 1, 2, 3):
        refuses(verdict, cluster, node, "ID403", "SELECT idem_begin('charge', scope => '6')", user="app")
        verdict.check(error_of(cluster, node, ["SELECT idem_begin('charge', scope => '6')"], user="owner") is None,
                      f"the owner of the scope may use it from node {node}")
    cluster.do(0, "SELECT idem_unclaim_scope('6')")
    cluster.do(0, "SELECT idem_set_policy('6', retention => '3 h')")
    cluster.do(3, "SELECT idem_forget('charge', '6')")
    answers(verdict, cluster, 2, "ACQUIRED", "SELECT outcome::text FROM idem_begin('charge', scope => '6', lease => '1 h')")
    kept = cluster.value(0, "SELECT expires_at - lease_expires_at FROM idempotency_store"
                         " WHERE scope = '6' AND idempotency_key = 'charge'")
    verdict.check(kept.total_seconds() == 3 * 3600, "a policy holds on the node that has the scope", kept)
    cluster.do(0, "SELECT idem_set_policy('6', max_response_size => 20, too_large_response => '\"see there\"')")
    with cluster.connect(1, autocommit=False) as session:
        session.execute("SELECT idem_begin('large', scope => '6')")
        session.execute("SELECT idem_complete('large', to_jsonb(repeat('x', 99)), '6')")
    for node in (0, 1, 2, 3):
        answers(verdict, cluster, node, "see there", "SELECT response_payload FROM idem_begin('large', scope => '6')")


def does_the_rest(verdict, cluster):
    """Batches, handlers, collection, and what does not work on several nodes."""
    with cluster.connect(0, autocommit=False) as session:
        rows = session.execute("SELECT outcome::text FROM idem_begin_batch(ARRAY['a', 'b'], scope => '5')").fetchall()
        verdict.check(rows == [("ACQUIRED",), ("ACQUIRED",)], "a batch", rows)
        ended = session.execute("SELECT idem_complete_batch(ARRAY['a', 'b'], scope => '5')").fetchone()[0]
        verdict.check(ended == 2, "and its end", ended)
    cluster.do(0, "CREATE FUNCTION charge(request jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT '{\"done\": true}'::jsonb $$")
    for outcome in ("COMPLETED", "COMPLETED"):
        answers(verdict, cluster, 0, outcome, "SELECT outcome::text FROM idem_call('charge(jsonb)', 'call', '{}', '5')")
    for function in ("idem_lock(ARRAY['x'])", "idem_advance('s', 1, '5')", "idem_forget_failed('5', 'mended')"):
        for node in (0, 1):
            refuses(verdict, cluster, node, "0A000", f"SELECT {function}")
    cluster.do(0, "SELECT idem_set_policy('5', retention => '1 ms')")
    for key in range(20):
        pay(cluster, key % 4, 5, f"gone-{key}", user="postgres")
    cluster.do(0, "SELECT pg_sleep(0.01)")
    removed = sum(int(row[0]) for row in cluster.do(0, "SELECT result FROM run_command_on_all_nodes('SELECT idem_gc()')"))
    verdict.check(removed >= 20, "idem_gc on each node collects what is there", removed)
    left = cluster.value(0, "SELECT count(*) FROM idempotency_store WHERE idempotency_key LIKE 'gone-%%'")
    verdict.check(left == 0, "and nothing of it is left", left)
    is_collected(verdict, cluster)
    cluster.do(0, "SELECT idem_set_policy('5')")


def is_collected(verdict, cluster):
    """The collector of the node that has the shard removes what has expired there."""
    pay(cluster, 0, 5, "collected", user="postgres")
    node = cluster.node_of(5)
    cluster.do(node, "ALTER SYSTEM SET idempotency.gc_enabled = on")
    cluster.do(node, "SELECT pg_reload_conf()")
    deadline = time.monotonic() + 60
    left = 1
    while left and time.monotonic() < deadline:
        time.sleep(0.2)
        left = cluster.value(0, "SELECT count(*) FROM idempotency_store WHERE idempotency_key = 'collected'")
    verdict.check(left == 0, "the collector of a worker does so by itself", left)
    cluster.do(node, "ALTER SYSTEM RESET idempotency.gc_enabled")
    cluster.do(node, "SELECT pg_reload_conf()")


def grows_and_shrinks(verdict, cluster):
    """A node is added, gets shards, and is removed."""
    cluster.ports += free_ports(1)
    node = len(cluster.ports) - 1
    cluster.make(node)
    cluster.do(node, "CREATE ROLE app LOGIN")
    cluster.do(node, "CREATE ROLE owner LOGIN")
    cluster.do(node, "SELECT idem_prepare_node('bigint')")
    refuses(verdict, cluster, node, "0A000", "SELECT idem_partition_store('1 day')", "SELECT idem_restore_node()")
    for call in ("SELECT idem_prepare_node('bigint')", "SELECT idem_restore_node()"):
        keeps_its_name(verdict, cluster, node, call)
    for call in ("SELECT idem_distribute_store('account')", "SELECT idem_undistribute_store()"):
        keeps_its_name(verdict, cluster, 0, call)
    cluster.do(0, "SET citus.enable_unsafe_triggers = on")
    with cluster.connect(0) as session:
        session.execute("SET citus.enable_unsafe_triggers = on")
        session.execute("SELECT citus_add_node(%s, %s)", (HOST, cluster.ports[node]))
    cluster.do(0, "SELECT idem_distribute_store('account')")
    with cluster.connect(0) as session:
        session.execute("SET citus.enable_unsafe_triggers = on")
        session.execute("SELECT replicate_reference_tables('force_logical')")
    cluster.move(6, node)
    verdict.check(cluster.node_of(6) == node, "a shard is on the new node")
    answers(verdict, cluster, 1, "IN_PROGRESS", "SELECT outcome::text FROM idem_begin('charge', scope => '6')")
    verdict.check(pay(cluster, node, 6, "new") == "ACQUIRED", "which begins operations")
    cluster.move(6, 1)
    cluster.do(0, "SELECT citus_drain_node(%s, %s)", HOST, cluster.ports[node])
    cluster.do(0, "SELECT citus_remove_node(%s, %s)", HOST, cluster.ports[node])
    verdict.check(pay(cluster, 0, 6, "new") == "COMPLETED", "and its records have moved on when it is removed")


def goes_back(verdict, cluster, kind):
    """Everything comes back to the coordinator, and works there."""
    before = cluster.value(0, "SELECT count(*) FROM idempotency_store WHERE idempotency_key <> ''")
    fence = cluster.value(0, "SELECT coalesce(max(fence), 0) FROM idempotency_store")
    cluster.do(0, "SELECT idem_undistribute_store()")
    after = cluster.value(0, "SELECT count(*) FROM idempotency_store")
    verdict.check(before == after, f"{kind}: all records are back", f"{before}, {after}")
    last = cluster.value(0, "SELECT last_value FROM idempotency_fence")
    verdict.check(last >= fence, f"{kind}: the sequence is above all fences", f"{last}, {fence}")
    verdict.check(pay(cluster, 0, TYPES[kind][0], "charge", user="postgres") == "COMPLETED", f"{kind}: they are replayed there")
    columns = cluster.value(0, "SELECT count(*) FROM pg_attribute"
                            " WHERE attrelid = 'idempotency_store'::regclass AND attname = 'tenant'")
    verdict.check(columns == 0, f"{kind}: the column of the tenants is gone")
    cluster.do(0, "DELETE FROM idempotency_store")
    cluster.do(0, "DROP TABLE account")


def calls_only_its_own(verdict, cluster):
    """Functions that somebody has put into the schema neither run in the place of ours nor give rights."""
    cluster.do(0, "CREATE FUNCTION idem_advance(text, bigint, text, bigint) RETURNS boolean LANGUAGE sql AS 'SELECT true'")
    refuses(verdict, cluster, 0, "0A000", "SELECT idem_advance('s', 1, '5')")
    cluster.do(0, "DROP FUNCTION idem_advance(text, bigint, text, bigint)")
    for node in (0, 1):
        answers(verdict, cluster, node, 0, """
            SELECT count(*) FROM pg_proc p JOIN pg_depend d ON d.objid = p.oid AND d.deptype = 'e'
            CROSS JOIN aclexplode(p.proacl) a WHERE p.proname ~ '^idem_' AND a.grantee = 'eve'::regrole""")


def runs_no_code_of_the_owner(verdict, cluster):
    """The owner of the store gives the column of the tenants a type whose input runs his code."""
    node = cluster.node_of(5)
    cluster.do(0, "ALTER TABLE idempotency_store OWNER TO owner")
    cluster.do(0, "GRANT CREATE ON SCHEMA public TO owner")
    with cluster.connect(node, user="owner") as session:
        session.execute("SET citus.enable_ddl_propagation = off")
        session.execute("CREATE FUNCTION planted() RETURNS boolean LANGUAGE plpgsql"
                        " AS $$ BEGIN RAISE 'it runs as %', current_user; END $$")
        session.execute("CREATE DOMAIN planted AS bigint CHECK (planted())")
        session.execute("ALTER TABLE idempotency_store ALTER tenant TYPE planted")
    for function in ("idem_begin('charge', scope => '5')", "idem_lookup('charge', '5')", "idem_forget('charge', '5')",
                     "idem_gc()", "idem_reseal()"):
        refuses(verdict, cluster, node, "55000", f"SELECT {function}")
    with cluster.connect(node, user="owner") as session:
        session.execute("SET citus.enable_ddl_propagation = off")
        session.execute("ALTER TABLE idempotency_store ALTER tenant TYPE bigint")
        session.execute("DROP DOMAIN planted")
        session.execute("DROP FUNCTION planted()")
    cluster.do(0, "REVOKE CREATE ON SCHEMA public FROM owner")
    cluster.do(0, "ALTER TABLE idempotency_store OWNER TO postgres")
    answers(verdict, cluster, node, "COMPLETED", "SELECT outcome::text FROM idem_begin('charge', scope => '5')")


def main():
    """All of it on one cluster, a type after the other."""
    with Verdict() as verdict, Cluster("answers") as cluster:
        has_no_store(verdict, cluster)
        is_refused(verdict, cluster)
        for kind in TYPES:
            distribute(cluster, kind)
            takes_effect_once(verdict, cluster, kind)
            belongs_together(verdict, cluster, kind)
            refuses_other_scopes(verdict, cluster, kind)
            if kind == "bigint":
                guards_commit(verdict, cluster)
                runs_elsewhere_never(verdict, cluster)
                keeps_fences(verdict, cluster)
                holds_rules_everywhere(verdict, cluster)
                does_the_rest(verdict, cluster)
                calls_only_its_own(verdict, cluster)
                runs_no_code_of_the_owner(verdict, cluster)
                grows_and_shrinks(verdict, cluster)
            goes_back(verdict, cluster, kind)
        cluster.do(0, "DROP EXTENSION idempotency")
        left = cluster.value(0, "SELECT count(*) FROM pg_class WHERE relname LIKE 'idempotency%%'")
        verdict.check(left == 0, "DROP EXTENSION leaves nothing on the coordinator", left)


main()
