"""The transaction: answers, round trips, errors, repeats."""

import asyncio
import contextlib
import gc
import threading
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from types import SimpleNamespace
from uuid import UUID

import asyncpg
import psycopg
import psycopg_pool
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

import pg_idempotency
from conftest import Held, at_once, insert, insert_async
from pg_idempotency import (AsyncIdempotency, BadArgument, Clock, Completion, Declined, Forbidden, Idempotency, Json, KeyReused,
                            NotDone, NotReady, Operation, Response, Retry)
from pg_idempotency.asyncpg import AsyncpgSource
from pg_idempotency.drive import AsyncDriver, to_its_end
from pg_idempotency.errors import BadOption
from pg_idempotency.psycopg import cancel_request, end_statement
from pg_idempotency.sqlalchemy import AsyncSQLAlchemySource


def test_nothing_is_null(idem, key, admin):
    idem.transaction(key, None, lambda tx, operation: None)
    assert admin.execute("SELECT response_payload IS NULL, status::text FROM idempotency_store WHERE idempotency_key = %s",
                         (key,)).fetchone() == (True, "COMPLETED")


def test_what_cannot_be_read_back_is_not_stored(idem, key, effects):
    """Else each call would raise, also after the COMMIT."""
    def work(tx, operation):
        insert(key)(tx, operation)
        return Json("9" * 5000)
    with pytest.raises(ValueError):
        idem.transaction(key, None, work)
    assert effects() == 0


def test_the_request_is_compared(idem, key):
    idem.transaction(key, {"a": 1}, insert(key))
    with pytest.raises(KeyReused) as caught:
        idem.transaction(key, {"a": 2}, insert(key))
    assert caught.value.sqlstate == "ID422"
    assert key not in str(caught.value)
    assert idem.transaction(key, Json('{"a": 1.0}'), insert(key)).replayed


@pytest.mark.parametrize("error, options", [
    (BadArgument, dict(key="")), (BadArgument, dict(key="x" * 256)), (BadOption, dict(request_hash=b"short")),
    (TypeError, dict(key=b"k")), (TypeError, dict(key=object())), (TypeError, dict(scope=object())),
    (TypeError, dict(request_hash=32))])
def test_bad_arguments(idem, key, error, options):
    """What is no text: what it is printed as may be another text each time, and so another operation."""
    with pytest.raises(error):
        idem.transaction(options.pop("key", key), None, insert(key), **options)


def test_bad_keys_of_many(idem, key):
    with pytest.raises(BadOption):
        idem.begin_many(None, [key], request_hashes=[b"short"])
    with pytest.raises(BadOption):
        idem.transaction(key, 1, insert(key), request_hash=b"x" * 32)
    for keys in (key, [key, 1], [key, b"k"], [key, None]):
        for many in (idem.begin_many, idem.complete_many):
            with pytest.raises(TypeError, match="keys"):
                idem.run(lambda tx: many(tx, keys))
    with pytest.raises(BadArgument):
        idem.run(lambda tx: idem.begin_many(tx, [key, "\0"]))


def test_a_claimed_scope_is_forbidden(admin, key):
    admin.execute("CREATE ROLE stranger LOGIN")
    admin.execute("CREATE ROLE claimer")
    admin.execute("SELECT idem_grant('stranger'), idem_claim_scope('claimed', 'claimer')")
    try:
        stranger = Idempotency(lambda: psycopg.connect("user=stranger"))
        with pytest.raises(Forbidden):
            stranger.transaction(key, None, insert(key), scope="claimed")
    finally:
        admin.execute("SELECT idem_unclaim_scope('claimed')")
        admin.execute("DROP OWNED BY stranger; DROP ROLE stranger, claimer")


@pytest.fixture
def other(admin):
    """A database of the test's own, which goes with it."""
    admin.execute("CREATE DATABASE other")
    yield
    admin.execute("DROP DATABASE other WITH (FORCE)")


def test_a_schema_of_its_own(other, key):
    with psycopg.connect("dbname=other", autocommit=True) as connection:
        connection.execute('CREATE SCHEMA "Odd %"; CREATE EXTENSION idempotency SCHEMA "Odd %"')
    idem = Idempotency(lambda: psycopg.connect("dbname=other"), schema="Odd %")
    assert not idem.transaction(key, {"a": 1}, lambda tx, operation: 1).replayed
    assert idem.transaction(key, {"a": 1}, lambda tx, operation: 1).replayed
    assert not idem.lease(key + "l", {"a": 1}, lambda operation, signal: 1).replayed


