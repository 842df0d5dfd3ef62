"""Each kind of connection, so that one test is for all of them: a coroutine function of a client, also where that blocks."""

import asyncio
import contextlib
import inspect
import json
import os
import time
from dataclasses import replace

import asyncpg
import django
import psycopg_pool
import pytest
import sqlalchemy
from django.conf import settings
from sqlalchemy import orm
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from pg_idempotency import AsyncIdempotency, Completion, Idempotency, Retry
from pg_idempotency.asyncpg import AsyncpgSource
from pg_idempotency.sqlalchemy import AsyncSQLAlchemySource, SQLAlchemySource

# Pauses are short. A begin after a lost connection waits until the server has noticed the loss, for as long as `cap`.
QUICK = Retry(base=0.001, cap=60)

if not settings.configured:
    settings.configure(SECRET_KEY="tests", USE_TZ=True, ALLOWED_HOSTS=["*"], ROOT_URLCONF="django_urls", DATABASES={
        "default": {"ENGINE": "django.db.backends.postgresql", "NAME": os.environ["PGDATABASE"],
                    "USER": os.environ["PGUSER"], "HOST": os.environ["PGHOST"], "PORT": os.environ["PGPORT"]}},
        MIDDLEWARE=["pg_idempotency.http.django.IdempotencyMiddleware"],
        IDEMPOTENCY={"principal": lambda request: request.value("x-tenant"), "max_response": 10000,
                     "client": {"retry": QUICK}})
    django.setup()

from django.db import connection, transaction     # noqa: E402
from pg_idempotency.django import DjangoSource      # noqa: E402

BLOCKING = ["psycopg", "connection+psycopg2", "session+psycopg2", "django"]
ASYNC = ["async psycopg", "asyncpg", "connection+asyncpg", "session+asyncpg", "session+psycopg"]

Base = orm.declarative_base()


class Effect(Base):
    __tablename__ = "effect"
    name = sqlalchemy.Column(sqlalchemy.Text, primary_key=True)
    value = sqlalchemy.Column(sqlalchemy.Integer)


def finish(coroutine):
    """The value of a coroutine that has nothing to wait for."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


def blocking(value):
    """A coroutine function as a function that blocks, and its Completion with such a one; anything else as it is."""
    if not inspect.isfunction(value):
        return value

    def run(*given):
        result = value(*given)
        result = finish(result) if inspect.iscoroutine(result) else result
        return replace(result, writes=blocking(result.writes)) if isinstance(result, Completion) else result
    return run


class Blocking:
    """An Idempotency that is used as an AsyncIdempotency is."""

    def __init__(self, idem):
        self.idem = idem

    def __getattr__(self, name):
        async def call(*given, **named):
            named = {each: blocking(value) for each, value in named.items()}
            return getattr(self.idem, name)(*map(blocking, given), **named)
        return call


async def awaited(value):
    """The value, which may still have to come."""
    return await value if inspect.isawaitable(value) else value


class On:
    """What work does on a connection of one kind."""

    def __init__(self, kind):
        self.kind = kind

    async def run(self, tx, sql):
        """Runs a statement."""
        if self.kind == "django":
            with transaction.atomic(savepoint=False), tx.cursor() as cursor:
                cursor.execute(sql)
            return
        await awaited(tx.execute(sqlalchemy.text(sql) if "+" in self.kind else sql))

    async def insert(self, tx, name):
        """Leaves an effect; by its unit of work, where there is a Session."""
        if self.kind.startswith("session"):
            tx.add(Effect(name=name, value=1))
        else:
            await self.run(tx, f"INSERT INTO effect VALUES ('{name}', 1)")

    async def pause(self):
        """Lets others go on for a moment."""
        await awaited((asyncio.sleep if self.kind in ASYNC else time.sleep)(0.02))

    async def until(self, signal):
        """Waits for the signal of a lease."""
        if self.kind in ASYNC:
            await asyncio.wait_for(signal.wait(), 10)
        else:
            assert signal.wait(10)

    async def advance(self, clock, duration):
        """Moves the time of a FakeClock."""
        await awaited((clock.advance_async if self.kind in ASYNC else clock.advance)(duration))


@contextlib.asynccontextmanager
async def client_of(kind, host=None, size=2, timeout=20, **settings):
    """An AsyncIdempotency, or a Blocking. ``timeout``: seconds that a connection may take."""
    async with contextlib.AsyncExitStack() as stack:
        client = AsyncIdempotency if kind in ASYNC else lambda *given, **named: Blocking(Idempotency(*given, **named))
        yield client(await source_of(kind, stack, host, size, timeout), **{"retry": QUICK, **settings})


async def source_of(kind, stack, host, size, timeout):
    """Where its connections come from. The stack gives them back."""
    options = dict(conninfo=f"host={host}" if host else "", min_size=1, max_size=size, timeout=timeout)
    if kind == "psycopg":
        return stack.enter_context(psycopg_pool.ConnectionPool(**options))
    if kind == "async psycopg":
        return await stack.enter_async_context(psycopg_pool.AsyncConnectionPool(**options))
    if kind == "asyncpg":
        return AsyncpgSource(await stack.enter_async_context(
            asyncpg.create_pool(host=host, min_size=0, max_size=size, init=codec_of_the_user)), timeout=timeout)
    if kind == "django":
        stack.enter_context(django_at(host))
        return DjangoSource()
    style, driver = kind.split("+")
    url = f"postgresql+{driver}://" + (f"?host={host}" if host else "")
    options = dict(pool_size=size, connect_args={"timeout" if driver == "asyncpg" else "connect_timeout": timeout})
    if kind in ASYNC:
        engine = create_async_engine(url, **options)
        stack.push_async_callback(engine.dispose)
        return AsyncSQLAlchemySource(engine, async_sessionmaker() if style == "session" else None)
    engine = sqlalchemy.create_engine(url, **options)
    stack.callback(engine.dispose)
    return SQLAlchemySource(engine, orm.sessionmaker() if style == "session" else None)


async def codec_of_the_user(connection):
    """The package's own statements must not care."""
    await connection.set_type_codec("jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")


@contextlib.contextmanager
def django_at(host):
    """The connection of this thread is another one, perhaps of another host."""
    connection.close()
    before = connection.settings_dict["HOST"]
    connection.settings_dict["HOST"] = host or before
    try:
        yield
    finally:
        connection.close()
        connection.settings_dict["HOST"] = before


@pytest.fixture(params=BLOCKING + ASYNC)
def case(request):
    """Runs a coroutine function of a client of one kind, and of what work does there."""
    def start(test, **options):
        async def body():
            async with client_of(request.param, **options) as idem:
                return await test(idem, On(request.param))
        return (asyncio.run if request.param in ASYNC else finish)(body())
    return start


def of(*some):
    """The test is for these kinds alone."""
    return pytest.mark.parametrize("case", some, indirect=True)


@pytest.fixture
def impatient(monkeypatch):
    """What a hanging database is waited for at the end of a lease is the lease."""
    monkeypatch.setattr("pg_idempotency.lease.PATIENCE", 0)


def plain(tx, operation):
    return "x"
