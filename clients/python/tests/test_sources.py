"""The same flow over the connections of SQLAlchemy and of Django."""

import os

import django
import pytest
import sqlalchemy
from django.conf import settings
from sqlalchemy import orm

from conftest import QUICK
from pg_idempotency import CommitRolledBack, Completion, Declined, Idempotency, KeyReused, NotDone
from pg_idempotency.sqlalchemy import SQLAlchemySource

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

Base = orm.declarative_base()


class Effect(Base):
    __tablename__ = "effect"
    name = sqlalchemy.Column(sqlalchemy.Text, primary_key=True)
    value = sqlalchemy.Column(sqlalchemy.Integer)


def by_connection(tx, name):
    tx.execute(sqlalchemy.text("INSERT INTO effect VALUES (:name, 1)"), {"name": name})


def by_session(tx, name):
    tx.add(Effect(name=name, value=1))


def by_django(tx, name):
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO effect VALUES (%s, 1)", [name])


def fail_sqlalchemy(tx, sql):
    tx.execute(sqlalchemy.text(sql))


def fail_django(tx, sql):
    with tx.cursor() as cursor:
        cursor.execute(sql)


@pytest.fixture(params=["connection", "session", "django"])
def case(request):
    """A client, how it writes, and how it runs a statement."""
    if request.param == "django":
        yield Idempotency(DjangoSource(), retry=QUICK), by_django, fail_django
        connection.close()
        return
    engine = sqlalchemy.create_engine("postgresql+psycopg2://", pool_size=2)
    factory = orm.sessionmaker() if request.param == "session" else None
    yield (Idempotency(SQLAlchemySource(engine, factory), retry=QUICK),
           by_connection if factory is None else by_session, fail_sqlalchemy)
    engine.dispose()


def test_runs_once_and_replays(case, key, effects):
    idem, write, _ = case

    def work(tx, operation):
        write(tx, key)
        return {"name": key}
    first = idem.transaction(key, {"a": 1}, work)
    again = idem.transaction(key, {"a": 1}, work)
    assert (first.replayed, again.replayed, again.payload, effects()) == (False, True, {"name": key}, 1)
    with pytest.raises(KeyReused):
        idem.transaction(key, {"a": 2}, work)
    assert idem.transaction(key + "s", {"a": 1}, lambda tx, operation: "x", isolation="SERIALIZABLE",
                            max_lost_attempts=5).payload == "x"


def test_declined_leaves_no_effects(case, key, effects):
    idem, write, _ = case

    def work(tx, operation):
        write(tx, key)
        raise Declined(402, {"no": 1})
    assert idem.transaction(key, None, work).code == 402
    assert idem.transaction(key, None, work).replayed
    assert effects() == 0


def test_an_error_leaves_nothing(case, key, effects):
    idem, write, _ = case

    def work(tx, operation):
        write(tx, key)
        raise KeyError("own")
    with pytest.raises(KeyError):
        idem.transaction(key, None, work)
    assert effects() == 0


def test_not_done_is_no_lost_attempt(case, key, effects):
    idem, write, fail = case

    def work(tx, operation):
        write(tx, key)
        raise NotDone()

    def spoiled(tx, operation):
        write(tx, key)
        with pytest.raises(Exception):
            fail(tx, "SELECT 1/0")
        raise NotDone()
    for refused in (work, spoiled):
        with pytest.raises(NotDone):
            idem.transaction(key, None, refused)
    assert idem.transaction(key, None, lambda tx, operation: "x", max_lost_attempts=1).payload == "x"
    assert effects() == 0


def test_a_caught_error_does_not_pass_as_success(case, key, effects):
    idem, write, fail = case

    def work(tx, *operation):
        write(tx, key)
        with pytest.raises(Exception):
            fail(tx, "SELECT 1/0")
    with pytest.raises(CommitRolledBack):
        idem.transaction(key, None, work)
    with pytest.raises(CommitRolledBack):
        idem.run(work)
    assert effects() == 0