def test_who_waits_holds_no_connection(key):
    """Over a pool of two: one has the owner, the other is free although somebody waits for the owner."""
    clock = Held()
    begun, ended = threading.Event(), []
    with psycopg_pool.ConnectionPool("", min_size=2, max_size=2, timeout=20) as pool:
        def work(tx, operation):
            begun.set()
            assert clock.asleep.wait(20)
            with pool.connection(timeout=5) as other:
                return other.execute("SELECT 'first'").fetchone()[0]

        owner = threading.Thread(target=lambda: ended.append(Idempotency(pool).transaction(key, None, work)))
        owner.start()
        assert begun.wait(20)
        waiter = threading.Thread(target=lambda: ended.append(
            Idempotency(pool, clock=clock).transaction(key, None, insert(key), wait=20)))
        waiter.start()
        owner.join(20)
        clock.go.set()
        waiter.join(20)
    assert [(result.payload, result.replayed) for result in ended] == [("first", False), ("first", True)]


def test_what_is_missing_is_named(admin, key):
    admin.execute("CREATE DATABASE bare")
    admin.execute("CREATE ROLE nobody_yet LOGIN")
    try:
        for conninfo, settings, state, hint in (
                ("dbname=bare", {}, "42883", "CREATE EXTENSION idempotency.*idem_grant"),
                ("", {"schema": "elsewhere"}, "3F000", "schema"),
                ("user=nobody_yet", {}, "42501", "idem_grant")):
            with pytest.raises(NotReady, match=hint) as caught:
                Idempotency(lambda: psycopg.connect(conninfo), **settings).transaction(key, None, insert(key))
            assert caught.value.sqlstate == state
    finally:
        admin.execute("DROP ROLE nobody_yet")
        admin.execute("DROP DATABASE bare WITH (FORCE)")


def test_a_failure_that_may_be_tried_again_after_a_timedelta(idem, key):
    def work(*given):
        raise Declined(503, retry_after=timedelta(minutes=1))
    first = [run(key + name, None, work) for name, run in (("t", idem.transaction), ("l", idem.lease))]
    assert [result.retry_after for result in first] == [60, 60]
    assert 50 < idem.transaction(key + "t", None, work).retry_after <= 60


def test_attempts_are_lost(idem, key, admin):
    def work(tx, operation):
        tx.execute("SELECT 1/0")
    for _ in range(2):
        with pytest.raises(psycopg.errors.DivisionByZero):
            idem.transaction(key, None, work, max_lost_attempts=2)
    result = idem.transaction(key, None, work, max_lost_attempts=2)
    assert (result.outcome, result.payload) == ("FAILED", {"reason": "attempts lost", "lost_attempts": 2})
    stored = idem.transaction(key, None, insert(key))
    assert (stored.outcome, stored.payload) == (result.outcome, result.payload)


def test_not_done_is_raised_again_and_no_lost_attempt(idem, key, effects):
    not_done, runs = NotDone("not now"), []
    why = psycopg.errors.SerializationFailure()

    def refused(name, spoil):
        def work(tx, operation):
            runs.append(spoil)
            insert(key)(tx, operation)
            with contextlib.suppress(psycopg.Error):
                tx.execute(spoil)
            raise not_done from why
        with pytest.raises(NotDone) as caught:
            idem.transaction(name, None, work, max_lost_attempts=1)
        assert caught.value is not_done
    refused(key, "SELECT 1")
    refused(key, "SELECT 1/0")
    refused(key, "ROLLBACK")
    assert idem.transaction(key, None, lambda tx, operation: 1).outcome == "COMPLETED"
    refused(key + "-2", "SELECT pg_terminate_backend(pg_backend_pid())")
    assert (len(runs), effects()) == (4, 0)


