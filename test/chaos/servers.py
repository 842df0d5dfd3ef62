"""A primary and its synchronous standby, which change places, and their shared clock.

Each has its WAL on a disk of its own, which can be filled.
"""

import os
import re
import shutil
import signal
import subprocess
import time
from glob import glob

import psycopg

CONF = """
listen_addresses = ''
unix_socket_directories = '{socket}'
fsync = off
autovacuum_naptime = 5s
max_connections = 30
superuser_reserved_connections = 6
max_locks_per_transaction = 10
dynamic_shared_memory_type = mmap
max_wal_size = 24MB
min_wal_size = 4MB
wal_keep_size = 24MB
wal_recycle = off
wal_sender_timeout = 0
wal_receiver_timeout = 0
wal_retrieve_retry_interval = 200ms
synchronous_standby_names = '*'
restart_after_crash = on
log_line_prefix = '%m [%p] %q%a '
idempotency.gc_interval = 1
"""


class Trouble(Exception):
    """The harness itself could not go on."""


class Clock:
    """The servers' clock, by libfaketime."""

    def __init__(self, path):
        self.path = path
        self.offset = 0
        libraries = glob("/usr/lib/*/faketime/libfaketime.so.1")
        if not libraries:
            raise Trouble("package faketime is missing")
        self.environment = {
            "LD_PRELOAD": libraries[0], "FAKETIME_TIMESTAMP_FILE": path,
            "FAKETIME_CACHE_DURATION": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        self.shift(0)

    def shift(self, seconds):
        """Sets the clock so much on, or back."""
        self.offset += seconds
        with open(self.path + ".new", "w", encoding="utf-8") as file:
            file.write(f"{self.offset:+d}s\n")
        os.rename(self.path + ".new", self.path)


class Node:
    """One server."""

    def __init__(self, name, base, disk, clock):
        self.name = name
        self.data = os.path.join(base, name)
        self.socket = os.path.join(base, name + "-socket")
        self.log = os.path.join(base, name + ".log")
        self.disk = disk
        self.wal = os.path.join(disk, "wal") if disk else None
        self.clock = clock
        self.hangs = []
        os.mkdir(self.socket)

    def run(self, program, *arguments, check=True, faked=False):
        environment = {**os.environ, **(self.clock.environment if faked else {})}
        path = os.path.join(os.environ["PG_BINDIR"], program)
        done = subprocess.run([path, *arguments], env=environment, check=False, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
        if check and done.returncode != 0:
            raise Trouble(f"{program} of {self.name}: {done.stdout}")
        return done.returncode == 0

    def place_of_wal(self):
        """The option for initdb and pg_basebackup."""
        return ["--waldir", self.wal] if self.wal else []

    def create(self):
        self.run("initdb", "-D", self.data, "-A", "trust", "-U", "postgres", "--no-sync",
                 "--locale=C", "--encoding=UTF8", "--wal-segsize=1", *self.place_of_wal())
        self.configure()

    def copy_from(self, primary):
        for path in filter(None, (self.data, self.wal)):
            shutil.rmtree(path, ignore_errors=True)
        self.run("pg_basebackup", "-D", self.data, "-c", "fast", "--no-sync", "-R", "-d",
                 f"host={primary.socket} port=5432 user=postgres application_name={self.name}",
                 *self.place_of_wal())
        self.configure()

    def configure(self):
        """Its settings, without those that came with a copy."""
        with open(os.path.join(self.data, "postgresql.conf"), "w", encoding="utf-8") as file:
            file.write(f"include '{os.environ['IDEM_TEMP_CONFIG']}'\n")
            file.write(CONF.format(socket=self.socket))

    def start(self, patience=60):
        """Returns when it answers; children of a killed postmaster may be in the way."""
        deadline = time.monotonic() + patience
        while not self.run("pg_ctl", "start", "-s", "-w", "-t", "30", "-D", self.data,
                           "-l", self.log, check=False, faked=True):
            if self.answers():
                return
            if time.monotonic() > deadline:
                raise Trouble(f"{self.name} does not start")
            time.sleep(0.2)

    def revive(self):
        """Up again after a crash that the restart of its own may not have survived. A
        server that does neither is reported, and helped."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            if self.postmaster() is None:
                self.start()
            if self.is_primary():
                return
            time.sleep(0.2)
        self.hangs.append("; ".join(describe(pid) for pid in children_of_data(self.data)))
        self.stop("immediate")
        self.start()

    def stop(self, mode):
        self.run("pg_ctl", "stop", "-s", "-w", "-m", mode, "-D", self.data, check=False)

    def postmaster(self):
        """Its pid, if there is one."""
        try:
            with open(os.path.join(self.data, "postmaster.pid"), encoding="utf-8") as file:
                pid = int(file.readline())
            os.kill(pid, 0)
            return pid
        except (OSError, ValueError):
            return None

    def kill(self):
        """SIGKILL to the postmaster; returns when its children have noticed."""
        pid = self.postmaster()
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not children_of_data(self.data), "the children of a killed postmaster")

    def forget_memory(self):
        """What a killed postmaster has left, where none will start again."""
        with open(os.path.join(self.data, "postmaster.pid"), encoding="utf-8") as file:
            segment = file.read().split("\n")[6].split()
        if len(segment) == 2:
            subprocess.run(["ipcrm", "-m", segment[1]], check=False)

    def connect(self, database="bank", **options):
        """A superuser's connection, whose commits do not wait for a standby."""
        return psycopg.connect(host=self.socket, port=5432, user="postgres", dbname=database,
                               autocommit=True, connect_timeout=5,
                               options="-c synchronous_commit=local", **options)

    def answers(self):
        try:
            with self.connect("postgres") as connection:
                connection.execute("SELECT 1")
            return True
        except psycopg.Error:
            return False

    def is_primary(self):
        """Does it take writes?"""
        try:
            with self.connect("postgres") as connection:
                return not connection.execute("SELECT pg_is_in_recovery()").fetchone()[0]
        except psycopg.Error:
            return False

    def count_in_log(self, pattern):
        if not os.path.exists(self.log):
            return 0
        with open(self.log, encoding="utf-8", errors="replace") as file:
            return sum(1 for line in file if re.search(pattern, line))


class Pair:
    """Which of the two is the primary; clients read it from the target file."""

    def __init__(self, base, disks, clock):
        self.clock = clock
        self.target = os.path.join(base, "target")
        self.nodes = [Node(name, base, disk, clock)
                      for name, disk in zip(("one", "two"), disks)]
        self.primary, self.standby = self.nodes

    def create(self, schema):
        self.primary.create()
        self.primary.start()
        with self.primary.connect("postgres") as connection:
            connection.execute("CREATE DATABASE bank")
        with self.primary.connect() as connection, open(schema, encoding="utf-8") as file:
            connection.execute(file.read())
        self.add_standby()
        self.lead_to_primary()

    def add_standby(self):
        """Returns when commits wait for it."""
        self.standby.copy_from(self.primary)
        self.standby.start()
        self.wait_for_standby()

    def lead_to_primary(self):
        """From now on new connections go there."""
        with open(self.target + ".new", "w", encoding="utf-8") as file:
            file.write(self.primary.socket)
        os.rename(self.target + ".new", self.target)

    def wait_for_standby(self):
        """Returns when all that is visible on the primary is on the standby as well."""
        with self.primary.connect() as connection:
            place = connection.execute("SELECT pg_current_wal_flush_lsn()").fetchone()[0]
            wait_until(lambda: connection.execute(
                "SELECT count(*) FROM pg_stat_replication"
                " WHERE sync_state IN ('sync', 'quorum') AND flush_lsn >= %s::pg_lsn",
                (place,)).fetchone()[0] == 1, "the standby catches up")

    def fail_over(self):
        """The primary dies, its standby takes its place, and gets a standby anew.

        A commit whose wait for the standby was cancelled is visible on the primary alone,
        which is documented: first the standby gets what it lacks. From then
        on nothing is cancelled, and nothing is visible that it does not have.
        """
        self.wait_for_standby()
        self.primary.kill()
        self.primary.forget_memory()
        self.standby.run("pg_ctl", "promote", "-s", "-w", "-D", self.standby.data)
        self.primary, self.standby = self.standby, self.primary
        self.lead_to_primary()
        self.add_standby()

    def stop(self):
        """At the end, whatever has happened."""
        for node in self.nodes:
            if node.postmaster():
                node.stop("immediate")

    def count_in_logs(self, pattern):
        return sum(node.count_in_log(pattern) for node in self.nodes)


def children_of_data(data):
    """Finds the processes of a server by their working directory."""
    found = []
    for entry in glob("/proc/[0-9]*"):
        try:
            if os.readlink(entry + "/cwd") == data:
                found.append(int(os.path.basename(entry)))
        except OSError:
            continue
    return found


def describe(pid):
    """What a process is, and what it waits for in the kernel."""
    facts = []
    for name in ("cmdline", "wchan", "syscall"):
        try:
            with open(f"/proc/{pid}/{name}", encoding="utf-8", errors="replace") as file:
                facts.append(file.read().replace("\0", " ").strip())
        except OSError:
            facts.append("?")
    return f"{pid} " + ", ".join(facts)


def wait_until(condition, what, patience=60):
    """Asks ten times a second."""
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            raise Trouble(f"timed out waiting until {what}")
        time.sleep(0.1)
