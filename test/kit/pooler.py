"""A private pgbouncer in transaction mode, with few connections to the server of the environment, so that what
one client leaves in a session meets the next one. It differs from the server in the directory of its socket.

    python3 pooler.py CONNECTIONS

prints the directory when somebody answers there, and ends with its input.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import time

from fault_proxy import connect_to

PROGRAM = "/usr/sbin/pgbouncer"

SETTINGS = """
[databases]
* = host={PGHOST} port={PGPORT} user={PGUSER}
[pgbouncer]
listen_port = {PGPORT}
unix_socket_dir = {directory}
auth_type = any
pool_mode = transaction
default_pool_size = {connections}
max_client_conn = 200
ignore_startup_parameters = extra_float_digits
logfile = {directory}/log
"""


@contextlib.contextmanager
def pooler(connections, server=os.environ, more=""):
    """Gives the directory. More are settings."""
    with tempfile.TemporaryDirectory(dir=os.environ["IDEM_WORK"]) as directory:
        settings = os.path.join(directory, "pgbouncer.ini")
        with open(settings, "w", encoding="utf-8") as file:
            file.write(SETTINGS.format(**server, directory=directory, connections=connections) + more)
        process = subprocess.Popen([PROGRAM, "-q", settings], stderr=subprocess.DEVNULL)
        try:
            wait_for(socket_in(directory, server), process)
            yield directory
        finally:
            # from 1.23 on SIGTERM waits for the clients
            process.kill()
            process.wait()


def socket_in(directory, server=os.environ):
    return f'{directory}/.s.PGSQL.{server["PGPORT"]}'


def wait_for(path, process):
    deadline = time.monotonic() + 30
    while True:
        try:
            connect_to(path).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("pgbouncer does not answer; as root it does not run")
            time.sleep(0.05)


def main():
    with pooler(int(sys.argv[1])) as directory:
        print(directory, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
