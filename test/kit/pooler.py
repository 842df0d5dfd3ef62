"""A private pgbouncer in transaction mode, with few connections to the server, so that what
one client leaves in a session meets the next one."""

import contextlib
import os
import subprocess
import tempfile
import time

from fault_proxy import connect_to

PORT = 6432         # names the socket
SETTINGS = """
[databases]
* = host={host} port={port} user={user}
[pgbouncer]
listen_port = {own}
unix_socket_dir = {directory}
auth_type = any
pool_mode = transaction
default_pool_size = {connections}
ignore_startup_parameters = extra_float_digits
logfile = {directory}/log
"""


@contextlib.contextmanager
def pooler(connections=1):
    """Before the server of the environment. Gives the directory of its socket."""
    with tempfile.TemporaryDirectory(dir=os.environ["IDEM_WORK"]) as directory:
        settings = os.path.join(directory, "pgbouncer.ini")
        with open(settings, "w", encoding="utf-8") as file:
            file.write(SETTINGS.format(host=os.environ["PGHOST"], port=os.environ["PGPORT"], user=os.environ["PGUSER"],
                                       own=PORT, directory=directory, connections=connections))
        process = subprocess.Popen(["/usr/sbin/pgbouncer", "-q", settings], stderr=subprocess.DEVNULL)
        try:
            wait_for(socket_in(directory))
            yield directory
        finally:
            # from 1.23 on SIGTERM waits for the clients
            process.kill()
            process.wait()


def socket_in(directory):
    """Its path."""
    return os.path.join(directory, f".s.PGSQL.{PORT}")


def wait_for(path):
    """Until somebody answers there."""
    deadline = time.monotonic() + 30
    while True:
        try:
            connect_to(path).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
