"""The controller: while clients work it cancels and ends their sessions, makes them forget
what they know of the store, and changes the store.

A storm counts as a hit only where something shows that it met an operation: the answer
of a client, a session that waited for the store, or operations that were under way.
"""

import random
import threading
import time
from collections import Counter

import psycopg

# The storms of one table and of a store with a ring of tables, and how often
# each is in one deck.
DECK = {
    "cancel": 3,
    "terminate": 2,
    "invalidate": 4,
    "swap": 5,
    "partition": 1,
    "vacuum full": 2,
    "cluster": 1,
    "reindex": 1,
    "column": 2,
}
DECK_BY_EXPIRY = {
    "cancel": 3,
    "terminate": 2,
    "invalidate": 4,
    "unmake": 5,
    "trigger": 2,
    "vacuum full": 1,
    "reindex": 3,
}
# Between ranges that end while a run lasts, and those that hold all records of a run.
PERIODS = ("1 second", "3 seconds", "15 seconds", "1 minute")

BUSY = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'client' AND state <> 'idle'"
WAITING = """SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'relation'
    AND relation = %s::oid"""
KEY = """SELECT indexrelid::regclass::text FROM pg_index
    WHERE indrelid = 'idempotency_store'::regclass AND indisprimary"""
MEMBER = """SELECT EXISTS (SELECT FROM pg_depend WHERE classid = 'pg_class'::regclass
    AND objid = %s::regclass AND deptype = 'e')"""
RENAME = """ALTER TABLE idempotency_store RENAME TO idempotency_store_{number};
    ALTER TABLE idempotency_store_new RENAME TO idempotency_store"""
TRIGGER = "SELECT with_trigger.attach_to('idempotency_store')"
PASS = """CREATE TRIGGER pass BEFORE INSERT OR UPDATE ON idempotency_store
    FOR EACH ROW EXECUTE FUNCTION pass()"""
HAS_PASS = """SELECT EXISTS (SELECT FROM pg_trigger WHERE tgname = 'pass'
    AND tgrelid = 'idempotency_store'::regclass)"""
NEWS_OF_ONE_TABLE = (
    "ALTER TABLE idempotency_store SET (fillfactor = 90)",
    "ALTER TABLE idempotency_store RESET (fillfactor)",
)
NEWS = (
    "GRANT SELECT ON idempotency_store TO auditor",
    "REVOKE SELECT ON idempotency_store FROM auditor",
    "ANALYZE idempotency_store",
    "CREATE INDEX news ON idempotency_store (updated_at)",
    "DROP INDEX IF EXISTS news",
    "COMMENT ON TABLE idempotency_store IS 'news'",
    "ALTER ROLE auditor CONNECTION LIMIT 7",
)


