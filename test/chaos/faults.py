"""The controller: strikes one fault after the other, in the order of the plan.

A fault counts as a hit only where something shows that it met an operation: the
answer of a client, what the server's log says, or what was under way.
"""

import os
import random
import signal
import time
from collections import Counter

import psycopg
from clients import LEASE_SECONDS
from servers import wait_until

BUSY = """SELECT count(*) FROM pg_stat_activity
    WHERE usename = 'teller' AND state <> 'idle'"""
VICTIMS = """SELECT pid FROM pg_stat_activity
    WHERE usename = 'teller' AND state = ANY (%s) ORDER BY application_name"""

# a call of idem_call outside of a transaction commits, too
COMMITS = r"^\s*commit|idem_call\("
PERIODS = ("2 seconds", "1 minute", "4 hours", "1 day")


class Controller:
    """Strikes; tries and hits are counted by the name of the fault."""

    def __init__(self, options, pair, processes, shared, proxy):
        self.options = options
        self.pair = pair
        self.processes = processes
        self.shared = shared
        self.proxy = proxy
        self.rng = random.Random(f"{options.seed}/controller")
        self.tries = Counter()
        self.hits = Counter()

    def strike(self, name):
        """One fault; returns when the servers are up again. One that finds the server
        gone, as the one before was slow to show, has not hit."""
        self.tries[name] += 1
        try:
            getattr(self, name.replace(" ", "_"))()
        except psycopg.OperationalError as error:
            print(f"{name}: {error}", flush=True)
        self.pair.primary.revive()

    def choose(self, connection, *states):
        """A client's backend that is at it; None after a while."""
        patience = time.monotonic() + 2
        while time.monotonic() < patience:
            found = connection.execute(VICTIMS, (list(states),)).fetchall()
            if found:
                return self.rng.choice(found)[0]
            time.sleep(0.002)
        return None

    def when_busy(self):
        """Waits until operations are under way; says whether."""
        with self.pair.primary.connect() as connection:
            return wait_for(lambda: connection.execute(BUSY).fetchone()[0] >= 2)

    def cancel(self):
        """Statements are cancelled. Most are over before the signal comes, so there are
        several tries."""
        with self.pair.primary.connect() as connection:
            for _ in range(20):
                connection.execute(
                    "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE usename = 'teller'"
                    " AND state = 'active' ORDER BY random() LIMIT 1")
                time.sleep(0.01)

    def terminate(self):
        """SIGTERM to a backend in a transaction."""
        with self.pair.primary.connect() as connection:
            victim = self.choose(connection, "active", "idle in transaction")
            if victim:
                self.hits["terminate"] += connection.execute(
                    "SELECT pg_terminate_backend(%s, 5000)", (victim,)).fetchone()[0]

    def cut(self):
        """The answer to a COMMIT is lost."""
        before = self.proxy.order("state")["hits"]
        self.proxy.order("arm", "lose", COMMITS)
        patience = time.monotonic() + 3
        while self.proxy.order("state")["hits"] == before and time.monotonic() < patience:
            time.sleep(0.01)
        self.proxy.order("disarm")

    def kill_backend(self):
        """SIGKILL to a backend in a transaction; the server restarts itself."""
        with self.pair.primary.connect() as connection:
            victim = self.choose(connection, "idle in transaction", "active")
        if victim:
            os.kill(victim, signal.SIGKILL)
            time.sleep(0.3)

    def stop_fast(self):
        """A restart that ends sessions in an orderly way."""
        self.restart("stop fast", lambda: self.pair.primary.stop("fast"))

    def stop_immediate(self):
        """A restart without a checkpoint: recovery follows."""
        self.restart("stop immediate", lambda: self.pair.primary.stop("immediate"))

    def kill_postmaster(self):
        """SIGKILL to the postmaster."""
        self.restart("kill postmaster", self.pair.primary.kill)

    def restart(self, name, how):
        busy = self.when_busy()
        how()
        self.pair.primary.start()
        self.hits[name] += busy

    def promote(self):
        """The primary is killed, and the standby takes over for good."""
        busy = self.when_busy()
        self.pair.fail_over()
        self.hits["promote"] += busy

    def pause(self):
        """A client that owns a lease stops for longer than the lease."""
        owner = self.find_owner()
        if owner is None:
            return
        pid = self.processes[owner].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(LEASE_SECONDS + 0.7)
        finally:
            os.kill(pid, signal.SIGCONT)

    def find_owner(self):
        """The number of a client that has just acquired a lease."""
        patience = time.monotonic() + 5
        while time.monotonic() < patience:
            owners = [index for index, leased in enumerate(self.shared.leased) if leased]
            if owners:
                return self.rng.choice(owners)
            time.sleep(0.0005)
        return None

    def clock_forward(self):
        """Leases run out early."""
        self.shift("clock forward", self.rng.randint(20, 60))

    def clock_backward(self):
        """Leases last longer. Not by much: clients wait for them."""
        self.shift("clock backward", -self.rng.randint(3, 6))

    def shift(self, name, seconds):
        """A hit is what the server itself says of its clock."""
        with self.pair.primary.connect() as connection:
            before = self.error_of_clock(connection)
            self.pair.clock.shift(seconds)
            wait_until(lambda: abs(self.error_of_clock(connection) - before - seconds) < 1,
                       "the server's clock has changed")
        self.hits[name] += 1

    def error_of_clock(self, connection):
        """Seconds that the server is ahead of us."""
        theirs = connection.execute("SELECT extract(epoch FROM clock_timestamp())").fetchone()[0]
        return float(theirs) - time.time()

    def disk_full(self):
        """Nothing can be written to the WAL's disk for a moment."""
        primary = self.pair.primary
        ballast = os.path.join(primary.disk, "ballast")
        full = r"No space left on device"
        before = primary.count_in_log(full)
        fill(ballast)
        try:
            patience = time.monotonic() + 10
            while primary.count_in_log(full) == before and time.monotonic() < patience:
                self.use_up_segment(primary)
        finally:
            os.unlink(ballast)
        self.hits["disk full"] += primary.count_in_log(full) > before
        time.sleep(0.5)

    def use_up_segment(self, primary):
        """The next write needs a new file."""
        try:
            with primary.connect() as connection:
                connection.execute("SELECT pg_switch_wal()")
        except psycopg.Error:
            pass
        time.sleep(0.1)

    def locks(self):
        """One session takes all that the lock table has."""
        with self.pair.primary.connect() as greedy:
            try:
                greedy.execute("SELECT pg_advisory_lock(i) FROM generate_series(1, 1000000) i")
            except psycopg.errors.OutOfMemory:
                time.sleep(0.7)

    def connections(self):
        """All places are taken when clients need to connect again."""
        held = []
        with self.pair.primary.connect() as connection:
            try:
                for _ in range(60):
                    try:
                        held.append(psycopg.connect(
                            host=self.pair.primary.socket, user="teller", dbname="bank"))
                    except psycopg.OperationalError:
                        connection.execute(
                            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                            " WHERE application_name LIKE 'client %' LIMIT 2")
                        time.sleep(0.02)
            finally:
                time.sleep(0.3)
                for other in held:
                    other.close()

    def trigger(self):
        """A trigger comes to the store, or goes: the extension changes between its two
        ways to read and write."""
        with self.pair.primary.connect() as connection:
            (exists,) = connection.execute(
                "SELECT count(*) FROM pg_trigger WHERE tgname = 'idle'"
                " AND tgrelid = 'idempotency_store'::regclass").fetchone()
            connection.execute(
                "DROP TRIGGER idle ON idempotency_store" if exists else
                "CREATE TRIGGER idle BEFORE INSERT OR UPDATE ON idempotency_store"
                " FOR EACH ROW EXECUTE FUNCTION do_nothing()")
        self.hits["trigger"] += 1

    def partition(self):
        """The store gets a ring of tables, or the ring is to go, while operations go on."""
        busy = self.when_busy()
        with self.pair.primary.connect() as connection:
            connection.execute("SET client_min_messages = error")
            (partitions,) = connection.execute("SELECT count(*) FROM idempotency_partitions").fetchone()
            if partitions and self.rng.random() < 0.7:
                connection.execute("SELECT idem_unpartition_store()")
            else:
                # a store with a trigger gets no ring
                connection.execute("DROP TRIGGER IF EXISTS idle ON idempotency_store")
                connection.execute("SELECT idem_partition_store(%s::interval)", (self.rng.choice(PERIODS),))
        self.hits["partition"] += busy

    def count_hits(self, errors, refused_leases):
        """What others have seen of the faults."""
        self.hits["cancel"] = errors["57014"]
        self.hits["cut"] = self.proxy.order("state")["hits"]
        self.hits["pause"] = refused_leases
        self.hits["locks"] = errors["53200"]
        self.hits["connections"] = errors["no connections"]
        self.hits["kill backend"] = self.pair.count_in_logs(r"was terminated by signal 9")


def wait_for(condition):
    """Asks for a second; says whether it came true."""
    for _ in range(500):
        if condition():
            return True
        time.sleep(0.002)
    return False


def fill(path):
    """Takes all the room of a disk."""
    with open(path, "wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                continue
