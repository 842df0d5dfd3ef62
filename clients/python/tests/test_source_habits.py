"""What one kind of connection alone does: its pool, session, hooks and errors."""

import contextlib
import ctypes
import os
import subprocess
import sys
import warnings

import asyncpg
import psycopg
import psycopg_pool
import pytest
import sqlalchemy
from django.db import connection, transaction
from sqlalchemy import orm
from sqlalchemy.ext.asyncio import async_sessionmaker

import kinds
from kinds import of, plain
from pg_idempotency import CommitRolledBack, Completion, Declined, Idempotency, IdempotencyError, drive, sqlstate_of
from pg_idempotency.django import DjangoSource
from pg_idempotency.sqlalchemy import SQLAlchemySource


@pytest.mark.parametrize("end", ["close", "reset", "rollback"])
@pytest.mark.parametrize("change", ["new", "modified", "deleted"])
@of("session+psycopg2", "session+psycopg")
def test_a_session_that_is_ended_unflushed_does_not_pass_as_success(case, key, effects, admin, end, change):
    admin.execute("INSERT INTO effect VALUES (%s, 1)", (key,))

    async def test(idem, on):
        async def work(tx, operation):
            if change == "new":
                await on.insert(tx, key + "2")
            else:
                effect = await kinds.awaited(tx.get(kinds.Effect, key))
                if change == "modified":
                    effect.value = 2
                else:
                    await kinds.awaited(tx.delete(effect))
            await kinds.awaited(getattr(tx, end)())
            await kinds.awaited(tx.close())     # once more, with no change left

        async def declined(tx, operation):
            await on.insert(tx, key + "2")
            await kinds.awaited(tx.close())
            raise Declined(402)

        async def flushed(tx, operation):
            await on.insert(tx, key)
            await kinds.awaited(tx.flush())
            await kinds.awaited(tx.close())

        async def taken_back(tx, operation):
            await on.insert(tx, key)
            await kinds.awaited(tx.flush())
            await kinds.awaited(tx.rollback())
        with pytest.raises(Exception) as raised:
            await idem.transaction(key + "t", None, taken_back)
        assert sqlstate_of(raised.value) == "ID404"
        with pytest.raises(CommitRolledBack, match="not flushed"):
            await idem.transaction(key, None, work)
        assert (await idem.transaction(key + "d", None, declined)).code == 402
        assert not (await idem.transaction(key, None, flushed)).replayed
    case(test)
    assert effects() == 2


def with_factory(idem, **options):
    """The client's source, whose sessionmaker has these options now."""
    source = getattr(idem, "idem", idem).driver.source
    source.session = (orm.sessionmaker if isinstance(idem, kinds.Blocking) else async_sessionmaker)(**options)
    return source


@of("session+psycopg2", "session+psycopg", "session+asyncpg")
def test_a_session_that_cannot_be_made_leaves_no_connection_in_use(case, key):
    def fails(bind):
        raise OSError("the factory's own")

    async def test(idem, on):
        source = with_factory(idem)
        for source.session in (fails, lambda bind: object()):
            with pytest.raises(Exception) as raised:
                await idem.transaction(key, None, plain)
            assert "own" in str(raised.value) or source.session is not fails
            assert source.engine.pool.checkedout() == 0
    case(test)


@pytest.mark.parametrize("flushes", [False, True])
@of("session+psycopg2", "session+psycopg")
def test_a_session_that_writes_by_another_connection_is_refused(case, key, effects, flushes):
    async def test(idem, on):
        source = with_factory(idem)
        source.session.configure(binds={kinds.Effect: source.engine})

        async def work(tx, operation):
            await on.insert(tx, key)
            if flushes:
                await kinds.awaited(tx.flush())

        async def catches(tx, operation):
            for _ in range(2):
                with contextlib.suppress(IdempotencyError):
                    await kinds.awaited(tx.execute(sqlalchemy.insert(kinds.Effect).values(name=key)))
        with pytest.raises(CommitRolledBack):
            await idem.transaction(key, None, catches)
        for _ in range(2):
            with pytest.raises(IdempotencyError, match="another connection"):
                await idem.transaction(key, None, work)
        assert source.engine.pool.checkedout() == 0
    case(test)
    assert effects() == 0


