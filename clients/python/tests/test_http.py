"""HTTP: what the black-box suite cannot see. Keys, limits, streams, time-outs, what is stored."""

import asyncio
import gzip
import io
import json
import threading
from datetime import timezone
from decimal import Decimal
from email.utils import format_datetime
from pathlib import Path
from unittest.mock import ANY

import kinds        # the settings of Django
import psycopg
import psycopg_pool
import pytest
import sqlalchemy
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.core.handlers.asgi import ASGIHandler, ASGIRequest
from django.core.handlers.wsgi import WSGIRequest
from django.http import Http404, HttpResponse, StreamingHttpResponse
from django.test import AsyncClient, Client, RequestFactory, override_settings
from django.urls import path as django_path
from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI
from fastapi.testclient import TestClient
from flask import Flask, Response as FlaskResponse, abort
from starlette.applications import Starlette
from starlette.responses import FileResponse, Response as StarletteResponse
from starlette.routing import Mount, Route

import django_urls
from conftest import QUICK, run_out
from pg_idempotency import (AsyncIdempotency, Completion, Declined, Done, Forbidden, Idempotency, KeyReused, LeaseLost,
                            NotDone, Response, Result, TooLarge, Unknown)
from pg_idempotency.http import Core, Options, Reply, Request, Store, current
from pg_idempotency.http.asgi import IdempotencyMiddleware as AsgiMiddleware, route_template, send_reply as asgi_send_reply
from pg_idempotency.http.core import Admitted, Exchange, NotStored, Served, kept_headers, stored_reply
from pg_idempotency.http.django import IdempotencyMiddleware as DjangoMiddleware, http_response, route_template as django_template
from pg_idempotency.http.key import BadKey, read_key
from pg_idempotency.http.problem import document, problem_of, whole_seconds
from pg_idempotency.http import wsgi as on_wsgi
from pg_idempotency.model import Json, to_json
from pg_idempotency.http.wsgi import FlaskIdempotency, IdempotencyMiddleware as WsgiMiddleware

assert kinds.settings.configured
SPELLINGS = Path(__file__).parents[2] / "conformance" / "spellings.json"


def test_keys():
    """The black-box suite has the others. What is empty or too long, the server would refuse, too."""
    for bare in ("3f-1", "YWJj+/=="):
        assert read_key([bare], False) == bare
        with pytest.raises(BadKey):
            read_key([bare], True)
    assert read_key(['"a b"'], True) == "a b"
    for bad in ("a;b", '""', "k" * 256):
        with pytest.raises(BadKey):
            read_key([bad], False)


def request(body=b"{}", route="/r", **headers):
    named = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return Request("POST", route, route, [("content-type", "application/json"), *named], body)


@pytest.mark.parametrize("error", [psycopg_pool.PoolTimeout, TimeoutError, sqlalchemy.exc.TimeoutError])
def test_a_pool_without_a_free_connection_is_busy(error):
    """Pools have no SQLSTATE for it. A time-out of a handler's own is an error like any other."""
    def connect():
        raise error("no connection is free")

    with pytest.raises(error) as caught:
        Idempotency(connect).transaction("k", None, lambda tx, operation: None)
    assert [problem_of(one).status for one in (caught.value, TimeoutError())] == [503, 500]


def test_spellings():
    """The packages for all languages have the same scopes and fingerprints, or one key would be two operations."""
    spellings = json.loads(SPELLINGS.read_text(encoding="utf-8"), parse_float=Decimal)
    assert len(spellings) > 10
    for one in spellings:
        core = Core(Options(principal=lambda asked, who=one["principal"]: who), lambda service=one["service"]: service)
        admitted = core.admit(Request(one["method"], one["target"], one["route"],
                                      [("content-type", one["type"]), ("idempotency-key", "k")], one["body"].encode()))
        if one["body"] == "{broken":
            assert admitted.status == 400       # no operation at all
            continue
        assert admitted.scope == one["scope"]
        assert json.loads(admitted.request.text, parse_float=Decimal) == one["fingerprint"]


@pytest.mark.parametrize("nobody", ["", 0, 7, b"x", {"id": 1}])
def test_a_principal_is_a_string_that_is_not_empty(nobody):
    core = Core(Options(principal=lambda asked: nobody))
    with pytest.raises(TypeError, match="principal"):
        core.admit(request(idempotency_key="k"))


@pytest.mark.parametrize("nothing", [None, "", 7])
def test_a_scope_is_a_string_that_is_not_empty(nothing):
    """Behind the scope of the Idempotency, None was the scope of all who have none."""
    core = Core(Options(scope=lambda asked: nothing), lambda: "payments")
    with pytest.raises(TypeError, match="scope"):
        core.admit(request(idempotency_key="k"))


def test_a_principal_has_to_be_given():
    for kind in (Options, lambda: Options(routes={"/r": {}})):
        with pytest.raises(ValueError, match="principal"):
            kind()


async def nobody_waits(asked):
    return False


@pytest.mark.filterwarnings("ignore:coroutine 'nobody_waits'")
@pytest.mark.parametrize("wrong, error", [
    ({"methods": "POST"}, ValueError), ({"stored_headers": "x-*"}, ValueError), ({"statuses": {404: Store("fail")}}, ValueError),
    ({"statuses": {"4XX": Store("fail")}}, ValueError), ({"skip": nobody_waits}, TypeError), ({"header": "the key"}, ValueError),
    ({"marker": "\u0142"}, ValueError), ({"lifetime": "until:"}, ValueError), ({"describedby": "/\r\n"}, ValueError)])
def test_an_option_that_would_say_nothing_is_refused(wrong, error):
    for options in (wrong, {"routes": {"/r": wrong}}):
        with pytest.raises(error):
            Core(Options(principal=lambda asked: "p", **options)).admit(request(idempotency_key="k"))
    with pytest.raises(ValueError, match="no such end"):
        Store("completed")


def test_the_scope_of_the_instance_stands_before_an_own_one():
    assert Core(Options(scope=lambda asked: "s"), lambda: "a b").admit(request(idempotency_key="k")).scope == "a%20b s"


def test_options_of_a_route_and_of_keys():
    core = Core(Options(principal=lambda asked: "p", routes={
        "/optional": {"required": False}, "/made": {"make_key": lambda asked: "made"}, "/put": {"methods": ("PUT",)},
        "/skipped": {"skip": lambda asked: True}, "/scoped": {"scope": lambda asked: "own"},
        "/print": {"fingerprint": lambda asked: [1]}, "/alike": {"fingerprint": lambda asked: None}}))
    assert core.admit(request(route="/optional")) is None
    assert [core.admit(request(route="/made", **given)).key for given in ({}, {"idempotency_key": "k"})] == ["made", "k"]
    assert core.admit(request(route="/skipped", idempotency_key="k")) is None
    assert core.admit(request(route="/scoped", idempotency_key="k")).scope == "own"
    for route, own in (("/print", [1]), ("/alike", None)):
        printed = json.loads(core.admit(request(route=route, idempotency_key="k")).request.text)
        assert printed == {"method": "POST", "target": route, "own": own}
    assert core.admit(request()).status == 400
    assert [core.covers("PUT", "/put"), core.covers("PUT", "/r"), core.covers("POST", None)] == [True, False, False]


