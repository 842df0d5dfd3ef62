"""A throw-away Citus cluster: servers on loopback, a coordinator and workers."""

import contextlib
import functools
import os
import re
import subprocess
import time

import psycopg

import pooler
from ports import free_ports

SETTINGS = """
listen_addresses = '127.0.0.1'
shared_preload_libraries = 'citus,idempotency'
wal_level = logical
max_prepared_transactions = 100
max_connections = 200
fsync = off
shared_buffers = 32MB
deadlock_timeout = 200ms
idempotency.gc_enabled = off
idempotency.gc_interval = 1
citus.enable_statistics_collection = off
citus.node_connection_timeout = 10s
citus.recover_2pc_interval = 1s
"""

HOST = "127.0.0.1"


def knows_statements():
    """From 1.21 on, pgbouncer has statements that a client has prepared under a name on each connection to the server."""
    said = subprocess.run([pooler.PROGRAM, "--version"], check=True, capture_output=True, text=True).stdout
    return tuple(map(int, re.search(r"(\d+)\.(\d+)", said).groups())) >= (1, 21)


class Cluster:
    """Node 0 is the coordinator."""

    tenants = "bigint"
    database = "postgres"

    def __init__(self, name, workers=3):
        self.work = os.path.join(os.environ["IDEM_WORK"], name)
        os.mkdir(self.work)
        self.ports = free_ports(workers + 1)

    def __enter__(self):
        for node in range(len(self.ports)):
            self.make(node)
        self.do(0, f"SELECT citus_set_coordinator_host('{HOST}', {self.ports[0]})")
        for port in self.ports[1:]:
            self.do(0, f"SELECT citus_add_node('{HOST}', {port})")
        return self

    def __exit__(self, *_):
        for node in range(len(self.ports)):
            self.control(node, "stop", "-m", "immediate", check=False)

    def make(self, node):
        """Makes and starts a server with both extensions, which knows no other node."""
        directory = self.directory(node)
        subprocess.run(["initdb", "-D", directory, "-A", "trust", "-U", "postgres", "--no-sync",
                        "--locale=C.UTF-8", "--encoding=UTF8"], check=True, stdout=subprocess.DEVNULL)
        with open(f"{directory}/postgresql.conf", "a", encoding="utf-8") as file:
            file.write(f"{SETTINGS}port = {self.ports[node]}\nunix_socket_directories = '{self.work}'\n")
        self.control(node, "start")
        self.do(node, "CREATE EXTENSION citus")
        self.do(node, "CREATE EXTENSION idempotency")

    def directory(self, node):
        """Where the node keeps its data."""
        return f"{self.work}/{node}"

    def control(self, node, *arguments, check=True):
        subprocess.run(["pg_ctl", "-s", "-w", "-t", "60", "-D", self.directory(node),
                        "-l", f"{self.work}/{node}.log", *arguments], check=check, stdout=subprocess.DEVNULL)

    def kill(self, node):
        """As a loss of power, but for the page cache; then a start."""
        self.control(node, "stop", "-m", "immediate")
        self.control(node, "start")

    def connect(self, node=0, user="postgres", **options):
        """A session, which commits each statement by itself if nothing else is asked."""
        return psycopg.connect(host=self.work, port=self.ports[node], user=user, dbname=self.database,
                               autocommit=options.pop("autocommit", True), **options)

    @contextlib.contextmanager
    def pooler(self, connections):
        """Gives what connects to the coordinator through pgbouncer, whose connections all clients share."""
        server = {"PGHOST": self.work, "PGPORT": self.ports[0], "PGUSER": "postgres"}
        more, options = "server_login_retry = 1\n", {"prepare_threshold": None}
        if knows_statements():
            more, options = more + "max_prepared_statements = 100\n", {}
        with pooler.pooler(connections, server, more) as directory:
            yield functools.partial(psycopg.connect, host=directory, port=self.ports[0], user="postgres",
                                    dbname=self.database, **options)

    def do(self, node, sql, *arguments, user="postgres"):
        with self.connect(node, user=user) as session:
            cursor = session.execute(sql, arguments or None)
            return cursor.fetchall() if cursor.description else []

    def value(self, node, sql, *arguments):
        return self.do(node, sql, *arguments)[0][0]

    def everywhere(self, sql, user="postgres"):
        """The only value of one statement, from each node."""
        rows = self.do(0, f"SELECT n.nodeport, r.success, r.result FROM run_command_on_all_nodes($sql${sql}$sql$) r"
                       " JOIN pg_dist_node n USING (nodeid)", user=user)
        for port, success, result in rows:
            if not success:
                raise RuntimeError(f"port {port}: {result}")
        return {self.ports.index(port): result for port, _, result in rows}

    def configure(self, node, name, value):
        """A setting of the server, until new sessions have it."""
        self.do(node, f"ALTER SYSTEM SET {name} = '{value}'")
        self.do(node, "SELECT pg_reload_conf()")
        deadline = time.monotonic() + 30
        while self.value(node, f"SHOW {name}") != value:
            if time.monotonic() > deadline:
                raise TimeoutError(f"node {node} does not read {name}")

    @contextlib.contextmanager
    def moving(self, tenant):
        """As a move does at its end, holds the lock of the metadata of a tenant's shard."""
        with self.connect(self.node_of(tenant), autocommit=False) as session:
            session.execute("SELECT lock_shard_metadata(7, ARRAY[%s]::bigint[])", (self.shard_of(tenant),))
            yield
            session.rollback()

    def shard_of(self, tenant, table="idempotency_store"):
        return self.value(0, f"SELECT get_shard_id_for_distribution_column(%s, %s::{self.tenants})", table, tenant)

    def node_of(self, tenant, table="idempotency_store"):
        return self.ports.index(self.value(0, """SELECT n.nodeport FROM pg_dist_placement p JOIN pg_dist_node n USING (groupid)
            WHERE p.shardid = %s""", self.shard_of(tenant, table)))

    def move(self, tenant, node, how="force_logical"):
        """Moves the shard of a tenant to a node, with all that is beside it."""
        source = self.node_of(tenant)
        if source != node:
            self.do(0, "SELECT citus_move_shard_placement(%s, %s, %s, %s, %s, %s::citus.shard_transfer_mode)",
                    self.shard_of(tenant), HOST, self.ports[source], HOST, self.ports[node], how)
