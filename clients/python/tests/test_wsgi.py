"""The WSGI middleware, and its use by Flask."""

import io

import pytest
from flask import Flask, Response as FlaskResponse, abort

from conftest import QUICK, run_out
from http_kit import Gone, call_wsgi, wsgi
from pg_idempotency import Idempotency
from pg_idempotency.http import current
from pg_idempotency.http import wsgi as on_wsgi
from pg_idempotency.http.wsgi import FlaskIdempotency, IdempotencyMiddleware as WsgiMiddleware

GRANIAN = {"SERVER_SOFTWARE": "Granian"}    # which takes a body that has broken off for a whole one


@pytest.mark.parametrize("extra, status", [
    ({"CONTENT_LENGTH": "100"}, 400), ({"CONTENT_LENGTH": "-1"}, 400), ({"CONTENT_LENGTH": "0x10"}, 400),
    ({"wsgi.input": Gone()}, 400), ({"CONTENT_LENGTH": "", "wsgi.input": Gone(), "wsgi.input_terminated": True}, 400),
    ({"CONTENT_LENGTH": "", "HTTP_TRANSFER_ENCODING": "chunked"}, 411),
    ({"CONTENT_LENGTH": "", "HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input_terminated": True}, 201),
    ({"CONTENT_LENGTH": "", "HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input_terminated": True, **GRANIAN}, 411),
    ({"CONTENT_LENGTH": "", "wsgi.input_terminated": True, **GRANIAN}, 411), ({**GRANIAN}, 201)])
def test_a_body_that_is_not_seen_whole_is_refused(pool, key, extra, status):
    """A truncated upload is not run, and not stored: the whole one runs afterwards."""
    seen = []

    def handler(environ):
        seen.append(environ["wsgi.input"].read())
        return 201, [], [b"done"]
    app = wsgi(pool, handler)
    assert call_wsgi(app, key, b'{"whole": 1}', **extra)[0] == status
    assert call_wsgi(app, key, b'{"whole": 1}')[0] == 201
    assert seen == [b'{"whole": 1}']


@pytest.mark.parametrize("extra", [{"CONTENT_LENGTH": "100"}, {"wsgi.input_terminated": True}])
def test_no_more_than_the_limit_is_read(extra):
    assert on_wsgi.read_body({"wsgi.input": io.BytesIO(b"x" * 100), **extra}, 10) == b"x" * 11


@pytest.mark.parametrize("size, status", [(1000, 200), (1001, 500)])
def test_what_a_handler_writes_has_the_limit_as_well(pool, key, size, status):
    def app(environ, start_response):
        start_response("200 -", [])(b"x" * size)
        return []
    app = WsgiMiddleware(app, Idempotency(pool), principal=lambda asked: "p", max_response=1000)
    assert call_wsgi(app, key)[0] == status


@pytest.mark.parametrize("size, status", [(1000, 200), (1001, 500)])
def test_a_handler_that_streams_past_the_limit(pool, key, effects, size, status):
    closed = []

    def handler(environ):
        current().tx.execute("INSERT INTO effect VALUES (%s, 1)", (key,))

        def stream():
            try:
                for _ in range(size):
                    yield b"x"
                if size > 1000:
                    while True:
                        yield b"x"
            finally:
                closed.append(True)
        return 200, [], stream()
    app = wsgi(pool, handler, max_response=1000)
    assert call_wsgi(app, key)[0] == status
    assert (effects(), closed) == (1 if status == 200 else 0, [True])


def test_flask_repeats_what_it_has_made_a_500_of(pool, key, effects):
    flask = Flask("t")
    FlaskIdempotency(flask, Idempotency(pool, retry=QUICK), principal=lambda asked: "p",
                     routes={"/l/<n>": {"lease": 30}})
    tries = []

    @flask.post("/r/<n>")
    def view(n):
        tries.append(n)
        if len(tries) < 3:
            current().tx.execute("DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '40001'; END $$")
        current().tx.execute("INSERT INTO effect VALUES (%s, 1)", (key,))
        return {"n": n}

    @flask.post("/l/<n>")
    def leased(n):
        tries.append(current().tx)
        current().complete_with(lambda tx: tx.execute("INSERT INTO effect VALUES (%s, 1)", (key,)))
        return {"n": n}, 201

    @flask.post("/no")
    def refused():
        abort(404)      # is no error, but an answer
    assert call_wsgi(flask, key, path="/r/1")[0] == 200
    assert tries == ["1"] * 3
    assert call_wsgi(flask, key, path="/r/2")[0] == 422
    assert [call_wsgi(flask, key, path=path)[0] for path in ("/nowhere", "/no")] == [404, 404]
    assert call_wsgi(flask, key, path="/l/1")[0] == 201
    assert call_wsgi(flask, key, path="/l/1")[1]["Idempotency-Replayed"] == "true"
    assert (tries[3:], effects()) == ([None], 2)