@pytest.mark.parametrize("prefer, wait", [("wait=3", 3), ("respond-async, wait=100", 10), ("wait=x", 2), ("awaits=5", 2),
                                          ("x; wait=5", 2), ("wait=5; x", 5)])
def test_prefer(prefer, wait):
    core = Core(Options(principal=lambda asked: "p", wait=2))
    assert core.admit(request(idempotency_key="k", prefer=prefer)).wait == wait


def test_json_that_is_none_is_refused():
    core = Core(Options(principal=lambda asked: "p"))
    for body in (b'{"a": NaN}', b'{"a": 1', b"\xff", b" ", b"\xef\xbb\xbf{}", '{}'.encode("utf-16")):
        reply = core.admit(request(body, idempotency_key="k"))
        assert (reply.status, json.loads(reply.body)["title"]) == (400, "The body cannot be read")


def test_what_jsonb_cannot_hold_or_is_encoded_counts_by_its_bytes():
    core = Core(Options(principal=lambda asked: "p"))

    def compared(body, **headers):
        return json.loads(core.admit(request(body, idempotency_key="k", **headers)).request.text)["body"]
    for body in (b'"\xff"', b"[" * 100000 + b"]" * 100000):
        assert compared(body).startswith("sha256:")
    packed = [compared(body, content_encoding="gzip") for body in (gzip.compress(b"{}", mtime=0), b"{}", b"[1]")]
    assert all(one.startswith("sha256:") for one in packed) and len(set(packed)) == 3
    assert compared(b"{}", content_encoding="Identity") == {}
    assert '{"a": 1.10}' in core.admit(request(b'{"a": 1.10}', idempotency_key="k")).request.text


def test_no_error_shows_anything():
    for error in (Unknown("secret"), NotDone("secret"), NotDone("secret", 3), KeyError("secret"), OSError("secret")):
        assert "secret" not in problem_of(error).detail
    caused, timed = NotDone(), NotDone("", 3)
    caused.__cause__ = timed.__cause__ = KeyReused()
    assert [(problem_of(error).status, problem_of(error).retry_after) for error in (Unknown(), NotDone(), timed, caused)] == [
        (503, 1), (503, 1), (503, 3), (422, None)]
    assert [problem_of(error).status for error in (Unknown(), Forbidden(), TooLarge(), LeaseLost())] == [503, 403, 413, 409]
    for state in ("40001", "40P01", "25006", "53300", "55P03", "57014", "08006"):
        assert problem_of(psycopg.errors.lookup(state)()).status == 503
    assert problem_of(psycopg.errors.lookup("42501")()).status == 500
    assert [whole_seconds(duration) for duration in (None, 0, 0.2, 6.1)] == ["1", "1", "1", "7"]
    headers, body = document(problem_of(KeyError()), "/keys")
    assert (dict(headers)["Link"], json.loads(body)["type"]) == ('</keys>; rel="describedby"', "/keys")


def call_wsgi(app, key, body=b"{}", path="/r", method="POST", **extra):
    """Status, headers and body of one request."""
    started = []
    environ = {"REQUEST_METHOD": method, "PATH_INFO": path, "CONTENT_TYPE": "application/json", "SERVER_NAME": "s",
               "SERVER_PORT": "80", "wsgi.url_scheme": "http", "wsgi.errors": io.StringIO(),
               "CONTENT_LENGTH": str(len(body)), "wsgi.input": io.BytesIO(body), "HTTP_X_TENANT": "t", **extra}
    if key is not None:
        environ["HTTP_IDEMPOTENCY_KEY"] = key
    parts = app(environ, lambda status, headers: started.append((status, headers)))
    sent = int(started[0][0][:3]), dict(started[0][1]), b"".join(parts)
    getattr(parts, "close", bool)()     # as PEP 3333 has it
    return sent


def wsgi(pool, handler, **options):
    """A middleware around a handler that gives status, headers and parts of a body."""
    def app(environ, start_response):
        status, headers, parts = handler(environ)
        start_response(f"{status} -", headers)
        return parts
    options = {"principal": lambda asked: asked.value("x-tenant"), **options}
    return WsgiMiddleware(app, Idempotency(pool, retry=QUICK), **options)


def declined(*payload, **more):
    raise Declined(402, *payload, **more)


def test_what_is_stored_and_what_is_not(pool, key):
    def handler(environ):
        return 201, [("Content-Type", "text/plain"), ("Set-Cookie", "a=b"), ("X-Own", "1"), ("ETag", '"e"')], [b"\x00", b"b"]
    app = wsgi(pool, handler, stored_headers=("content-type", "etag", "set-cookie", "x-*"))
    first, again = call_wsgi(app, key), call_wsgi(app, f'"{key}"')
    assert first[1]["Set-Cookie"] == "a=b" and "Idempotency-Replayed" not in first[1]
    assert again == (201, {"Content-Type": "text/plain", "X-Own": "1", "ETag": '"e"', "Content-Length": "2",
                           "Idempotency-Replayed": "true"}, b"\x00b")


def test_an_answer_that_is_too_large_is_sent_whole(pool, run, key, admin):
    """And a replay has what the policy has in its place."""
    whole = b"x" * 300
    admin.execute("""SELECT idem_set_policy('large', max_response_size => 200, too_large_response => '{"at": "/1"}')""")

    def handler(environ):
        return 201, [("Content-Type", "text/plain")], [whole]

    async def on_asgi(idem):
        app = asgi(idem, lambda body, receive, send: respond(send, 201, whole), scope=lambda asked: "large")
        return [await asgi_call(app, key + "-asgi") for _ in range(2)]
    app = wsgi(pool, handler, scope=lambda asked: "large")
    for first, again in ([call_wsgi(app, key) for _ in range(2)], run(on_asgi)):
        assert (first[0], first[2]) == (201, whole)
        assert (again[0], json.loads(again[2])) == (201, {"at": "/1"})
        assert "application/json" in again[1].values() or b"application/json" in again[1].values()


def test_a_header_that_comes_more_than_once_is_replayed_as_often():
    links = [("Link", f"<{one}>") for one in "abc"]
    kept = kept_headers(Options(principal=str, stored_headers=("link",)), links)
    assert stored_reply(Result("COMPLETED", headers=kept), "marker").headers == links


