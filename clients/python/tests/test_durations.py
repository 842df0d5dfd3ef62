"""What is no duration is refused by name, before anything is asked of the database."""

import math
from datetime import timedelta

import pytest

from pg_idempotency import Declined, Idempotency, Response, Retry, Unstorable
from pg_idempotency.errors import BadOption
from pg_idempotency.http.core import Options, Store

OVER = timedelta(days=36500, seconds=1)     # the server takes no more
NONE = (math.nan, -math.inf, OVER, 10**400, "abc", object())
BOUNDED = (*NONE, math.inf)


def nowhere():
    raise AssertionError("asked for a connection")


def not_run(*given):
    raise AssertionError("the work ran")


def refuses(name, call):
    with pytest.raises(BadOption, match=name) as caught:
        call()
    assert caught.value.sqlstate == "ID400"


@pytest.mark.parametrize("value", BOUNDED, ids=("nan", "-inf", "over", "int", "text", "object", "inf"))
def test_of_a_client(value):
    refuses("retention", lambda: Idempotency(nowhere, retention=value))
    refuses("lease", lambda: Idempotency(nowhere, lease=value))
    if isinstance(value, float) and not value < 0:
        refuses("retry.base", lambda: Idempotency(nowhere, retry=Retry(base=value)))
        refuses("retry.cap", lambda: Idempotency(nowhere, retry=Retry(cap=value)))


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"base": -1}, {"cap": -1}])
def test_of_a_retry(wrong):
    with pytest.raises(ValueError, match="attempts must be at least 1, base and cap at least 0"):
        Retry(**wrong)


@pytest.mark.parametrize("value", [0, -1, timedelta(), 1e-9])
def test_too_short_for_each_call(value):
    """The server would refuse each message, and its consumer would make a dead letter of it."""
    for name in ("retention", "lease"):
        refuses(name, lambda: Idempotency(nowhere, **{name: value}))
    refuses("lease", lambda: Options(scope=str, lease=value))
    refuses("retention", lambda: Store("complete", value))


@pytest.mark.parametrize("value", [-1, 1.5, "1; COMMIT", 2**31])
def test_what_counts_no_attempts(value):
    idem = Idempotency(nowhere)
    refuses("max_attempts", lambda: Options(scope=str, max_attempts=value))
    refuses("max_attempts", lambda: idem.transaction("k", None, not_run, max_attempts=value))
    refuses("max_attempts", lambda: idem.lease("k", None, not_run, max_attempts=value))
    refuses("max_attempts", lambda: idem.begin_many(None, ["k"], max_attempts=value))
    refuses("max_lost_attempts", lambda: idem.transaction("k", None, not_run, max_lost_attempts=value))


@pytest.mark.parametrize("name,values", [("wait", (*NONE, -1)), ("retention", (*BOUNDED, -1, 0)), ("lease", (*BOUNDED, -1, 0))])
def test_of_a_call(name, values):
    idem = Idempotency(nowhere)
    for value in values:
        refuses(name, lambda: idem.lease("k", None, not_run, **{name: value}))
        if name != "lease":
            refuses(name, lambda: idem.transaction("k", None, not_run, **{name: value}))


@pytest.mark.parametrize("name,values", [("wait", NONE), ("max_wait", NONE), ("timeout", NONE), ("lease", BOUNDED)])
def test_of_the_middleware(name, values):
    for value in values:
        refuses(name, lambda: Options(scope=str, **{name: value}))
        refuses("retention", lambda: Store("complete", value))
    for value in (-1, timedelta(seconds=-1)):       # the server would say so of each request
        refuses(name, lambda: Options(scope=str, **{name: value}))
        refuses("retention", lambda: Store("complete", value))


@pytest.mark.parametrize("value", [*BOUNDED, -1, 0], ids=("nan", "-inf", "over", "int", "text", "object", "inf", "-1", "0"))
def test_of_an_answer(idem, key, effects, value):
    def answers(tx, operation):
        tx.execute("INSERT INTO effect VALUES (%s, 1)", (key,))
        return Response(retention=value)

    def declines(**given):
        def work(*unused):
            raise Declined(402, **given)
        return work

    refuses("retention", lambda: idem.transaction(key, None, answers))
    assert effects() == 0
    # One that has passed, as one that was computed, is now.
    if (is_past := value in (-1, 0, -math.inf)):
        assert idem.transaction(f"{key}-past", None, declines(retry_after=value)).retry_after == 0
    for name in ("retention",) if is_past else ("retention", "retry_after"):
        refuses(name, lambda: idem.transaction(key, None, declines(**{name: value})))
        refuses(name, lambda: idem.lease(f"{key}-{name}", None, declines(**{name: value})))
        with pytest.raises(Unstorable):     # who declines has done the work
            idem.lease(f"{key}-{name}", None, not_run)


def test_what_is_one(idem, key):
    for number, value in enumerate((5, 0.5, timedelta(hours=1), 1e9)):
        options = {"wait": value, "retention": value, "lease": value}
        assert idem.lease(f"{key}-{number}", None, lambda operation, signal: 1, **options).payload == 1
    assert idem.transaction(key, None, lambda tx, operation: 1, wait=math.inf).payload == 1