@pytest.mark.parametrize("state", ["40001", "40P01"])
def test_repeats_are_bounded(pool, key, effects, state):
    clock = pg_idempotency.FakeClock()
    events = []
    idem = Idempotency(pool, clock=clock, retry=Retry(attempts=4, base=1, cap=3, draw=lambda: 1.0),
                       hooks={"retried": events.append})

    def work(tx, operation):
        insert(key)(tx, operation)
        tx.execute(f"DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{state}'; END $$")
    with pytest.raises(psycopg.Error) as caught:
        idem.transaction(key, None, work)
    assert caught.value.sqlstate == state
    assert caught.value.__suppress_context__    # the package's own error says nothing
    assert clock.slept == [1, 2, 3]
    assert [(event.tries, event.sqlstate) for event in events] == [(1, state), (2, state), (3, state)]
    assert effects() == 0


def test_a_run_is_repeated_after_a_conflict_at_commit_and_after_a_loss_before_it(idem, key, conflict, effects):
    tries = []

    def work(tx):
        tries.append(1)
        tx.execute("INSERT INTO effect VALUES (%s, 1)", (key,))
        ends = len(tries) == 2
        tx.execute("SELECT pg_terminate_backend(pg_backend_pid())" if ends else "INSERT INTO conflict VALUES (NULL)")
    idem.run(work)
    assert (len(tries), effects()) == (3, 1)


def test_an_error_of_the_work_is_not_repeated_when_the_connection_is_gone_too(idem, key, admin):
    tries = []

    def work(tx, operation):
        tries.append(1)
        admin.execute("SELECT pg_terminate_backend(%s, 10000)", (tx.info.backend_pid,))
        raise KeyError("own")
    with pytest.raises(KeyError):
        idem.transaction(key, None, work)
    assert len(tries) == 1


def test_that_another_server_is_gone_is_not_repeated(idem, key):
    tries = []

    def work(tx, operation):
        tries.append(1)
        raise psycopg.OperationalError("that of the warehouse")
    with pytest.raises(psycopg.OperationalError, match="warehouse"):
        idem.transaction(key, None, work)
    assert len(tries) == 1


def test_an_exit_is_rolled_back_and_not_repeated(idem, key):
    tries = []

    def work(tx, operation):
        tries.append(1)
        raise SystemExit from psycopg.errors.SerializationFailure()
    with pytest.raises(SystemExit) as raised:
        idem.transaction(key, None, work)
    assert (len(tries), idem.transaction(key, None, insert(key)).outcome) == (1, "COMPLETED"), raised


def test_a_pool_whose_connections_are_all_dead(key, admin, effects):
    """As after a restart of the server: more dead connections than tries."""
    def end_all(name):
        assert admin.execute("SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity"
                             " WHERE application_name = %s", (name,)).fetchone() == (10,)
    with psycopg_pool.ConnectionPool("application_name=doomed", min_size=10, max_size=10) as pool:
        pool.wait()
        end_all("doomed")
        idem = Idempotency(pool, retry=Retry(attempts=3, base=0.001))
        assert idem.transaction(key, None, insert(key)).outcome == "COMPLETED"

    async def body():
        # of its own name: sessions of the first pool may still be ending
        async with psycopg_pool.AsyncConnectionPool("application_name=doomed_too", min_size=10, max_size=10) as pool:
            await pool.wait()
            end_all("doomed_too")
            idem = AsyncIdempotency(pool, retry=Retry(attempts=3, base=0.001))
            return (await idem.transaction(key + "a", None, insert_async(key))).outcome
    assert asyncio.run(body()) == "COMPLETED"
    assert effects() == 2


def test_connections_of_a_function_are_closed(key):
    made = []

    def connect():
        made.append(psycopg.connect(""))
        return made[-1]

    async def connect_async():
        made.append(await psycopg.AsyncConnection.connect(""))
        return made[-1]
    for name, work in ((key, lambda tx, operation: 1), (key + "x", lambda tx, operation: 1 / 0)):
        with contextlib.suppress(ZeroDivisionError):
            Idempotency(connect).transaction(name, None, work)
        with contextlib.suppress(ZeroDivisionError):
            asyncio.run(AsyncIdempotency(connect_async).transaction(name + "a", None, work))
    assert [connection.closed for connection in made] == [True] * 4


class Lender:
    """A pool whose connection is none."""

    def __init__(self):
        self.back = 0

    def connection(self):
        return self

    def __enter__(self):
        return object()

    def __exit__(self, *error):
        self.back += 1

    async def __aenter__(self):
        return self.__enter__()

    async def __aexit__(self, *error):
        self.__exit__()