def test_a_type_that_was_stored_stays_the_only_one():
    own = [("content-type", "application/vnd.api+json")]
    assert stored_reply(Result("COMPLETED", headers=dict(own), payload={}), "marker").headers == own
    waits = {"retry-after": "30", "x": "y"}     # it was as long when it was stored
    assert stored_reply(Result("FAILED", headers=waits, retry_after=12), "marker").headers == [("x", "y"), ("Retry-After", "12")]
    assert stored_reply(Result("FAILED", headers=waits), "marker").headers == [*waits.items()]


def test_an_answer_is_kept_as_its_status_says():
    options = Options(principal=str, lease=30, statuses={"2xx": Store("complete", 60), "4xx": Store("fail", 70)})
    served = Served(Core(options), Admitted("k", "s", None, 0, options))
    assert served.outcome(Exchange(None, None), Reply(201)).retention == 60
    with pytest.raises(ValueError):
        to_json(served.outcome(Exchange(None, None), Reply(1000)).payload)
    for status, error in ((404, Declined), (600, NotStored)):
        with pytest.raises(Exception) as raised:
            served.outcome(Exchange(None, None), Reply(status))
        assert (type(raised.value), getattr(raised.value, "retention", None)) == (error, 70 if status == 404 else None)


def test_a_replay_counts_more_than_what_the_handler_answered():
    """Its run was rolled back, or the answer to its COMMIT was lost."""
    served = Served(Core(Options(principal=str)), Admitted("k", "s", None, 0, Options(principal=str)))
    served.reply = Reply(201, [], b"rolled back")
    answer = served.answer(Result("COMPLETED", 201, body=b"stored", replayed=True))
    assert (answer.body, served.is_kept) == (b"stored", False)


@pytest.mark.parametrize("end", [lambda headers: (201, list(headers.items()), [b""]), lambda headers: declined(headers=headers)])
def test_a_header_that_http_does_not_carry_rolls_back(pool, key, effects, end):
    def handler(environ):
        current().tx.execute("INSERT INTO effect VALUES (%s, 1)", (key,))
        return end({"X-Name": "\u0141\u00f3d\u017a"})
    assert [call_wsgi(wsgi(pool, handler), key)[::2] for _ in range(2)] == [(500, ANY)] * 2
    assert effects() == 0
    with pool.connection() as connection:
        assert connection.execute("SELECT FROM idempotency_store WHERE idempotency_key = %s", (key,)).fetchone() is None


def test_an_answer_that_was_rolled_back_is_not_given(proxy, key):
    """Its COMMIT is lost, and the next run is declined, too."""
    ends = [lambda: (402, [], [b"first"]), lambda: declined({"no": 1})]
    app = wsgi(lambda: psycopg.connect(f"host={proxy.directory}"), lambda environ: ends.pop(0)())
    proxy.arm("before", "^COMMIT")
    assert [call_wsgi(app, key)[::2] for _ in range(2)] == [(402, b'{"no":1}')] * 2


def test_a_payload_without_a_body_is_compact(pool, key, admin):
    """As of what was stored by SQL. The packages for other languages send the same."""
    admin.execute("BEGIN; SELECT idem_begin('{0}', scope => 'POST /r t'); SELECT idem_complete('{0}', scope => 'POST /r t',"
                  " response => '{1}'); COMMIT".format(key, '{"a": [1, null, "\u00fc: , \\\\\\""]}'))
    status, headers, body = call_wsgi(wsgi(pool, lambda environ: 1 / 0), key)
    assert (status, headers["Content-Type"], body.decode()) == (200, "application/json", '{"a":[1,null,"\u00fc: , \\\\\\""]}')


@pytest.mark.parametrize("end", [lambda: declined(Json("null")), lambda: declined(Json(" null "))])
def test_json_null_is_a_body(pool, key, end):
    app = wsgi(pool, lambda environ: end())
    for replayed in (None, "true"):
        status, headers, body = call_wsgi(app, key)
        assert (status, headers["Content-Type"], body) == (402, "application/json", b"null")
        assert headers.get("Idempotency-Replayed") == replayed


@pytest.mark.parametrize("found", [Json("null"), Response(200, payload=Json("null"))])
def test_json_null_of_reconcile_is_a_body(pool, key, admin, found):
    app = wsgi(pool, lambda environ: 1 / 0, lease=30, reconcile=lambda operation: Done(found))
    call_wsgi(app, key)
    run_out(admin, key)
    assert [call_wsgi(app, key)[2] for _ in range(2)] == [b"null"] * 2


@pytest.mark.parametrize("options", [{}, {"lease": 30}])
def test_what_http_cannot_send_is_neither_stored_nor_replayed(pool, key, admin, options):
    def handler(environ):
        raise Declined(code)
    app = wsgi(pool, handler, **options)
    for code in (1, 100, 1000):
        assert call_wsgi(app, f"{key}-{code}")[0] == 500
        kept = admin.execute("DELETE FROM idempotency_store WHERE idempotency_key = %s RETURNING status::text, response_code",
                             (f"{key}-{code}",)).fetchall()
        assert kept == ([("COMPLETED", 500)] if options else [])     # the handler of a lease is done
    code = 402
    assert call_wsgi(app, key)[0] == 402
    for change in ("response_code = 1", """response_code = 402, response_headers = '{"X-A": "\u0142"}'"""):
        admin.execute(f"UPDATE idempotency_store SET {change} WHERE idempotency_key = %s", (key,))
        assert call_wsgi(app, key)[0] == 500
    assert admin.execute("SELECT count(*) FROM idempotency_store WHERE starts_with(idempotency_key, %s) AND response_code <> 402",
                         (key,)).fetchone()[0] == 0


def test_the_marker_of_a_replay_has_a_name_of_your_own(pool, key):
    app = wsgi(pool, lambda environ: (201, [], [b""]), marker="Idempotent-Replayed")
    headers = [call_wsgi(app, key)[1] for _ in range(2)]
    assert [one.get("Idempotent-Replayed") for one in headers] == [None, "true"]
    assert "Idempotency-Replayed" not in headers[1]