@pytest.mark.parametrize("nested", [False, True])
@of("session+psycopg2", "session+psycopg")
def test_a_session_that_is_closed_in_a_savepoint_of_its_own_does_not_pass_as_success(case, key, effects, nested):
    async def test(idem, on):
        with_factory(idem, **({} if nested else {"join_transaction_mode": "create_savepoint"}))

        async def flushed(tx, operation):
            if nested:
                await kinds.awaited(tx.begin_nested())
            await on.insert(tx, key)
            await kinds.awaited(tx.flush())

        async def closed(tx, operation):
            await flushed(tx, operation)
            await kinds.awaited(tx.close())

        async def committed(tx, operation):
            await flushed(tx, operation)
            await kinds.awaited(tx.commit())
            await kinds.awaited(tx.close())
        with pytest.raises(CommitRolledBack, match="savepoint"):
            await idem.transaction(key, None, closed)
        assert effects() == 0
        for work in (flushed, committed):
            await idem.transaction(key + work.__name__, None, work)
    case(test)
    assert effects() == 2


@pytest.mark.parametrize("ending", ["ROLLBACK", "COMMIT"])
def test_what_comes_behind_an_end_that_the_work_has_sent_does_not_stay(case, key, effects, ending):
    """Each retry would do it again."""
    async def test(idem, on):
        async def leaves(tx, *operation):
            await on.run(tx, "SAVEPOINT own")
            await on.run(tx, "ROLLBACK TO own")
            with contextlib.suppress(Exception):
                await on.run(tx, ending)
            await on.insert(tx, key)

        async def begins(tx):
            await idem.begin_many(tx, [key])
            await leaves(tx)
        for call in (lambda: idem.transaction(key, None, leaves), lambda: idem.run(begins)) * 2:
            with pytest.raises(Exception) as raised:
                await call()
            assert sqlstate_of(raised.value) == "ID404" or on.kind == "django" and ending == "COMMIT"
        await idem.transaction(key + "x", None, plain)
    case(test, size=1)
    assert effects() == 0


OLD_DJANGO = """
import sys
sys.modules["psycopg"] = None       # Django takes psycopg2, as the old ones do
import django
from django.conf import settings
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "postgres"}})
django.setup()
from django.db import connection, transaction
from pg_idempotency import Idempotency, IdempotencyError
from pg_idempotency.django import DjangoSource

def leaves(tx, operation):
    with tx.cursor() as cursor:
        cursor.execute("ROLLBACK")
        cursor.execute("INSERT INTO effect VALUES (%s, 1)", [sys.argv[1]])

def within(tx, operation):
    with transaction.atomic():
        leaves(tx, operation)

def behind_another(tx, operation):
    try:
        Idempotency(DjangoSource()).transaction("another", None, leaves)
    except RuntimeError:        # in the transaction of this one
        leaves(tx, operation)

for work in leaves, within, behind_another:
    try:
        Idempotency(DjangoSource()).transaction(sys.argv[1], None, work)
    except IdempotencyError:
        print(connection.connection.get_transaction_status(), connection.in_atomic_block, connection.execute_wrappers)
Idempotency(DjangoSource()).transaction(sys.argv[1], None, lambda tx, operation: tx.cursor().execute("SELECT 1"))
print(connection.connection.get_transaction_status(), connection.in_atomic_block, connection.execute_wrappers)
"""


def test_a_statement_behind_the_end_of_the_work_of_django_on_psycopg2_is_refused(key, effects):
    program = subprocess.run([sys.executable, "-c", OLD_DJANGO, key], stdout=subprocess.PIPE, text=True, check=True)
    assert program.stdout.splitlines() == ["0 False []"] * 4
    assert effects() == 0


@of("psycopg", "connection+psycopg2", "session+psycopg2", "django")
def test_the_exception_of_a_signal_between_two_steps_rolls_back_and_loses_no_connection(case, key, effects, monkeypatch):
    """As Celery's soft time limit has it."""
    def interrupted(flow, value, error):
        if value == "done":
            raise KeyboardInterrupt
        return advance(flow, value, error)
    advance = drive.advance

    async def test(idem, on):
        async def work(tx, operation):
            await on.insert(tx, key)
            return "done"
        with monkeypatch.context() as patch:
            patch.setattr(drive, "advance", interrupted)
            with pytest.raises(KeyboardInterrupt):
                await idem.transaction(key, None, work)
        assert not (await idem.transaction(key, None, plain)).replayed
    case(test, size=1, timeout=5)
    assert effects() == 0