def test_a_connection_that_cannot_be_used_goes_back(key):
    lender = Lender()
    with pytest.raises(TypeError, match="no connection of psycopg 3"):
        Idempotency(lender).transaction(key, None, insert(key))
    with pytest.raises(TypeError, match="no connection of psycopg 3"):
        asyncio.run(AsyncIdempotency(lender).transaction(key, None, insert(key)))
    assert lender.back == 2


@pytest.mark.parametrize("size", [1, 2] if psycopg.pq.version() >= 170000 else [1])
@pytest.mark.parametrize("style", ["transaction", "lease"])
def test_work_that_ends_with_a_stream_of_rows(pool, key, effects, style, size):
    """libpq gives the rows of the next statement one by one, too, if that is in a pipeline."""
    idem = Idempotency(pool)

    def writes(tx, *given):
        tx.execute("INSERT INTO effect VALUES (%s, 1)", (key,))
        return len(list(tx.cursor().stream("SELECT generate_series(1, 3)", size=size)))
    for turn in range(3):       # from the second on, the statements are prepared
        name = f"{key}-{turn}"
        if style == "transaction":
            result = idem.transaction(name, None, writes)
        else:
            result = idem.lease(name, None, lambda operation, signal: Completion(3, writes))
        assert (result.outcome, result.replayed, result.payload) == ("COMPLETED", False, 3)
    assert effects() == 3


def test_row_factories_of_the_user_do_no_harm(key):
    idem = Idempotency(lambda: psycopg.connect("", row_factory=psycopg.rows.dict_row))
    result = idem.transaction(key, None, lambda tx, operation: tx.execute("SELECT 7 AS n").fetchone())
    assert result.payload == {"n": 7}


def test_the_isolation_level_of_the_connection_counts(key, idem):
    def connect():
        connection = psycopg.connect("")
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        return connection

    def level(tx, operation):
        return tx.execute("SHOW transaction_isolation").fetchone()[0]
    mine = Idempotency(connect)
    assert mine.transaction(key, None, level).payload == "repeatable read"
    assert mine.transaction(key + "2", None, level, isolation="SERIALIZABLE").payload == "serializable"
    with pytest.raises(ValueError, match="no such isolation level"):
        idem.transaction(key + "3", None, level, isolation="CHAOS; DROP TABLE effect")


def test_hooks_get_names_and_numbers(pool, key, caplog):
    events = []
    idem = Idempotency(pool, scope="hooked", hooks={
        name: events.append for name in ("acquired", "replayed", "in_progress", "mismatch", "declined")})
    idem.transaction(key, {"secret": "s3cret"}, lambda tx, operation: idem.transaction(key, None, insert(key)).outcome)
    idem.transaction(key, {"secret": "s3cret"}, insert(key))
    with pytest.raises(KeyReused):
        idem.transaction(key, {"secret": "other"}, insert(key))
    with pytest.raises(BadArgument):
        idem.transaction("", {"secret": "other"}, insert(key))

    def work(tx, operation):
        raise Declined(402, {"secret": "s3cret"})
    idem.transaction(key + "d", None, work)
    assert [event.name for event in events] == ["acquired", "in_progress", "replayed", "mismatch", "acquired", "declined"]
    del events[:]
    idem.run(lambda tx: idem.begin_many(tx, [key, key], ["", {"secret": "s3cret"}]))
    assert [(event.name, event.key) for event in events] == [("mismatch", key), ("replayed", key)]
    assert {event.scope for event in events} == {"hooked"}
    assert "s3cret" not in repr(events)
    broken = Idempotency(pool, hooks={"acquired": lambda event: 1 / 0})
    assert broken.transaction(key + "e", None, insert(key)).outcome == "COMPLETED"
    assert "the hook acquired raised an error" in caplog.text
    with pytest.raises(ValueError, match="no such hook"):
        Idempotency(pool, hooks={"acquire": events.append})