@pytest.mark.parametrize("options", [{}, {"lease": 30}])
def test_an_answer_says_until_when_it_is_kept(pool, key, admin, options):
    statuses = {"2xx": Store("complete", 3600), "429": Store("release")}
    answers = iter([(429, [], [b""]), (201, [], [b""])])
    app = wsgi(pool, lambda environ: next(answers), lifetime="Idempotency-Expires", statuses=statuses, **options)
    headers = [call_wsgi(app, key)[1] for _ in range(3)]
    until = admin.execute("SELECT expires_at FROM idempotency_store WHERE idempotency_key = %s", (key,)).fetchone()[0]
    assert [one.get("Idempotency-Expires") for one in headers] == [None, *2 * [format_datetime(
        until.astimezone(timezone.utc), usegmt=True)]]
    for end in ("infinity", "10000-01-01Z", "9999-12-31 23:59:59Z"):
        admin.execute("UPDATE idempotency_store SET expires_at = %s WHERE idempotency_key = %s", (end, key))
        status, header, _ = call_wsgi(app, key)
        assert (status, header["Idempotency-Replayed"], header.get("Idempotency-Expires")) == (
            201, "true", "Fri, 31 Dec 9999 23:59:59 GMT" if end[0] == "9" else None)
    app.idempotency.expires_at = lambda *given, **named: 1 / 0
    assert call_wsgi(app, key)[0] == 201
    app = wsgi(pool, lambda environ: (500, [], [b""]), lifetime="Idempotency-Expires", **options)
    assert "Idempotency-Expires" not in {**call_wsgi(app, key + "p")[1], **call_wsgi(app, key + "p")[1]}
    if not options:
        assert Idempotency(pool).expires_at(key, scope="POST /r t").year == 9999
        admin.execute("UPDATE idempotency_store SET expires_at = 'infinity' WHERE idempotency_key = %s", (key,))
        assert Idempotency(pool).expires_at(key, scope="POST /r t") is None


def test_a_stored_answer_that_python_cannot_read_is_sent_as_it_is(pool, key, admin):
    """Another language has stored it."""
    deep = "[" * 1500 + "]" * 1500
    with admin.transaction():
        admin.execute("SELECT idem_begin(%s, scope => 'POST /r t')", (key,))
        admin.execute("SELECT idem_complete(%s, %s, 'POST /r t')", (key, deep))
    status, headers, body = call_wsgi(wsgi(pool, None), key)
    assert (status, headers["Content-Type"], body) == (200, "application/json", deep.encode())


def test_a_compressed_answer_stays_one(pool, key):
    packed = gzip.compress(b"packed")
    app = wsgi(pool, lambda environ: (200, [("Content-Encoding", "gzip"), ("X-Own", "1")], [packed]), stored_headers=("x-own",))
    for _ in range(2):
        status, headers, body = call_wsgi(app, key)
        assert (status, headers["Content-Encoding"], headers["X-Own"], body) == (200, "gzip", "1", packed)


class Gone(io.BytesIO):
    """The body of a client that has gone away."""

    def read(self, *size):
        raise OSError


@pytest.mark.parametrize("extra, status", [
    ({"CONTENT_LENGTH": "100"}, 400), ({"CONTENT_LENGTH": "-1"}, 400), ({"CONTENT_LENGTH": "0x10"}, 400),
    ({"wsgi.input": Gone()}, 400), ({"CONTENT_LENGTH": "", "wsgi.input": Gone(), "wsgi.input_terminated": True}, 400),
    ({"CONTENT_LENGTH": "", "HTTP_TRANSFER_ENCODING": "chunked"}, 411),
    ({"CONTENT_LENGTH": "", "HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input_terminated": True}, 201)])
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


@pytest.mark.parametrize("extra, status", [
    ({"CONTENT_LENGTH": "100"}, 400), ({"CONTENT_LENGTH": "-1"}, 400), ({"CONTENT_LENGTH": "12"}, 201),
    ({"CONTENT_LENGTH": "1000", "wsgi.input": io.BytesIO(b"x" * 1000)}, 413),
    ({"CONTENT_LENGTH": "12", "wsgi.input": Gone()}, 400), ({"CONTENT_LENGTH": "0"}, 201),
    ({"CONTENT_LENGTH": "2000000", "wsgi.input": Gone(), "limit": None}, 413),
    ({"HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input_terminated": True}, 411)])
def test_django_refuses_a_body_that_is_not_seen_whole(key, extra, status):
    """Of a chunked body Django sees nothing, so any two of them would be the same request."""
    middleware = DjangoMiddleware(lambda request: HttpResponse(request.body, status=201))
    with override_settings(DATA_UPLOAD_MAX_MEMORY_SIZE=extra.get("limit", 500)):
        response = middleware(WSGIRequest({
            "REQUEST_METHOD": "POST", "PATH_INFO": "/flaky/1", "CONTENT_TYPE": "application/json", "SERVER_NAME": "s",
            "SERVER_PORT": "80", "wsgi.input": io.BytesIO(b'{"whole": 1}'), "HTTP_X_TENANT": "t", "HTTP_IDEMPOTENCY_KEY": key,
            **extra}))
    assert response.status_code == status


@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
def test_django_stores_a_stream_of_an_async_view(key):
    async def answers():
        client = AsyncClient()
        return [await client.post("/streams-later", data="{}", content_type="application/json",
                                  headers={"Idempotency-Key": key, "X-Tenant": "t"}) for _ in range(2)]
    first, again = asyncio.run(answers())
    assert [first.status_code, first.content, again.status_code, again.content] == [201, b"ab"] * 2
    assert again["Idempotency-Replayed"] == "true"


def test_django_sees_a_chunked_body_under_asgi(key):
    headers = [(b"idempotency-key", key.encode()), (b"x-tenant", b"t"), (b"transfer-encoding", b"chunked")]
    request = ASGIRequest({"method": "POST", "path": "/flaky/1", "headers": headers}, io.BytesIO(b"whole"))
    assert DjangoMiddleware(lambda request: HttpResponse(request.body, status=201))(request).content == b"whole"


def leave_django(method, path, headers):
    """A request under ASGI whose client goes away when its view has begun."""
    django_urls.running.clear()
    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": headers}
    messages = [{"type": "http.request", "body": b"{}"}]

    async def receive():
        if messages:
            return messages.pop()
        await asyncio.to_thread(django_urls.running.wait, 10)
        asyncio.get_running_loop().call_later(.1, django_urls.may_go_on.set)
        return {"type": "http.disconnect"}

    async def send(message):
        raise AssertionError("nobody is there")
    asyncio.run(ASGIHandler()(scope, receive, send))


@pytest.mark.filterwarnings("ignore:async_to_sync was passed")
def test_django_goes_on_without_its_client_under_asgi(admin, key):
    """Django cancels the call then."""
    leave_django("POST", "/slow", [(b"idempotency-key", key.encode()), (b"x-tenant", b"t"), (b"content-length", b"2")])
    assert admin.execute("SELECT status FROM idempotency_store WHERE idempotency_key = %s", (key,)).fetchall() == [("COMPLETED",)]


@pytest.mark.filterwarnings("ignore:async_to_sync was passed")
def test_django_cancels_a_view_without_a_key_under_asgi():
    """A view may end then what it does for its client alone, as without the middleware."""
    django_urls.cancelled.clear()
    with override_settings(IDEMPOTENCY={"scope": lambda asked: "s", "required": False}):
        for method in "GET", "POST":
            leave_django(method, "/waits", [])
    assert django_urls.cancelled == ["GET", "POST"]