@of("asyncpg")
def test_the_connection_of_the_work_passes_as_one_of_asyncpg(case, key):
    async def test(idem, on):
        async def work(tx, operation):
            with pytest.raises(AttributeError):
                tx.own = 1
            async with tx.transaction():
                return isinstance(tx, asyncpg.Connection) and await tx.fetchval("SELECT 1")
        return (await idem.transaction(key, None, work)).payload
    assert case(test) == 1


@of("psycopg", "async psycopg")
def test_what_comes_behind_a_rollback_of_the_work_does_not_stay(case, key, effects):
    """Also where the pool gives connections that commit by themselves, and gets them back so."""
    async def test(idem, on):
        async def set_autocommit(connection):
            await kinds.awaited(connection.set_autocommit(True))

        async def leaves(tx, operation):
            await kinds.awaited(tx.rollback())
            await on.insert(tx, key)

        async def broken(tx, operation):
            await kinds.awaited(tx.close())
            raise KeyError("the work's own")

        async def state():
            connection = await kinds.awaited(pool.getconn())
            await kinds.awaited(pool.putconn(connection))
            return connection.autocommit
        pool = getattr(idem, "idem", idem).driver.source.pool
        connection = await kinds.awaited(pool.getconn())
        await set_autocommit(connection)
        await kinds.awaited(pool.putconn(connection))
        for _ in range(2):
            with pytest.raises(psycopg.DatabaseError, match="not owned"):
                await idem.transaction(key, None, leaves)
        await idem.transaction(key, None, plain)
        assert await state()
        with pytest.raises(KeyError):
            await idem.transaction(key + "x", None, broken)
        await idem.transaction(key + "y", None, plain)      # the pool has its place back
    case(test, size=1, timeout=3)
    assert effects() == 0


@of("psycopg", "async psycopg")
def test_connections_come_back_as_they_were(case, key):
    async def test(idem, on):
        async def breaks(tx, operation):
            raise KeyError("the work's own")
        pool = getattr(idem, "idem", idem).driver.source.pool

        async def state():
            lent = pool.connection()
            if on.kind == "psycopg":
                with lent as connection:
                    return connection.autocommit, connection.prepare_threshold, connection.info.backend_pid
            async with lent as connection:
                return connection.autocommit, connection.prepare_threshold, connection.info.backend_pid
        before = await state()
        await idem.transaction(key, None, plain)
        with pytest.raises(KeyError):
            await idem.transaction(key + "x", None, breaks)
        assert await state() == before
    case(test, size=1)


@of("psycopg", "async psycopg")
def test_a_connection_in_a_transaction_is_refused(case, key, monkeypatch):
    """What its user has written would commit with the operation."""
    async def test(idem, on):
        pool = getattr(idem, "idem", idem).driver.source.pool
        used = await kinds.awaited(pool.getconn())
        await on.insert(used, key)
        with monkeypatch.context() as patch, pytest.raises(psycopg.ProgrammingError, match="not free: .* is INTRANS"):
            patch.setattr(pool, "connection", lambda: contextlib.nullcontext(used))
            await idem.transaction(key, None, plain)
        await kinds.awaited(used.rollback())
        await kinds.awaited(pool.putconn(used))
    case(test, size=1)


@pytest.mark.parametrize("prepare, prepared", [(False, 0), (True, 1)])
@of("psycopg", "async psycopg")
def test_statements_are_prepared_only_when_asked_for(case, key, prepare, prepared):
    async def test(idem, on):
        async def work(tx, operation):
            for _ in range(8):
                await kinds.awaited(tx.execute("SELECT %s::int", (1,)))
            found = await kinds.awaited(tx.execute("SELECT count(*) FROM pg_prepared_statements"))
            return (await kinds.awaited(found.fetchone()))[0]
        return (await idem.transaction(key, None, work)).payload
    assert case(test, size=1, prepare=prepare) == prepared