def test_values_that_json_has_no_form_for(idem, key, effects):
    """Each digit is kept, and the first answer is what a retry gets."""
    value = {"paid": Decimal("0.10"), "at": datetime(2026, 1, 2, 3, 4, tzinfo=timezone.utc), "on": date(2026, 1, 2),
             "id": UUID(int=7), "all": (1, 2)}
    text = {"paid": "0.10", "at": "2026-01-02T03:04:00+00:00", "on": "2026-01-02", "id": str(UUID(int=7)), "all": [1, 2]}
    first, retry = [idem.transaction(key, value, lambda tx, operation: value) for _ in range(2)]
    assert (first.payload, retry.payload, retry.replayed) == (text, text, True)
    with pytest.raises(KeyReused):
        idem.transaction(key, {**value, "paid": Decimal("0.11")}, lambda tx, operation: 1)

    def decline(tx, operation):
        raise Declined(402, value)
    assert [idem.transaction(key + "d", None, decline).payload for _ in range(2)] == [text, text]
    for nothing in (Decimal("NaN"), object(), float("nan"), {1: "paid", "1": "open"}, [({None: 1, "null": 1},)]):
        with pytest.raises((TypeError, ValueError), match="JSON"):
            idem.transaction(key + "n", None, lambda tx, operation: insert(key)(tx, operation) and nothing)
    assert effects() == 0


def test_an_enum_is_its_value(idem, key):
    name, code = Enum("Name", {"key": key}, type=str), Enum("Code", {"paid": 201}, type=int)
    scope = Enum("S", {"a": "b"}, type=str).a
    first = idem.transaction(name.key, None, lambda tx, operation: Response(code.paid), scope=scope)
    again = idem.transaction(key, None, lambda tx, operation: 1 / 0, scope="b")
    many = idem.run(lambda tx: idem.begin_many(tx, [name.key], scope=scope))
    assert [(one.code, one.replayed) for one in (first, again, *many)] == [(201, False), (201, True), (201, True)]


@pytest.mark.parametrize("times", [1, 2])
def test_a_cancelled_task_rolls_back(run, key, effects, admin, proxy, times):
    """Its statement ends, also where psycopg closes the connection because it is cancelled again, before its request
    has reached the server."""
    connect = proxy.connect

    def lose():
        proxy.connect = connect
        raise OSError

    async def body(idem):
        begun = asyncio.Event()

        async def work(tx, operation):
            await insert_async(key)(tx, operation)
            begun.set()
            await tx.execute("SELECT pg_sleep(60)")
        task = asyncio.ensure_future(idem.transaction(key, None, work))
        await begun.wait()
        while admin.execute("SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(60)'"
                            " AND state = 'active'").fetchone()[0] == 0:
            await asyncio.sleep(0.01)
        if times == 2:
            proxy.connect = lose
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert proxy.connect is connect
        return await idem.transaction(key, None, insert_async(key), wait=20)
    assert run(body, f"host={proxy.directory} port=5432").outcome == "COMPLETED"
    assert effects() == 1


def test_an_older_libpq_has_no_request_of_its_own():
    request = cancel_request(SimpleNamespace(pgconn=None))
    assert asyncio.run(end_statement(request)) is request is None


def test_a_network_that_hangs_while_a_task_is_cancelled_again(proxy, run, key, monkeypatch):
    """The call ends, and the loop turns meanwhile."""
    monkeypatch.setattr("pg_idempotency.psycopg.CANCEL_LIMIT", 3)
    turns, over = [], threading.Event()

    def hang():
        """A connection for a cancel request hangs, too."""
        over.wait()
        raise OSError

    async def body(idem):
        begun = asyncio.Event()

        async def work(tx, operation):
            await tx.execute("SELECT 1")
            proxy.hang()
            proxy.connect = hang
            begun.set()
            await tx.execute("SELECT 2")
        task = asyncio.ensure_future(idem.transaction(key, None, work))
        await begun.wait()
        for _ in range(2):
            await asyncio.sleep(0)
            task.cancel()
        while not task.done():
            turns.append(await asyncio.sleep(0.01))
        assert task.cancelled()
        over.set()
        proxy.flow()
    run(body, f"host={proxy.directory} port=5432")
    assert len(turns) > 5