def test_django_answers_as_its_view():
    given = HttpResponse(status=503), StreamingHttpResponse([b"a", b"b"], status=503)
    for view in given:
        del view["Content-Type"]
    request = RequestFactory().post("/raises", HTTP_IDEMPOTENCY_KEY="k", HTTP_X_TENANT="t")
    answers = [DjangoMiddleware(lambda request: view)(request) for view in given]
    assert [(one.status_code, "Content-Type" in one, one.content) for one in answers] == [(503, False, b""), (503, False, b"ab")]


def test_django_replays_a_header_that_is_there_twice():
    """As of a record of Flask or Starlette: a response of Django has a header once."""
    response = http_response(Reply(200, [("Link", "<a>"), ("Link", "<b>"), ("X-Part", "1")], b""))
    assert (response["Link"], response["X-Part"]) == ("<a>, <b>", "1")


def test_django_leaves_other_requests_alone():
    view = HttpResponse()
    for options, request in (({"required": False}, RequestFactory().post("/raises")), ({}, RequestFactory().get("/raises"))):
        with override_settings(IDEMPOTENCY={"scope": lambda asked: "s", **options}):
            assert DjangoMiddleware(lambda request: view)(request) is view


def test_a_method_in_lower_case_is_the_same(pool, key):
    """Werkzeug takes it for the other one, so it must not run unprotected."""
    app = wsgi(pool, lambda environ: (201, [], [b"done"]), methods=("post",))
    assert [call_wsgi(app, key, method=method)[1].get("Idempotency-Replayed") for method in ("post", "POST")] == [None, "true"]


def test_statuses_can_be_mapped(pool, key):
    answers = iter([(429, [], [b"busy"]), (500, [], [b"no"]), (404, [], [b"none"])])
    app = wsgi(pool, lambda environ: next(answers), statuses={"429": Store("release"), "500": Store("fail", 60)})
    assert [call_wsgi(app, key)[0] for _ in range(3)] == [429, 500, 500]
    assert call_wsgi(wsgi(pool, lambda environ: (299, [], [b""])), key + "u")[0] == 299     # nobody has registered it


@pytest.mark.parametrize("status", [200, 204, 304])
def test_an_answer_that_has_no_body_has_no_length(run, status):
    sent = []

    async def send(message):
        sent.append(message)
    run(lambda idem: asgi_send_reply(send, Reply(status)))
    on_wsgi.send_reply(lambda line, headers: sent.append({"headers": headers}), Reply(status))
    assert [len(message["headers"]) for message in sent if "headers" in message] == 2 * [int(status == 200)]


@pytest.mark.parametrize("status", [401, 403, 408, 409, 425, 429])
@pytest.mark.parametrize("options", [{}, {"lease": 30, "statuses": {"4xx": Store("release")}}])
def test_a_refusal_of_the_moment_is_not_stored(pool, key, status, options):
    answers = iter([(status, [], [b"not now"]), (201, [], [b"done"])])
    app = wsgi(pool, lambda environ: next(answers), **options)
    assert [call_wsgi(app, key)[0] for _ in range(3)] == [status, 201, 201]


def test_a_refusal_of_the_moment_is_no_lost_attempt(pool, key, admin):
    """Where two attempts may be lost: a 500 is one."""
    app = wsgi(pool, lambda environ: (int(environ["HTTP_X_STATUS"]), [], [b""]), scope=lambda asked: "lost wsgi",
               statuses={"404": Store("release"), "500": Store("release")})
    admin.execute("SELECT idem_set_policy('lost wsgi', max_lost_attempts => 2)")

    def post(name, statuses):
        return [call_wsgi(app, name, HTTP_X_STATUS=str(status))[0] for status in statuses]
    assert post(key, [429, 403, 404, 201]) == [429, 403, 404, 201]
    assert post(key + "-2", [500, 500, 500]) == [500, 500, 422]


def test_django_counts_no_refusal_that_is_raised_as_a_lost_attempt(key, admin):
    admin.execute("SELECT idem_set_policy('raised django', max_lost_attempts => 1)")
    django_urls.errors[:] = [PermissionDenied(), Http404(), KeyReused(), PermissionDenied(), KeyError()]
    with override_settings(IDEMPOTENCY={"client": {"retry": QUICK}, "scope": lambda asked: "raised django",
                                        "statuses": {"404": Store("release")}}):
        client = Client(raise_request_exception=False)
        answers = [client.post("/raises", HTTP_IDEMPOTENCY_KEY=key) for _ in range(6)]
    assert [answer.status_code for answer in answers] == [403, 404, 422, 403, 500, 422]
    assert answers[-1].json()["reason"] == "attempts lost"


@pytest.mark.parametrize("status, error", [
    *((status, None) for status in (401, 403, 408, 409, 425, 429, 500)), (422, KeyReused())])
def test_a_refusal_of_the_moment_leaves_a_lease(pool, key, status, error):
    """The handler may have charged before it was refused: the next owner reconciles, and does not charge again."""
    charges = []

    def charge(environ):
        charges.append(key)
        if error:
            raise error
        return status, [], [b"not now"]

    app = wsgi(pool, charge, lease=30, reconcile=lambda operation: Done(Response(201, body=b"charged")))
    assert [call_wsgi(app, key)[0] for _ in range(2)] == [status, 409]
    with pool.connection() as connection:
        connection.execute("UPDATE idempotency_store SET lease_expires_at = clock_timestamp() - interval '1 s'"
                           " WHERE idempotency_key = %s", (key,))
    assert [call_wsgi(app, key)[::2] for _ in range(2)] == [(201, b"charged")] * 2
    assert charges == [key]


def test_asgi_waits_for_who_asks(run, key):
    """As where the database knows the tokens. A stranger, or somebody whose token was revoked, gets nobody's answer."""
    names = [None, "ada", "ada", "bob", None]

    async def who(asked):
        await asyncio.sleep(0)
        return names.pop(0)

    async def app(scope, receive, send):
        await respond(send, 201)

    async def body(idem):
        middleware = AsgiMiddleware(app, idem, principal=who)
        return [await asgi_call(middleware, key) for _ in list(names)]
    assert [(status, b"idempotency-replayed" in headers) for status, headers, _ in run(body)] == [
        (401, False), (201, False), (201, True), (201, False), (401, False)]


def test_a_stranger_may_be_answered_in_your_own_way(pool, key):
    app = wsgi(pool, lambda environ: 1 / 0, principal=lambda asked: Reply(401, [("WWW-Authenticate", "Bearer")], b"who?"))
    status, headers, body = call_wsgi(app, key)
    assert (status, headers["WWW-Authenticate"], body) == (401, "Bearer", b"who?")
    assert call_wsgi(wsgi(pool, lambda environ: 1 / 0, principal=lambda asked: None), key)[0] == 401


