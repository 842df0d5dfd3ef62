"""HTTP: the rules of all adapters, which the black-box suite cannot see. Keys, limits, statuses, what is stored."""

import gzip
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
from django.test import override_settings

from conftest import run_out
from http_kit import LARGE, WRONG, asgi, asgi_call, call_wsgi, declined, respond, wsgi
from pg_idempotency import (Completion, Declined, Done, Forbidden, Idempotency, KeyReused, LeaseLost, NotDone,
                            Response, Result, TooLarge, Unknown)
from pg_idempotency.http import Core, Options, Reply, Request, Store, current
from pg_idempotency.http.asgi import send_reply as asgi_send_reply
from pg_idempotency.http.core import Admitted, Exchange, NotStored, Served, kept_headers, stored_reply
from pg_idempotency.http.django import IdempotencyMiddleware as DjangoMiddleware
from pg_idempotency.http.key import BadKey, read_key
from pg_idempotency.http.problem import document, problem_of, whole_seconds
from pg_idempotency.http import wsgi as on_wsgi
from pg_idempotency.model import Json, to_json

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


def test_a_stranger_may_be_answered_in_your_own_way(pool, key):
    app = wsgi(pool, lambda environ: 1 / 0, principal=lambda asked: Reply(401, [("WWW-Authenticate", "Bearer")], b"who?"))
    status, headers, body = call_wsgi(app, key)
    assert (status, headers["WWW-Authenticate"], body) == (401, "Bearer", b"who?")
    assert call_wsgi(wsgi(pool, lambda environ: 1 / 0, principal=lambda asked: None), key)[0] == 401


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


def test_current_is_an_error_elsewhere():
    with pytest.raises(LookupError):
        current()
    failed = []
    thread = threading.Thread(target=lambda: failed.append(pytest.raises(LookupError, current)))
    thread.start()
    thread.join()
    assert len(failed) == 1
