"""A private pgbouncer in transaction mode, with one connection to the server, so that what
one client leaves in a session meets the next one."""

import contextlib
import os
import subprocess
import tempfile

SETTINGS = """
[databases]
* = host={host} port={port} user={user}
[pgbouncer]
listen_port = 6432
unix_socket_dir = {directory}
auth_type = any
pool_mode = transaction
default_pool_size = 1
ignore_startup_parameters = extra_float_digits
logfile = {directory}/log
"""


@contextlib.contextmanager
def pooler(host, port, user):
    """Gives the path of its socket."""
    with tempfile.TemporaryDirectory(dir=os.environ["IDEM_WORK"]) as directory:
        settings = os.path.join(directory, "pgbouncer.ini")
        with open(settings, "w", encoding="utf-8") as file:
            file.write(SETTINGS.format(host=host, port=port, user=user, directory=directory))
        process = subprocess.Popen(["/usr/sbin/pgbouncer", "-q", settings], stderr=subprocess.DEVNULL)
        try:
            yield os.path.join(directory, ".s.PGSQL.6432")
        finally:
            process.terminate()
            process.wait()