def test_django_stands_behind_its_authentication(key):

    class User:
        def __init__(self, pk):
            self.pk, self.is_authenticated = pk, pk is not None

    with override_settings(IDEMPOTENCY={"client": {"retry": QUICK}}):
        middleware = DjangoMiddleware(lambda request: HttpResponse(str(request.user.pk), status=201))

    def post(user):
        request = RequestFactory().post("/flaky/1", HTTP_IDEMPOTENCY_KEY=key)
        if user is not None:
            request.user = user
        response = middleware(request)
        return response.status_code, response.content, response.headers.get("Idempotency-Replayed")
    assert [post(User(7)), post(User(7)), post(User(8))] == [
        (201, b"7", None), (201, b"7", "true"), (201, b"8", None)]
    assert post(User(None))[0] == 401
    with pytest.raises(ImproperlyConfigured, match="AuthenticationMiddleware"):
        post(None)


def test_a_refusal_for_now_is_tried_again(pool, key):
    past = "Wed, 21 Oct 2015 07:28:00 GMT"
    answers = iter([(429, [("Retry-After", after)], [after.encode()]) for after in ("0", past, "3600")])
    app = wsgi(pool, lambda environ: next(answers), statuses={"4xx": Store("fail"), "429": Store("fail")})
    assert [call_wsgi(app, key)[2] for _ in range(3)] == [b"0", past.encode(), b"3600"]
    status, headers, body = call_wsgi(app, key)
    assert (status, body, headers["Idempotency-Replayed"]) == (429, b"3600", "true")
    assert 3500 < int(headers["Retry-After"]) <= 3600
    for after in ("soon", "Wed, 21 Oct 99999999999999999999 07:28:00 GMT", "Wed, 21 Oct 2999 07:28:00 GMT"):
        app = wsgi(pool, lambda environ: (404, [("Retry-After", after)], [b"none"]))
        assert [call_wsgi(app, f"{key}{len(after)}")[1].get("Idempotency-Replayed") for _ in range(2)] == [None, "true"]


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


def test_a_problem_of_your_own(pool, key, caplog):
    app = wsgi(pool, lambda environ: 1 / 0, problem=lambda problem: Reply(problem.status, [("X", "y")], b"own"))
    assert call_wsgi(app, key) == (500, {"X": "y", "Content-Length": "3"}, b"own")
    assert call_wsgi(app, None)[0] == 400
    assert [record.getMessage() for record in caplog.records] == ["a request failed with 500"]


@pytest.mark.parametrize("options", [{"timeout": 1}, {"routes": {"/r": {"timeout": 1}}}])
def test_a_timeout_is_refused_where_it_cannot_work(pool, options):
    with pytest.raises(ValueError, match="timeout"):
        wsgi(pool, lambda environ: None, **options)
    with override_settings(IDEMPOTENCY=options), pytest.raises(ValueError, match="timeout"):
        DjangoMiddleware(None)


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


def test_a_cookie_goes_to_who_is_declined_and_is_not_stored(pool, key, admin):
    """Nor where reconcile has found it."""
    headers = {"set-cookie": "a=b", "X-A": "b"}
    refusal = Declined(402, headers=headers)    # one object, which is raised more than once

    def decline(_):
        raise refusal

    def writes(environ):
        current().complete_with(decline)
        return 201, [], [b"charged"]

    def answer(app, key):
        status, sent, _ = call_wsgi(app, key)
        return status, sent["X-A"], sent.get("set-cookie")
    leased = wsgi(pool, lambda environ: 1 / 0, lease=30, reconcile=lambda operation: Done(Response(402, headers)))
    assert call_wsgi(leased, key)[0] == 500
    run_out(admin, key)
    assert answer(leased, key) == (402, "b", None)
    for number, app in enumerate((wsgi(pool, decline), wsgi(pool, writes, lease=30))):
        assert [answer(app, f"{key}-{number}") for _ in range(2)] == [(402, "b", "a=b"), (402, "b", None)]


@pytest.mark.parametrize("wrong", [{"code": 100}, {"headers": {"X-A": "a\r\nb"}}, {"body": b"x" * 100}, {"payload": "x" * 98}])
def test_what_http_cannot_send_ends_no_lease(pool, key, admin, wrong):
    """An answer of reconcile, or of its writes: each replay would be a 500."""
    def decline(tx):
        raise Declined(**wrong)
    answers = [Response(**wrong), Completion(Response(**wrong), lambda tx: None), Completion({}, decline)]
    app = wsgi(pool, lambda environ: 1 / 0, lease=30, max_response=99, reconcile=lambda operation: Done(answers.pop(0)))
    assert call_wsgi(app, key)[0] == 500
    run_out(admin, key)
    assert [call_wsgi(app, key)[0] for _ in range(3)] == [503, 503, 500]
    run_out(admin, key)


LARGE, WRONG = "The answer is too large to be stored", "Internal Server Error"


def declining(*given, **named):
    """An answer with writes that decline."""
    def decline(tx):
        writes(tx)
        declined(*given, **named)
    writes = current().writes
    current().complete_with(decline)
    return 201, [], [b""]


@pytest.mark.parametrize("end, kept, title", [
    (lambda: (201, [], [b"x" * 1001]), 1, LARGE), (lambda: (201, [], [b"x"] * 2000), 1, LARGE),
    (lambda: (201, [], [b"x" * 900]), 1, LARGE), (lambda: (99, [], [b""]), 1, WRONG),
    (lambda: (201, [("X-A", "a\r\nb")], [b""]), 1, WRONG), (lambda: (402, [("X-A", "a\r\nb")], [b""]), 0, WRONG),
    (lambda: declined("x" * 1001), 0, LARGE), (lambda: declined("x" * 900), 0, LARGE), (lambda: declined(object()), 0, WRONG),
    (lambda: declined(headers={"X-A": "a\r\nb"}), 0, WRONG),
    (lambda: (402, [], [b"x" * 1001]), 0, LARGE), (lambda: (402, [], [b"x" * 900]), 0, LARGE),
    (lambda: declining("x" * 1001), 0, LARGE), (lambda: declining("x" * 900), 0, LARGE), (lambda: declining(object()), 0, WRONG),
    (lambda: declining(headers={"X-A": "a\r\nb"}), 0, WRONG)])