@pytest.mark.parametrize("style", ["transaction", "lease"])
def test_cancelled_again_and_again(run, key, effects, style):
    """As anyio does, until the task has ended. The pool of one gets its connection back each time."""
    async def body(idem):
        for _ in range(3):
            begun = asyncio.Event()

            async def slow(tx):
                await insert_async(key)(tx, Operation("ACQUIRED", "", key, 1))
                begun.set()
                await tx.execute("SELECT pg_sleep(3)")

            async def work(first, second):
                if style == "transaction":
                    await slow(first)
                return Completion(1, slow)
            options = {} if style == "transaction" else {"lease": 0.5}
            task = asyncio.ensure_future(getattr(idem, style)(key, None, work, wait=20, **options))
            starts = asyncio.ensure_future(begun.wait())
            await asyncio.wait([task, starts], return_when=asyncio.FIRST_COMPLETED)
            assert starts.done(), task.result()
            while not task.done():
                task.cancel()
                await asyncio.sleep(0)
            assert task.cancelled()
        return await idem.transaction(key + "-after", None, insert_async(key))
    assert run(body, size=1, timeout=10).outcome == "COMPLETED"
    assert effects() == 1


@pytest.mark.parametrize("step", [lambda driver, session: driver.close(session),
                                  lambda driver, session: driver.abandon(session, KeyError())])
def test_what_gives_a_connection_back_comes_to_its_end(step):
    """The cancellation goes on afterwards."""
    begun, ended = asyncio.Event(), []

    class Session:
        async def close(self, *error):
            begun.set()
            await asyncio.sleep(0.01)
            ended.append(True)
        abandon, cut = close, None

    async def body():
        task = asyncio.ensure_future(step(AsyncDriver(None, Clock()), Session()))
        await begun.wait()
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended
    asyncio.run(body())


def test_an_error_of_what_is_waited_for_is_the_cause_of_the_cancellation():
    """asyncio logged that nobody had retrieved it."""
    go, told = asyncio.Event(), []

    async def fails():
        await go.wait()
        raise KeyError("the work")

    async def waits():
        try:
            await to_its_end(fails())
        except asyncio.CancelledError as error:
            return repr(error.__cause__)

    async def body():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context["message"]))
        task = asyncio.ensure_future(waits())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        go.set()
        return await task
    cause = asyncio.run(body())
    gc.collect()
    assert (cause, told) == ("KeyError('the work')", [])


def test_behind_pgbouncer(pgbouncer, key, admin):
    """More clients than server connections, the same statement often: a prepared one would fail with 42P05."""
    with psycopg_pool.ConnectionPool(pgbouncer, min_size=8, max_size=8) as pool:
        idem = Idempotency(pool, retry=Retry(attempts=1))

        def client(number):
            return [idem.transaction(f"{key}-{number % 4}-{turn}", {"turn": turn}, insert(key), wait=20).outcome
                    for turn in range(25)]
        assert at_once(8, client) == [["COMPLETED"] * 25] * 8
    assert admin.execute("SELECT count(*) FROM effect WHERE name = %s", (key,)).fetchone() == (100,)


@pytest.mark.parametrize("kind, settings", [
    ("asyncpg", {"statement_cache_size": 0}), ("session+asyncpg", {"statement_cache_size": 0}),
    ("session+psycopg", {"prepare_threshold": None})])
def test_what_prepares_by_itself_behind_pgbouncer(kind, settings, pgbouncer, key):
    """asyncpg and SQLAlchemy prepare the statements of the package, too: so their users set what the README names."""
    host = pgbouncer.split()[0].removeprefix("host=")

    async def body():
        async with contextlib.AsyncExitStack() as stack:
            if kind == "asyncpg":
                source = AsyncpgSource(await stack.enter_async_context(
                    asyncpg.create_pool(host=host, user="postgres", database="postgres", min_size=8, max_size=8, **settings)))
            else:
                engine = create_async_engine(f"postgresql+{kind[8:]}://postgres@/postgres?host={host}", pool_size=8,
                                             connect_args=settings)
                stack.push_async_callback(engine.dispose)
                source = AsyncSQLAlchemySource(engine, async_sessionmaker())
            idem = AsyncIdempotency(source, retry=Retry(attempts=1))

            async def work(tx, operation):
                await tx.execute("SELECT 1" if kind == "asyncpg" else sqlalchemy.text("SELECT 1"))

            async def client(number):
                return [(await idem.transaction(f"{key}-{number % 4}-{turn}", {"turn": turn}, work, wait=20)).outcome
                        for turn in range(25)]
            return await asyncio.gather(*map(client, range(8)))
    assert asyncio.run(body()) == [["COMPLETED"] * 25] * 8
