"""A private pgbouncer in transaction mode, in front of the coordinator of a cluster."""

import contextlib
import os
import re
import subprocess
import time

import psycopg

PROGRAM = "/usr/sbin/pgbouncer"

SETTINGS = """
[databases]
* = host={host} port={port} user=postgres
[pgbouncer]
listen_port = 6432
unix_socket_dir = {directory}
auth_type = any
pool_mode = transaction
default_pool_size = {connections}
server_login_retry = 1
logfile = {directory}/log
"""


def knows_statements():
    """From 1.21 on, statements that a client has prepared under a name are there on each connection to the server."""
    said = subprocess.run([PROGRAM, "--version"], check=True, capture_output=True, text=True).stdout
    return tuple(map(int, re.search(r"(\d+)\.(\d+)", said).groups())) >= (1, 21)


class Pooler:
    """With a number of connections to the server that all clients share."""

    def __init__(self, directory):
        self.directory = directory
        self.options = {} if knows_statements() else {"prepare_threshold": None}

    def connect(self, **options):
        """A session of a client."""
        return psycopg.connect(host=self.directory, port=6432, user="postgres", dbname="postgres",
                               autocommit=options.pop("autocommit", True), **self.options, **options)


def wait_for(path):
    """Until the socket is there."""
    deadline = time.monotonic() + 30
    while not os.path.exists(path):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {path}")
        time.sleep(0.05)


@contextlib.contextmanager
def pooler(cluster, connections):
    """It runs as long as the context does."""
    directory = os.path.join(cluster.work, "pooler")
    os.mkdir(directory)
    settings = os.path.join(directory, "pgbouncer.ini")
    with open(settings, "w", encoding="utf-8") as file:
        file.write(SETTINGS.format(host=cluster.work, port=cluster.ports[0], directory=directory, connections=connections)
                   + ("max_prepared_statements = 100\n" if knows_statements() else ""))
    process = subprocess.Popen([PROGRAM, "-q", settings], stderr=subprocess.DEVNULL)
    try:
        wait_for(os.path.join(directory, ".s.PGSQL.6432"))
        yield Pooler(directory)
    finally:
        # from 1.23 on SIGTERM waits for the clients
        process.kill()
        process.wait()