@of("connection+psycopg2", "connection+asyncpg")
def test_a_connection_that_could_not_roll_back_is_not_used_again(case, key):
    sessions = []

    async def test(idem, on):
        async def works(tx, operation):
            sessions.append((await kinds.awaited(tx.execute(sqlalchemy.text("SELECT pg_backend_pid()")))).scalar())

        async def breaks(tx, operation):
            def fails(connection):
                raise ValueError
            await works(tx, operation)
            sqlalchemy.event.listen(getattr(tx, "sync_connection", tx), "rollback", fails, once=True)
            raise KeyError("the work's own")
        with pytest.raises(KeyError, match="the work's own"):
            await idem.transaction(key, None, breaks)
        await idem.transaction(key, None, works, wait=20)
    case(test, size=1)
    assert len(set(sessions)) == 2


@of("asyncpg")
@pytest.mark.parametrize("error", [asyncpg.ConnectionDoesNotExistError, asyncpg.InternalClientError])
def test_a_connection_that_ends_behind_commit_fails_no_call(case, key, effects, monkeypatch, error):
    """The pool resets a connection that it gets back. asyncpg calls some lost connections an internal error."""
    async def reset(connection, **options):
        raise error("the connection has ended")
    monkeypatch.setattr(asyncpg.Connection, "reset", reset)

    async def test(idem, on):
        async def work(tx, operation):
            await on.insert(tx, key)
        assert (await idem.transaction(key, None, work)).outcome == "COMPLETED"
    case(test)
    assert effects() == 1


@of("asyncpg")
def test_what_asyncpg_says_of_an_idle_connection_that_has_ended_is_repeated(case, key, monkeypatch):
    fetch, calls = asyncpg.Connection.fetch, []

    async def ended_once(connection, *arguments, **options):
        calls.append(connection)
        if len(calls) == 1:
            raise asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress")
        return await fetch(connection, *arguments, **options)
    monkeypatch.setattr(asyncpg.Connection, "fetch", ended_once)

    async def test(idem, on):
        assert (await idem.transaction(key, None, plain)).payload == "x"
    case(test)


@of("asyncpg")
def test_what_asyncpg_says_of_an_ended_connection_in_the_work_is_repeated(case, key):
    async def test(idem, on):
        async def work(tx, operation):
            calls.append(tx)
            if len(calls) == 1:
                tx.terminate()
                raise asyncpg.InternalClientError("cannot switch to state 15; another operation (2) is in progress")
            return "x"
        assert (await idem.transaction(key, None, work)).payload == "x"
    calls = []
    case(test)
    assert len(calls) == 2


@of("asyncpg")
def test_a_transaction_of_asyncpg_in_the_work_is_a_savepoint(case, key, effects):
    async def test(idem, on):
        async def work(tx, operation):
            await on.insert(tx, key)
            with pytest.raises(asyncpg.DivisionByZeroError):
                async with tx.transaction():
                    await on.run(tx, "SELECT 1/0")
        return (await idem.transaction(key, None, work)).outcome
    assert case(test) == "COMPLETED"
    assert effects() == 1


def in_child(idem, key, prepare=lambda source: None, fork=os.fork):
    """What a call says in a process that is forked now."""
    reads, writes = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")     # the threads are not in the child
        child = fork()
    if child == 0:
        with contextlib.suppress(BaseException), open(writes, "w") as out:
            try:
                prepare(getattr(idem, "idem", idem).driver.source)
                kinds.finish(idem.transaction(key, None, plain))
                out.write("done")
            except Exception as error:
                out.write(f"{type(error).__name__}: {error}")
        os._exit(0)
    os.close(writes)
    with open(reads) as said:
        os.waitpid(child, 0)
        return said.read()


# uWSGI's is one of C, which calls no hooks
forks = pytest.mark.parametrize("fork", [os.fork, ctypes.PyDLL(None).fork], ids=["Python", "C"])


@forks
@of("psycopg", "async psycopg", "connection+psycopg2", "session+psycopg2", "session+psycopg")
def test_a_pool_from_before_a_fork_is_refused(case, key, fork):
    async def test(idem, on):
        await idem.transaction(key, None, plain)
        assert "IdempotencyError: this process was forked" in in_child(idem, key + "c", fork=fork)
        assert not (await idem.transaction(key + "c", None, plain)).replayed
    case(test)