@pytest.mark.parametrize("lease, statuses, kept", [(None, [500, 201], 1), (30, [500, 500], 1)])
@pytest.mark.parametrize("make", [lambda: {"a": object()}, lambda: None])
def test_flask_cannot_make_an_answer(pool, key, effects, lease, statuses, kept, make):
    """A transaction is undone. The view of a lease is done."""
    flask, ends = Flask("t"), [make, lambda: ("", 201)]
    FlaskIdempotency(flask, Idempotency(pool, retry=QUICK), principal=lambda asked: "p", lease=lease)

    @flask.post("/r")
    def view():
        insert = lambda tx: tx.execute("INSERT INTO effect VALUES (%s, 1)", (key,))     # noqa: E731
        current().complete_with(insert) if lease else insert(current().tx)
        return ends.pop(0)()
    assert [call_wsgi(flask, key)[0] for _ in range(2)] == statuses
    assert (effects(), len(ends)) == (kept, 1 if lease else 0)


def test_flasks_view_that_fails_leaves_a_lease_whatever_its_error_handler_gives(pool, key, admin):
    flask = Flask("t")
    FlaskIdempotency(flask, Idempotency(pool, retry=QUICK), principal=lambda asked: "p", lease=30)
    flask.post("/r")(lambda: 1 / 0)
    flask.register_error_handler(ZeroDivisionError, lambda error: object())
    assert call_wsgi(flask, key)[0] == 500
    run_out(admin, key)


def test_flasks_teardown_comes_before_commit_and_may_fail_it(pool, key, effects, admin):

    def close(tx):
        """Closes tx, and waits until the server's end of it holds the key no more: the next attempt gets no 409."""
        session = tx.info.backend_pid
        tx.close()
        admin.execute("SELECT pg_terminate_backend(%s, 60000)", (session,))
    flask = Flask("t")
    FlaskIdempotency(flask, Idempotency(pool, retry=QUICK), principal=lambda asked: "p")
    ends = [lambda tx: 1 / 0, close, lambda tx: tx.rollback(), lambda tx: tx.commit(), lambda tx: None]
    seen = []

    @flask.post("/r")
    def view():
        current().tx.execute("INSERT INTO effect VALUES (%s, 1)", (key,))
        return "", 201

    @flask.teardown_request
    def teardown(error):
        seen.append(effects())
        ends[0](current().tx)
    statuses = []
    while ends:
        statuses.append((call_wsgi(flask, key)[0], effects()))
        ends.pop(0)
    assert statuses == [(500, 0), (503, 0), (500, 0), (500, 0), (201, 1)]
    assert set(seen) == {0}


@pytest.mark.parametrize("kept", [201, 402])
def test_what_flask_calls_on_close_comes_after_commit(pool, key, admin, conflict, kept):
    """Once for the answer that is stored, when its server has sent it; not for what was rolled back, and not for a replay."""
    flask = Flask("t")
    FlaskIdempotency(flask, Idempotency(pool, retry=QUICK), principal=lambda asked: "p")
    seen, runs, answers = [], [], iter([503, kept, kept])

    @flask.post("/r")
    def view():
        exchange = current()
        runs.append(exchange)
        if kept == 201:
            exchange.tx.execute("INSERT INTO conflict VALUES (%s)", (key,))
        answer = FlaskResponse(status=next(answers))

        @answer.call_on_close
        def look():
            row = admin.execute("SELECT status FROM idempotency_store WHERE idempotency_key = %s", (key,)).fetchone()
            seen.append((answer.status_code, row, exchange.tx, exchange is runs[-1]))
        return answer
    for given, count in ((503, 0), (kept, 1), (kept, 1)):
        assert (call_wsgi(flask, key)[0], len(seen)) == (given, count)
    assert seen == [(kept, ("COMPLETED" if kept == 201 else "FAILED",), None, True)]


def test_flask_knows_the_routes_of_a_subdomain(pool, key, effects):
    flask = Flask("t", subdomain_matching=True)
    flask.config["SERVER_NAME"] = "example.com"
    FlaskIdempotency(flask, Idempotency(pool, retry=QUICK), principal=lambda asked: "p")

    @flask.post("/r", subdomain="<shop>")
    def view(shop):
        current().tx.execute("INSERT INTO effect VALUES (%s, 1)", (key,))
        return shop, 201
    answers = [call_wsgi(flask, key, HTTP_HOST="a.example.com") for _ in range(2)]
    assert [(status, headers.get("Idempotency-Replayed"), body) for status, headers, body in answers] == [
        (201, None, b"a"), (201, "true", b"a")]
    assert effects() == 1
