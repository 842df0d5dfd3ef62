"""A database for each run, pools, a proxy, and pgbouncer."""

import asyncio
import concurrent.futures
import itertools
import os
import threading

import psycopg
import psycopg_pool
import pytest

from pg_idempotency import AsyncIdempotency, Clock, Idempotency
from fault_proxy import Proxy, connect_to, listen_at
from kinds import QUICK, case, impatient     # noqa: F401, fixtures for all
from pooler import pooler

# pytest's own directory has the user's name alone, which is somebody else in a chroot
os.environ["PYTEST_DEBUG_TEMPROOT"] = os.environ["IDEM_WORK"]
numbers = itertools.count()


@pytest.fixture(scope="session", autouse=True)
def database():
    """The extension and a table, in the throw-away server's database."""
    with psycopg.connect("", autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS idempotency")
        connection.execute("CREATE TABLE IF NOT EXISTS effect (name text, value int)")


@pytest.fixture
def key():
    """A key that nobody has used."""
    # no digit at its end: what a test appends to it is no other test's key
    return f"key-{os.getpid()}-{next(numbers)}k"


@pytest.fixture
def admin():
    """A connection to look with."""
    with psycopg.connect("", autocommit=True) as connection:
        yield connection


@pytest.fixture
def effects(admin, key):
    """How many effects the test's key has had."""
    def count():
        return admin.execute("SELECT count(*) FROM effect WHERE name = %s", (key,)).fetchone()[0]
    return count


@pytest.fixture
def lease_end(admin):
    """When the lease of a key ends."""
    def end(key):
        return admin.execute("SELECT lease_expires_at FROM idempotency_store WHERE idempotency_key = %s", (key,)).fetchone()[0]
    return end


@pytest.fixture
def conflict(admin):
    """A table whose writer fails at its first COMMIT, as one that conflicts with another."""
    admin.execute("""
        CREATE SEQUENCE tries; CREATE TABLE conflict (name text);
        CREATE FUNCTION conflict() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF nextval('tries') = 1 THEN RAISE EXCEPTION 'no' USING ERRCODE = '40001'; END IF; RETURN NULL; END $$;
        CREATE CONSTRAINT TRIGGER conflict AFTER INSERT ON conflict DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION conflict()""")
    yield
    admin.execute("DROP TABLE conflict; DROP FUNCTION conflict; DROP SEQUENCE tries")


@pytest.fixture
def pool():
    with psycopg_pool.ConnectionPool("", min_size=2, max_size=4, timeout=20) as pool:
        pool.wait()
        yield pool


@pytest.fixture
def idem(pool):
    return Idempotency(pool, retry=QUICK)


@pytest.fixture
def proxy(tmp_path_factory):
    directory = str(tmp_path_factory.mktemp("p"))
    proxy = Proxy(listen_at(f"{directory}/.s.PGSQL.5432"), lambda: connect_to(f"{os.environ['PGHOST']}/.s.PGSQL.5432"))
    proxy.directory = directory
    yield proxy
    proxy.close()


@pytest.fixture
def run():
    """Runs a coroutine function that is given an AsyncIdempotency, with a pool of its own."""
    def start(test, conninfo="", size=4, timeout=20, **settings):
        async def body():
            async with psycopg_pool.AsyncConnectionPool(conninfo, min_size=1, max_size=size, timeout=timeout) as pool:
                return await test(AsyncIdempotency(pool, **{"retry": QUICK, **settings}))
        return asyncio.run(body())
    return start


@pytest.fixture(scope="session")
def pgbouncer():
    """pgbouncer in transaction mode, with two server connections. Gives its conninfo."""
    with pooler(2) as directory:
        yield f"host={directory} user=postgres dbname=postgres"


def run_out(admin, key):
    """Lets the lease of a key end now."""
    assert admin.execute("UPDATE idempotency_store SET lease_expires_at = clock_timestamp() - interval '1 second'"
                         " WHERE idempotency_key = %s AND status = 'PENDING'", (key,)).rowcount == 1


def at_once(count, call):
    """What ``call(n)`` gives for each number, all called at the same time."""
    with concurrent.futures.ThreadPoolExecutor(count) as threads:
        return list(threads.map(call, range(count)))


class Held(Clock):
    """A clock whose sleepers wait until the test lets them go."""

    def __init__(self):
        self.asleep = threading.Event()
        self.go = threading.Event()

    def sleep(self, duration):
        self.asleep.set()
        assert self.go.wait(20)


def insert(name):
    """Work with one statement."""
    def work(tx, operation):
        tx.execute("INSERT INTO effect VALUES (%s, %s)", (name, operation.attempt))
        return {"name": name}
    return work


def insert_async(name):
    """The same for asyncio."""
    async def work(tx, operation):
        await tx.execute("INSERT INTO effect VALUES (%s, %s)", (name, operation.attempt))
        return {"name": name}
    return work