class Storms:
    """Strikes; tries and hits are counted by the name of the storm."""

    def __init__(self, options, connect, path):
        self.options = options
        self.connect = connect
        self.with_trigger = path == "trigger"
        self.by_expiry = path == "partitioned"
        self.deck = DECK_BY_EXPIRY if self.by_expiry else DECK
        self.wanted = [name for name in options.wanted if name in self.deck]
        self.rng = random.Random(f"{options.seed}/storms")
        self.tries = Counter()
        self.hits = Counter()
        self.failures = []
        self.swaps = 0
        self.over = threading.Event()
        self.threads = [threading.Thread(target=self.again_and_again, args=given, daemon=True)
                        for given in ((self.sweep, 0.02), (self.resolve, 0.5))]

    def rage(self, is_enough):
        """Storm after storm, until it is enough."""
        for thread in self.threads:
            thread.start()
        for name in self.order():
            time.sleep(self.rng.uniform(0.02, 0.3))
            if is_enough():
                break
            self.strike(name)

    def order(self):
        """Each of them once, and then deck after deck, without end."""
        deck = list(self.wanted) or ["calm"]
        while True:
            self.rng.shuffle(deck)
            yield from deck
            deck = [name for name in self.wanted for _ in range(self.deck[name])] or ["calm"]

    def calm(self, connection):
        """Nothing strikes; the clients work all the same."""

    def settle(self):
        self.over.set()
        for thread in self.threads:
            thread.join(30)
        with self.connect() as connection:
            self.finish_prepared(connection, "0")

    def again_and_again(self, what, pause):
        """The body of a thread, until the end."""
        while not self.over.is_set():
            try:
                with self.connect() as connection:
                    while not self.over.wait(pause):
                        what(connection)
            except psycopg.Error:
                continue

    def sweep(self, connection):
        """Collects what has expired; a store that its owner has partitioned is not collected by pages."""
        connection.execute("SELECT idem_gc()")

    def resolve(self, connection):
        """Finishes what was left prepared."""
        self.finish_prepared(connection, "2 s")

    def finish_prepared(self, connection, age):
        """One way or the other: nobody has an answer about these."""
        for (name,) in connection.execute(
                "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
                " AND prepared < clock_timestamp() - %s::interval", (age,)).fetchall():
            verb = self.rng.choice(("COMMIT", "ROLLBACK"))
            try:
                connection.execute(f"{verb} PREPARED '{name}'")
            except (psycopg.errors.UndefinedObject, psycopg.errors.ObjectNotInPrerequisiteState):
                pass    # its client was faster

    def strike(self, name):
        """One storm. A lock that it does not get in time is no hit."""
        self.tries[name] += 1
        try:
            with self.connect() as connection:
                connection.execute("SET lock_timeout = '3s'")
                getattr(self, name.replace(" ", "_"))(connection)
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
            print(f"{name}: {str(error).splitlines()[0]}", flush=True)
        except psycopg.Error as error:
            self.failures.append(f"{name}: {error}")

    def when_busy(self, connection):
        """Waits until operations are under way; says whether."""
        for _ in range(300):
            if connection.execute(BUSY).fetchone()[0] >= 2:
                return True
            time.sleep(0.002)
        return False

    def cancel(self, connection):
        """Statements are cancelled. Most are over before the signal comes, so there are
        several tries; clients report the hits."""
        for _ in range(20):
            connection.execute(
                "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE usename = 'client'"
                " AND state = 'active' ORDER BY random() LIMIT 1")
            time.sleep(0.005)

    def terminate(self, connection):
        """A session in a transaction ends."""
        for _ in range(300):
            row = connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = 'client'"
                " AND state <> 'idle' ORDER BY random() LIMIT 1").fetchone()
            if row:
                self.hits["terminate"] += row[0]
                return
            time.sleep(0.002)

    def invalidate(self, connection):
        """News of the store, one after the other."""
        busy = self.when_busy(connection)
        connection.execute("SET lock_timeout = '200ms'")
        news = NEWS if self.by_expiry else NEWS + NEWS_OF_ONE_TABLE
        for _ in range(self.rng.randint(5, 40)):
            try:
                connection.execute(self.rng.choice(news))
            except (psycopg.errors.LockNotAvailable, psycopg.errors.DuplicateTable):
                continue
        connection.execute("SET lock_timeout = '3s'; DROP INDEX IF EXISTS news")
        self.hits["invalidate"] += busy

    def swap(self, connection):
        """Another table takes the store's place."""
        self.hits["swap"] += self.replace(connection)

    def replace(self, connection, partitioned=False):
        """Lock, copy, rename, rename; says whether sessions waited for it."""
        self.swaps += 1
        old = f"idempotency_store_{self.swaps}"
        with connection.transaction():
            (store,) = connection.execute("SELECT 'idempotency_store'::regclass::oid").fetchone()
            connection.execute("LOCK TABLE idempotency_store IN ACCESS EXCLUSIVE MODE")
            self.create_new(connection, partitioned)
            connection.execute("INSERT INTO idempotency_store_new SELECT * FROM idempotency_store")
            connection.execute(RENAME.format(number=self.swaps))
            if self.with_trigger:
                connection.execute(TRIGGER)
            if self.rng.random() < 0.5:
                self.adopt(connection, old)
            if self.rng.random() < 0.5:
                # who comes anew waits with its first call
                connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                                   " WHERE usename = 'client' ORDER BY random() LIMIT 2")
            waited = self.wait_for_waiters(connection, store)
        if self.rng.random() < 0.5:
            self.drop(connection, old)
        return waited

    def adopt(self, connection, old):
        """The new store is the extension's, as the first one was."""
        if connection.execute(MEMBER, (old,)).fetchone()[0]:
            connection.execute(f"ALTER EXTENSION idempotency DROP TABLE {old}")
        connection.execute("ALTER EXTENSION idempotency ADD TABLE idempotency_store")

    def create_new(self, connection, partitioned):
        """The table that is to be the store."""
        how = " PARTITION BY HASH (scope, idempotency_key)" if partitioned else ""
        connection.execute(f"CREATE TABLE idempotency_store_new (LIKE idempotency_store INCLUDING ALL){how}")
        if partitioned:
            for rest in range(2):
                connection.execute(
                    f"CREATE TABLE idempotency_store_{self.swaps}_{rest} PARTITION OF"
                    f" idempotency_store_new FOR VALUES WITH (MODULUS 2, REMAINDER {rest})")

    def wait_for_waiters(self, connection, store):
        """The point of a swap is who waits while it happens."""
        for _ in range(200):
            if connection.execute(WAITING, (store,)).fetchone()[0]:
                return True
            time.sleep(0.002)
        return False

    def drop(self, connection, table):
        """An old store goes; the extension's own stays, as it may not."""
        try:
            connection.execute(f"DROP TABLE {table}")
        except psycopg.errors.DependentObjectsStillExist:
            pass

    def partition(self, connection):
        """The store becomes a partitioned one, and some time later an ordinary one."""
        waited = self.replace(connection, partitioned=True)
        time.sleep(0.3)
        while True:
            try:
                self.replace(connection)
                break
            except psycopg.errors.LockNotAvailable:
                continue
        self.hits["partition"] += waited

    def unmake(self, connection):
        """The tables of the ring are to go, and some time later it gets ranges of another period."""
        busy = self.when_busy(connection)
        connection.execute("SELECT idem_unpartition_store()")
        time.sleep(0.2)
        connection.execute("SET client_min_messages = error")
        try:
            connection.execute("SELECT idem_partition_store(%s::interval)", (self.rng.choice(PERIODS),))
        except psycopg.errors.ObjectNotInPrerequisiteState:
            return    # a store with a trigger gets no ring
        self.hits["unmake"] += busy

    def trigger(self, connection):
        """A trigger comes to the store, or goes: the extension changes between its two
        ways to read and write."""
        busy = self.when_busy(connection)
        (exists,) = connection.execute(HAS_PASS).fetchone()
        connection.execute("DROP TRIGGER pass ON idempotency_store" if exists else PASS)
        self.hits["trigger"] += busy

    def rewrite(self, connection, name, command):
        """The store gets a new file, or a new index."""
        busy = self.when_busy(connection)
        connection.execute(command)
        self.hits[name] += busy

    def vacuum_full(self, connection):
        """A new file."""
        self.rewrite(connection, "vacuum full", "VACUUM FULL idempotency_store")

    def cluster(self, connection):
        """The same, in the order of the key."""
        (key,) = connection.execute(KEY).fetchone()
        self.rewrite(connection, "cluster", f"CLUSTER idempotency_store USING {key}")

    def reindex(self, connection):
        """A new index, in the place of the key."""
        self.rewrite(connection, "reindex", "REINDEX TABLE CONCURRENTLY idempotency_store")

    def column(self, connection):
        """A column of the owner's comes and goes; then a store as it was made, which has
        no trace of that."""
        self.rewrite(connection, "column", "ALTER TABLE idempotency_store ADD tenant text DEFAULT 'none'")
        time.sleep(0.1)
        while True:
            try:
                connection.execute("ALTER TABLE idempotency_store DROP tenant")
                break
            except psycopg.errors.LockNotAvailable:
                continue
        time.sleep(0.1)
        self.replace(connection)

    def count_hits(self, errors):
        """What others have seen of the storms."""
        self.hits["cancel"] = errors["57014"]