def test_a_lease_whose_handler_gave_what_cannot_be_sent_or_stored_is_done(pool, key, effects, admin, caplog, end, kept, title):
    def handler(environ):
        runs.append(environ)
        current().complete_with(lambda tx: tx.execute("INSERT INTO effect VALUES (%s, 1)", (key,)))
        return end()
    runs = []
    admin.execute("SELECT idem_set_policy('unstorable', max_response_size => 200)")
    app = wsgi(pool, handler, lease=30, max_response=1000, scope=lambda asked: "unstorable")
    answers = [call_wsgi(app, key) for _ in range(3)]
    again = (500, "The answer could not be stored")
    assert [(status, json.loads(body)["title"]) for status, _, body in answers] == [(500, title), again, again]
    assert "othing" not in answers[0][2].decode()     # something was done
    assert (len(runs), effects(), len(caplog.records)) == (1, kept, 3)


def test_a_lease_whose_handler_gave_an_answer_that_is_not_stored_runs_out(pool, key, admin):
    app = wsgi(pool, lambda environ: (503, [], [b"x" * 1001]), lease=30, max_response=1000)
    assert call_wsgi(app, key)[0] == 500
    run_out(admin, key)


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


@pytest.mark.parametrize("make", [lambda: {"a": object()}, lambda: "no int"])
def test_fastapi_cannot_make_an_answer(run, key, effects, make):
    app, ends = FastAPI(), [make, lambda: 1]

    @app.post("/r")
    async def view() -> int:
        current().complete_with(lambda tx: tx.execute("INSERT INTO effect VALUES (%s, 1)", (key,)))
        return ends.pop(0)()

    async def body(idem):
        covered = AsgiMiddleware(app, idem, principal=lambda asked: "p", lease=30)
        return [(await asgi_call(covered, key))[0] for _ in range(2)]
    assert run(body) == [500, 500]
    assert (effects(), len(ends)) == (1, 1)


def test_fastapis_view_that_fails_leaves_a_lease(run, key, admin):
    app = FastAPI()
    app.post("/r")(lambda: 1 / 0)

    async def body(idem):
        return (await asgi_call(AsgiMiddleware(app, idem, principal=lambda asked: "p", lease=30), key))[0]
    assert run(body) == 500
    run_out(admin, key)


def test_django_cannot_make_an_answer(key, effects):
    """What a view gave back is rendered behind it, as by Django's templates and REST framework."""
    client = Client(raise_request_exception=False)
    with override_settings(IDEMPOTENCY={**kinds.settings.IDEMPOTENCY, "lease": 30}):
        statuses = [client.post("/rendered", data="{}", content_type="application/json", HTTP_IDEMPOTENCY_KEY=key,
                                HTTP_X_TENANT="t").status_code for _ in range(2)]
    assert (statuses, effects()) == ([500, 500], 1)


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


def test_django_repeats_what_it_has_made_a_500_of(key, effects):
    django_urls.tries.clear()
    client = Client(raise_request_exception=False)

    def post(path):
        return client.post(path, data=json.dumps({"name": key}), content_type="application/json",
                           HTTP_IDEMPOTENCY_KEY=key, HTTP_X_TENANT="t")
    first, again = post("/flaky/1"), post("/flaky/1")
    assert (first.status_code, again.status_code, again["Idempotency-Replayed"]) == (201, 201, "true")
    assert (first.cookies["c"].value, "c" in again.cookies) == ("1", False)
    assert (len(django_urls.tries), effects()) == (3, 1)
    assert post("/flaky/2").status_code == 422
    assert post("/stream").status_code == 500
    assert post("/nowhere").status_code == 404


def asgi_call(app, key, body=b"{}", path="/r"):
    """Status, headers and body of one request, as a coroutine."""
    async def call():
        sent = []
        scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
                 "headers": [(b"idempotency-key", key.encode()), (b"content-type", b"application/json")]}
        given = [{"type": "http.request", "body": body[:1], "more_body": True}, {"type": "http.request", "body": body[1:]}]

        async def receive():
            return given.pop(0) if given else {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)
        await app(scope, receive, send)
        return sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"]
    return call()


async def respond(send, status=200, body=b"ok"):
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": body})


def asgi(idem, handler, **options):
    async def app(scope, receive, send):
        message = await receive()
        await handler(message["body"], receive, send)
    return AsgiMiddleware(app, idem, principal=lambda asked: "p", **options)


def test_asgi_stores_the_bytes_of_a_file(run, key, tmp_path):
    """The server offers to send a file by its path, which Starlette would use."""
    (tmp_path / "file").write_bytes(b"bytes")

    async def body(idem):
        async def app(scope, receive, send):
            await FileResponse(tmp_path / "file")(scope, receive, send)
            assert sorted(scope["extensions"]) == ["tls"]

        async def offering(scope, receive, send):
            await AsgiMiddleware(app, idem, principal=lambda asked: "p")(
                {**scope, "extensions": {"http.response.pathsend": {}, "tls": {}}}, receive, send)
        return [(await asgi_call(offering, key))[2] for _ in range(2)]
    assert run(body) == [b"bytes"] * 2


@pytest.mark.parametrize("options", [{}, {"skip": lambda asked: True}])
@pytest.mark.parametrize("last, statuses", [("http.disconnect", []), ("http.request", [413])])
def test_asgi_runs_no_body_that_is_not_whole(last, statuses, options):
    """Its client went away, or it goes on past the limit."""
    given, sent = iter(["http.request", last]), []

    async def receive():
        return {"type": next(given), "body": b"x" * 10, "more_body": True}

    async def send(message):
        sent.append(message)
    app = AsgiMiddleware(None, AsyncIdempotency(lambda: None), principal=lambda asked: "p", max_request=15, **options)
    asyncio.run(app({"type": "http", "method": "POST", "path": "/r", "headers": []}, receive, send))
    assert [message["status"] for message in sent[:1]] == statuses


def test_asgi_timeout_rolls_back(run, key, effects):
    cancelled = []

    async def body(idem):
        async def handler(body, receive, send):
            try:
                # on a slow machine the time may be over before this is
                await current().tx.execute("INSERT INTO effect VALUES (%s, 1)", (key,))
                await receive()     # never tells of a disconnect: it waits for ever
            except asyncio.CancelledError:
                await asyncio.sleep(0.01)
                cancelled.append(current().tx is not None)      # the rollback waits for its clean-up
                raise
        # as it is now: the end of the loop would cancel every task
        return await asgi_call(asgi(idem, handler, timeout=0.3), key), list(cancelled)
    (status, headers, text), seen = run(body)
    assert (status, headers[b"retry-after"], json.loads(text)["status"]) == (503, b"1", 503)
    assert (seen, effects()) == ([True], 0)


def test_asgi_without_a_timeout(run, key):
    async def body(idem):
        async def handler(body, receive, send):
            await asyncio.sleep(0.01)
            await respond(send)
        return await asgi_call(asgi(idem, handler, timeout=0), key)
    assert run(body)[0] == 200