@forks
@pytest.mark.parametrize("used", ["before", "behind"])
def test_a_pool_that_others_have_used_before_a_fork_is_refused(key, fork, used):
    """Such as the engine by which a program makes its tables, before it makes the client or behind."""
    engine = sqlalchemy.create_engine("postgresql+psycopg2://")
    if used == "before":
        engine.connect().close()
    idem = kinds.Blocking(Idempotency(SQLAlchemySource(engine)))
    if used == "behind":
        engine.connect().close()
    assert "IdempotencyError: this process was forked" in in_child(idem, key, fork=fork)
    engine.dispose()
    assert in_child(idem, key, fork=fork) == "done"


@of("connection+psycopg2", "session+psycopg2")
def test_a_pool_that_is_empty_at_a_fork_is_not_refused(case, key):
    async def test(idem, on):
        assert in_child(idem, key) == "done"
        await idem.transaction(key + "p", None, plain)
        assert in_child(idem, key + "c", lambda source: source.engine.dispose(close=False)) == "done"
        assert (await idem.transaction(key + "c", None, plain)).replayed
    case(test)


def test_a_pool_that_is_opened_after_a_fork_is_not_refused(key):
    with contextlib.closing(psycopg_pool.ConnectionPool("", min_size=1, timeout=20, open=False)) as pool:
        idem = kinds.Blocking(Idempotency(pool))
        assert in_child(idem, key, lambda source: source.pool.open()) == "done"
        pool.open(wait=True)
        assert "IdempotencyError: this process was forked" in in_child(idem, key)
    with psycopg_pool.NullConnectionPool("", timeout=20) as pool:
        none = kinds.Blocking(Idempotency(pool))
        assert in_child(none, key + "n") == "done"
        assert kinds.finish(none.transaction(key + "n", None, plain)).replayed


@of("django")
def test_hooks_of_django_run_after_a_real_commit_only(case, key):
    ran = []

    async def test(idem, on):
        async def work(tx, operation):
            transaction.on_commit(lambda: ran.append(operation.key))
            if operation.key != key:
                with pytest.raises(Exception):
                    await on.run(tx, "SELECT 1/0")
        await idem.transaction(key, None, work)
        with pytest.raises(CommitRolledBack):
            await idem.transaction(key + "2", None, work)
    case(test)
    assert ran == [key]


@of("django")
def test_hooks_of_django_do_not_run_for_what_was_declined(case, key, effects):
    ran = []

    async def test(idem, on):
        async def work(tx, operation):
            await on.insert(tx, key)
            transaction.on_commit(lambda: ran.append(operation.key))
            raise Declined(402)

        async def leased(operation, signal):
            return Completion("x", lambda tx: work(tx, operation))
        assert (await idem.transaction(key, None, work)).outcome == "FAILED"
        assert (await idem.lease(key + "leased", None, leased)).outcome == "FAILED"
    case(test)
    assert (ran, effects()) == ([], 0)


def test_django_inside_of_another_transaction_is_refused(key):
    idem = Idempotency(DjangoSource())
    with transaction.atomic(), pytest.raises(RuntimeError):
        idem.transaction(key, None, plain)
    with transaction.atomic(), pytest.raises(RuntimeError):
        idem.lease(key, None, plain)
    block = transaction.atomic()
    block._from_testcase = True
    with block:     # of a TestCase, which rolls back
        assert idem.transaction(key, None, plain).payload == "x"


def test_hooks_of_a_testcase_stay_where_work_in_it_is_declined(key):
    def work(tx, operation):
        transaction.on_commit(lambda: None)
        raise Declined(402)
    block = transaction.atomic()
    block._from_testcase = True
    with block:
        transaction.on_commit(own := lambda: None)
        assert Idempotency(DjangoSource()).transaction(key, None, work).outcome == "FAILED"
        assert [hook[1] for hook in transaction.get_connection().run_on_commit] == [own]
        transaction.set_rollback(True)


def test_django_without_autocommit_is_refused(key):
    """What nobody commits would pass as success."""
    connection.set_autocommit(False)
    try:
        for style in ("transaction", "lease"):
            with pytest.raises(RuntimeError, match="autocommit"):
                getattr(Idempotency(DjangoSource()), style)(key, None, plain)
    finally:
        connection.close()      # which is with autocommit when it comes again