@pytest.mark.parametrize("end", ["close", "reset", "rollback"])
@pytest.mark.parametrize("change", ["new", "modified", "deleted"])
def test_a_session_that_is_ended_unflushed_does_not_pass_as_success(key, effects, admin, end, change):
    engine = sqlalchemy.create_engine("postgresql+psycopg2://")
    idem = Idempotency(SQLAlchemySource(engine, orm.sessionmaker()), retry=QUICK)
    admin.execute("INSERT INTO effect VALUES (%s, 1)", (key,))

    def work(tx, operation):
        if change == "new":
            tx.add(Effect(name=key + "2", value=1))
        else:
            effect = tx.get(Effect, key)
            if change == "modified":
                effect.value = 2
            else:
                tx.delete(effect)
        getattr(tx, end)()

    def declined(tx, operation):
        tx.add(Effect(name=key + "2", value=1))
        tx.close()
        raise Declined(402)

    def flushed(tx, operation):
        tx.add(Effect(name=key, value=1))
        tx.flush()
        tx.close()
    try:
        with pytest.raises(CommitRolledBack, match="not flushed"):
            idem.transaction(key, None, work)
        assert admin.execute("SELECT count(*) FROM idempotency_store WHERE idempotency_key = %s", (key,)).fetchone()[0] == 0
        assert idem.transaction(key + "d", None, declined).code == 402
        idem.transaction(key, None, flushed)
        assert effects() == 2
    finally:
        engine.dispose()


def test_serialization_failures_are_repeated(case, key, effects):
    idem, write, fail = case
    tries = []

    def work(tx, operation):
        tries.append(1)
        if len(tries) < 3:
            fail(tx, "DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '40001'; END $$")
        write(tx, key)
    assert idem.transaction(key, None, work).outcome == "COMPLETED"
    assert (len(tries), effects()) == (3, 1)


def test_a_backend_that_is_ended(case, key, effects, admin):
    idem, write, fail = case
    tries = []

    def work(tx, operation):
        tries.append(1)
        if len(tries) == 1:
            fail(tx, "SELECT pg_terminate_backend(pg_backend_pid())")
        write(tx, key)
    assert idem.transaction(key, None, work).outcome == "COMPLETED"
    assert (len(tries), effects()) == (2, 1)


@pytest.mark.parametrize("cut, replayed", [("lose", True), ("before", False)])
@pytest.mark.parametrize("kind", ["sqlalchemy", "django"])
def test_a_lost_answer_to_commit(proxy, key, effects, cut, replayed, kind):
    """The thread's connection of Django goes through the proxy, and so does that of an engine."""
    def work(tx, operation):
        if not proxy.hits:
            proxy.arm(cut)
        (by_django if kind == "django" else by_connection)(tx, key)
        return 1
    if kind == "django":
        connection.close()
        before, connection.settings_dict["HOST"] = connection.settings_dict["HOST"], proxy.directory
        try:
            result = Idempotency(DjangoSource(), retry=QUICK).transaction(key, None, work)
        finally:
            connection.close()
            connection.settings_dict["HOST"] = before
    else:
        engine = sqlalchemy.create_engine(f"postgresql+psycopg2://?host={proxy.directory}")
        result = Idempotency(SQLAlchemySource(engine), retry=QUICK).transaction(key, None, work)
        engine.dispose()
    assert (result.outcome, result.replayed, proxy.hits, effects()) == ("COMPLETED", replayed, 1, 1)


def test_leases(case, key, effects):
    idem, write, _ = case
    result = idem.lease(key, None, lambda operation, signal: Completion("ok", lambda tx: write(tx, key)))
    assert (result.payload, effects()) == ("ok", 1)
    assert idem.lease(key, None, lambda operation, signal: 1 / 0).replayed
    assert idem.lease(key + "2", None, lambda operation, signal: "plain").payload == "plain"


def test_many(case, key):
    idem, _, _ = case

    def work(tx):
        operations = idem.begin_many(tx, [key], [{"n": 1}])
        if operations[0].outcome == "ACQUIRED":
            idem.complete_many(tx, [key], ["done"])
        return operations[0].outcome, operations[0].payload
    assert [idem.run(work), idem.run(work)] == [("ACQUIRED", None), ("COMPLETED", "done")]


def test_hooks_of_django_run_after_a_real_commit_only(key):
    idem = Idempotency(DjangoSource())
    ran = []

    def work(tx, operation, fails=False):
        transaction.on_commit(lambda: ran.append(fails))
        if fails:
            with pytest.raises(Exception):
                fail_django(tx, "SELECT 1/0")
    idem.transaction(key, None, work)
    with pytest.raises(CommitRolledBack):
        idem.transaction(key + "2", None, lambda tx, operation: work(tx, operation, True))
    assert ran == [False]


def test_django_inside_of_another_transaction_is_refused(key):
    idem = Idempotency(DjangoSource())
    with transaction.atomic(), pytest.raises(RuntimeError):
        idem.transaction(key, None, lambda tx, operation: 1)
    with transaction.atomic(), pytest.raises(RuntimeError):
        idem.lease(key, None, lambda operation, signal: 1)