@pytest.mark.parametrize("options, second", [({}, LARGE), ({"lease": 30}, "The answer could not be stored")])
def test_asgi_stream_past_the_limit(run, key, effects, options, second):
    """A lease is done then."""
    async def body(idem):
        async def handler(body, receive, send):
            runs.append(body)
            if not options:
                await current().tx.execute("INSERT INTO effect VALUES (%s, 1)", (key,))
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while True:
                await send({"type": "http.response.body", "body": b"x" * 1000, "more_body": True})
        app = asgi(idem, handler, max_response=5000, **options)
        return [json.loads((await asgi_call(app, key))[2])["title"] for _ in range(2)]
    runs = []
    assert run(body) == [LARGE, second]
    assert (len(runs), effects()) == (1 if options else 2, 0)


def test_asgi_goes_on_when_its_server_gives_up(run, key, effects):
    async def body(idem):
        begun, end = asyncio.Event(), asyncio.Event()

        async def handler(body, receive, send):
            begun.set()
            await end.wait()
            await current().tx.execute("INSERT INTO effect VALUES (%s, 1)", (key,))
            await respond(send)
        app = asgi(idem, handler)
        task = asyncio.ensure_future(asgi_call(app, key))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        end.set()
        await asyncio.wait(list(app.running))
        return await asgi_call(app, key)
    assert run(body)[1][b"idempotency-replayed"] == b"true"
    assert effects() == 1


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


@pytest.mark.parametrize("kept", [201, 402])
@pytest.mark.parametrize("behind", [False, True])
def test_background_tasks_come_after_commit(key, admin, conflict, kept, behind):
    """Once for the answer that is stored; not for what was rolled back, and not for a replay."""
    pool = psycopg_pool.AsyncConnectionPool("", min_size=1, open=False)
    app = FastAPI(on_startup=[pool.open], on_shutdown=[pool.close])
    seen, answers = [], iter([503, kept, kept])
    if behind:
        @app.middleware("http")
        async def other(request, call_next):
            return await call_next(request)
    app.add_middleware(AsgiMiddleware, idempotency=lambda: AsyncIdempotency(pool, retry=QUICK), principal=lambda asked: "p")

    def look(status):
        row = admin.execute("SELECT status FROM idempotency_store WHERE idempotency_key = %s", (key,)).fetchone()
        seen.append((status, row, current().tx))

    ends = []

    async def ending():
        """What stands behind the answer, such as a session of the service's own."""
        try:
            yield
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise
        ends.append("ended")

    @app.post("/r", dependencies=[Depends(ending)])
    async def view(answer: StarletteResponse, tasks: BackgroundTasks):
        if ends == ["cancelled"]:       # FastAPI answers 500, and raises the error again: it is tried once more
            ends.append("failed")
            await current().tx.execute("DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '40001'; END $$")
        if kept == 201:
            await current().tx.execute("INSERT INTO conflict VALUES (%s)", (key,))
        answer.status_code = next(answers)
        tasks.add_task(look, answer.status_code)
    with TestClient(app) as client:
        given = [client.post("/r", headers={"Idempotency-Key": key}).status_code for _ in range(3)]
    assert given == [503, kept, kept]
    assert seen == [(kept, ("COMPLETED" if kept == 201 else "FAILED",), None)]
    assert ends == ["cancelled", "failed", *(["cancelled"] if kept == 201 else []), "ended"]


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


def test_asgi_repeats_what_starlette_has_made_a_500_of(run, key):
    """Starlette answers an error, and raises it again behind the answer."""
    tries = []

    async def view(asked):
        tries.append(await asked.body())
        if len(tries) < 3:
            await current().tx.execute("DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '40001'; END $$")
        return StarletteResponse(status_code=201)

    async def body(idem):
        app = AsgiMiddleware(Starlette(routes=[Route("/r", view, methods=["POST"])]), idem, principal=lambda asked: "p")
        return await asgi_call(app, key)
    assert (run(body)[0], tries) == (201, [b"{}"] * 3)


def test_a_background_task_that_fails_is_told_to_the_server(run, key):
    async def body(idem):
        async def handler(body, receive, send):
            await respond(send)
            raise KeyError("behind the answer")
        app = asgi(idem, handler)
        with pytest.raises(KeyError):
            await asgi_call(app, key)
        return await asgi_call(app, key)
    assert run(body)[1][b"idempotency-replayed"] == b"true"


def test_asgi_leaves_other_traffic_alone():
    seen = []

    async def app(scope, receive, send):
        seen.append(scope["type"])
    middleware = AsgiMiddleware(app, AsyncIdempotency(lambda: None), principal=lambda asked: "p")
    asyncio.run(middleware({"type": "websocket", "path": "/r"}, None, None))
    asyncio.run(middleware({"type": "http", "method": "GET", "path": "/r"}, None, None))
    assert seen == ["websocket", "http"]


def test_templates_of_starlette_with_mounts():

    async def end(request):
        return None
    app = Starlette(routes=[Mount("/v{n:int}", routes=[Route("/a/{id}", end, methods=["POST"])]), Route("/b", end)])

    def template(path):
        return route_template({"type": "http", "method": "POST", "path": path, "headers": [], "app": app, "root_path": ""})
    assert [template("/v1/a/7"), template("/b"), template("/c")] == ["/v{n:int}/a/{id}", None, None]


def test_templates_of_fastapi_with_included_routers():
    app, outer, inner, mounted = FastAPI(), APIRouter(prefix="/outer"), APIRouter(prefix="/inner"), FastAPI()
    for router, path in ((inner, "/{one}"), (outer, "/{one}"), (app, "/{one}"), (mounted, "/{one}")):
        router.post(path)(lambda: None)
    inner.add_route("/plain/{one}", lambda request: None, methods=["POST"])     # these two without the router's prefix
    inner.mount("/mounted", mounted)
    outer.include_router(inner)
    app.include_router(outer, prefix="/api")
    app.mount("/mounted", mounted)

    def template(path):
        return route_template({"type": "http", "method": "POST", "path": path, "headers": [], "app": app})
    for path in ("/api/outer/inner/1", "/api/outer/plain/1", "/api/outer/mounted/1", "/api/outer/1", "/1", "/mounted/1"):
        assert template(path) == path.replace("1", "{one}")
    assert [template(path) for path in ("/api/outer/inner/none/1", "/none/1")] == [None, None]


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


def test_django_knows_the_routes_that_a_request_brings():
    """As a middleware of several hosts has it: without its route the request would run unprotected."""
    asked = RequestFactory().post("/own")
    assert django_template(asked) is None
    asked.urlconf = (django_path("own", lambda request: None),)
    assert django_template(asked) == "/own"


def test_current_is_an_error_elsewhere():
    with pytest.raises(LookupError):
        current()
    failed = []
    thread = threading.Thread(target=lambda: failed.append(pytest.raises(LookupError, current)))
    thread.start()
    thread.join()
    assert len(failed) == 1
