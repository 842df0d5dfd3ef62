"""The decorator, and the caller."""

import asyncio
import http.server
import inspect
import json
import os
import pathlib
import stat
import threading
import time
import uuid
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime

import pytest

from conftest import at_once
from pg_idempotency import (AsyncCaller, BadArgument, Caller, Declined, DictStore, FakeClock, FileStore, GaveUp, Idempotency,
                            InProgress, KeyReused, Retry, idempotent)
from pg_idempotency.caller import Answer
from pg_idempotency.retry import seconds_until

FUNCTIONS = pathlib.Path(__file__).parents[2] / "conformance/functions.json"


def test_a_function(idem, key, effects):
    @idempotent(idem, key=lambda order, amount=1: order)
    def pay(tx, order, amount=1):
        """Pays."""
        if amount > 1000:
            raise Declined(402, {"no": 1})
        tx.execute("INSERT INTO effect VALUES (%s, %s)", (order, amount))
        return {"paid": (amount,)}
    assert [pay(key, 30), pay(key, amount=30), effects()] == [{"paid": [30]}, {"paid": [30]}, 1]
    assert pay(key + "1") == pay(key + "1", 1)
    assert (pay.__doc__, str(inspect.signature(pay))) == ("Pays.", "(order, amount=1)")
    with pytest.raises(KeyReused):
        pay(key)
    for _ in range(2):
        with pytest.raises(Declined) as refused:
            pay(key + "d", 1001)
        assert (refused.value.code, refused.value.payload, refused.value.retry_after is None) == (402, {"no": 1}, True)


def test_functions_have_scopes_of_their_own(idem, key):
    @idempotent(idem, key=lambda name: name)
    def one(tx, name):
        return 1

    @idempotent(idem, key=lambda name: name)
    def two(tx, name):
        return 2
    assert (one(key), two(key)) == (1, 2)


def test_the_scopes_are_those_of_the_other_languages(pool, key):
    functions = json.loads(FUNCTIONS.read_text(encoding="utf-8"))
    assert len(functions) > 3
    for number, one in enumerate(functions):
        begun = []
        idem = Idempotency(pool, scope=one["service"], hooks={"acquired": begun.append})
        idempotent(idem, key=str, name=one["name"], scope=one["own"])(lambda tx, key: 1)(f"{key}{number}")
        assert [event.scope for event in begun] == [one["scope"]]


def test_a_function_needs_a_name(idem):
    with pytest.raises(ValueError, match="needs a name"):
        idempotent(idem, key=str)(lambda tx, key: 1)
    with pytest.raises(ValueError, match="is empty"):
        idempotent(idem, key=str, name="")(lambda tx, key: 1)


def test_a_leased_function(idem, key):
    @idempotent(idem, key=lambda name: name, lease=30, request=lambda name: {"name": name})
    def charge(operation, signal, name):
        with pytest.raises(InProgress) as running:
            charge(key)
        return {"fence": operation.fence is not None, "signal": signal.is_set(), "wait": running.value.retry_after > 20}
    assert charge(key) == charge(key) == {"fence": True, "signal": False, "wait": True}


def test_an_async_function(run, key, effects):
    async def body(idem):
        @idempotent(idem, key=lambda order: order)
        async def pay(tx, order):
            await tx.execute("INSERT INTO effect VALUES (%s, 1)", (order,))
            return order
        assert inspect.iscoroutinefunction(pay)
        return await pay(key), await pay(key)
    assert (run(body), effects()) == ((key, key), 1)


class Script:
    """A fetch that answers from a list; an exception is raised."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.keys = []

    def __call__(self, method, url, headers, body):
        self.keys.append(headers["Idempotency-Key"])
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Answer(answer[0], answer[1] if len(answer) > 1 else {}, b"body")


def caller(script, **more):
    clock = FakeClock()
    return Caller(DictStore(), script, clock=clock, retry=Retry(attempts=5, base=1, cap=8, draw=lambda: 1.0), **more), clock


def test_repeats_with_the_same_key():
    script = Script(OSError("lost"), (409, {"retry-after": "7"}), (503, {"retry-after": "1"}), (201,))
    one, clock = caller(script)
    assert one.call("order-1", "POST", "http://x/").status == 201
    assert (len(set(script.keys)), clock.slept) == (1, [1, 7, 4])


@pytest.mark.parametrize("status, tries", [(422, 1), (500, 1), *((status, 2) for status in (409, 425, 429, 502, 503, 504))])
def test_repeats_what_is_no_end(status, tries):
    script = Script((status,), (201,))
    one, _ = caller(script)
    assert one.call("order-1", "POST", "http://x/").status == (status if tries == 1 else 201)
    assert len(script.keys) == tries


def test_gives_up_and_goes_on_with_the_same_key():
    lost = [OSError("lost")] * 4
    script = Script((503,), *lost, *lost, (503, {"retry-after": "100000"}), (200,), (200,))
    one, clock = caller(script)
    last = []
    for _ in range(2):
        with pytest.raises(GaveUp) as caught:
            one.call("order-1", "POST", "http://x/")
        last.append((caught.value.answer and caught.value.answer.status, str(caught.value)))
    assert (last, len(clock.slept)) == ([(None, "no answer"), (503, "the last answer was 503")], 8)
    one.call("order-1", "POST", "http://x/")
    assert len(set(script.keys)) == 1
    one.forget("order-1")
    one.call("order-1", "POST", "http://x/")
    assert len(set(script.keys)) == 2


def test_the_wait_has_a_bound_after_any_number_of_tries():
    assert [Retry(base=1, cap=8, draw=lambda: 1.0).delay(tries) for tries in (1, 4, 1024, 1025, 5000)] == [1, 8, 8, 8, 8]


def test_other_errors_are_not_repeated():
    one, _ = caller(Script(ValueError("a mistake")))
    with pytest.raises(ValueError):
        one.call("order-1", "POST", "http://x/")


def test_retry_after_has_bounds(time_zone, monkeypatch):
    one, clock = caller(Script((503, {"retry-after": "100000"}), (200,)), longest_wait=50)
    one.call("i", "POST", "http://x/")
    assert clock.slept == [50]
    assert [seconds_until(each) for each in ("soon", "\u00b2", "Wed, 21 Oct 99999999999999999999 07:28:00 GMT")] == [None] * 3
    assert [seconds_until(each) for each in (
        " 7 ", "Wed, 21 Oct 2015 07:28:00 GMT", "3153599999", "9" * 400, "Fri, 31 Dec 9999 23:59:59 GMT")] == [
            7, 0, 3153599999, 3153600000, 3153600000]
    monkeypatch.setenv("TZ", "EST5")
    time.tzset()
    for utc in ("GMT", "-0000"):
        asked = seconds_until(format_datetime(datetime.now(timezone.utc) + timedelta(hours=1))[:-5] + utc)
        assert 3590 < asked <= 3600
    one, clock = caller(Script((503, {"retry-after": "soon"}), (200,)))
    assert (one.call("i", "POST", "http://x/").status, clock.slept) == (200, [1])


@pytest.fixture
def time_zone():
    """Puts back what a test has set, after its monkeypatch."""
    yield
    time.tzset()


def test_a_wait_beyond_the_deadline_is_not_begun():
    script = Script((409, {"retry-after": "20"}), (409, {"retry-after": "100000"}), (201,))
    one, clock = caller(script, deadline=50)
    with pytest.raises(GaveUp) as caught:
        one.call("i", "POST", "http://x/")
    assert (caught.value.answer.status, clock.slept) == (409, [20])


@pytest.mark.parametrize("marker", ["idempotency-replayed", "idempotent-replayed"])
def test_a_replay_is_final_unless_it_names_a_time(marker):
    replayed = {marker: "true"}
    one, clock = caller(Script((409, {**replayed, "retry-after": "5"}), (409, replayed), (201,)))
    assert (one.call("i", "POST", "http://x/").status, clock.slept) == (409, [5])


def test_keys_outlive_the_process(tmp_path):
    script = Script((200,), (200,))
    intent = "../an intent / with \n odd characters"
    for _ in range(2):
        Caller(FileStore(tmp_path / "keys"), script).call(intent, "POST", "http://x/")
    store = FileStore(tmp_path / "keys")
    assert script.keys == [f'"{uuid.UUID(store.get(intent))}"'] * 2
    assert len(list(store.directory.iterdir())) == 1
    for _ in range(2):
        store.remove(intent)
        assert store.get(intent) is None


def test_an_intent_is_text(tmp_path):
    for intent in ("", None, 7):
        with pytest.raises(BadArgument):
            Caller(FileStore(tmp_path), Script()).call(intent, "POST", "http://x/")


def test_names_and_keys_are_durable(tmp_path, monkeypatch):
    """Also that of a key which somebody else has added: it may have died before it could see to that."""
    synced, handles = [], len(os.listdir("/proc/self/fd"))

    def sync(handle):
        found = os.fstat(handle)
        synced.append("directory" if stat.S_ISDIR(found.st_mode) else found.st_size)
    monkeypatch.setattr(os, "fsync", sync)
    store = FileStore(tmp_path)
    store.add("i", "key")
    assert store.get("i") == "key"
    store.remove("i")
    assert synced == [3, "directory", "directory", "directory"]
    assert len(os.listdir("/proc/self/fd")) == handles


def test_one_intent_has_one_key_whoever_adds_it(tmp_path):
    keys = at_once(8, lambda n: Caller(FileStore(tmp_path), None).key_of("same"))
    assert len(keys) == 8 and len(set(keys)) == 1
    store = DictStore()
    for key in "ab":
        store.add("same", key)
    assert store.get("same") == "a"


@pytest.mark.parametrize("url", [
    "/orders", "no url", "", "http://", "http://127.0.0.1:99999/", "http://127.0.0.1:0/", "ftp://127.0.0.1/", "odd://127.0.0.1/",
    "file:///etc/hostname", "http://127.0.0.1:1/a b", "http://127.0.0.1:1/\u00fc", None])
def test_what_can_never_be_sent_is_refused_at_once(url):
    clock = FakeClock()
    callers = [Caller(DictStore(), clock=clock), AsyncCaller(DictStore(), clock=clock)]
    for caller in callers:
        with pytest.raises(BadArgument):
            answer = caller.call("x", "POST", url)
            asyncio.run(answer)
        assert (clock.slept, caller.store.keys) == ([], {})


def test_a_fetch_of_its_own_may_take_any_url():
    caller = Caller(DictStore(), lambda method, url, headers, body: Answer(200, {}, url.encode()))
    assert caller.call("x", "POST", "/orders").body == b"/orders"


@pytest.fixture
def serve():
    """Starts a server of a handler, and gives its port."""
    servers = []

    def start(handler):
        handler.log_message = lambda *given: None
        servers.append(http.server.HTTPServer(("127.0.0.1", 0), handler))
        threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
        return servers[-1].server_port
    yield start
    for server in servers:
        server.shutdown()


@pytest.mark.parametrize("kind", [Caller, AsyncCaller])
def test_with_the_standard_library(kind, serve):
    """A server that gives no answer, half of one, none of HTTP, then 409, then 201. The loop turns meanwhile."""
    seen, turned = [], threading.Event()
    broken = [b"", b"HTTP/1.0 201 -\r\nContent-Length: 9\r\n\r\nhalf", b"hello\r\n\r\n"]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            seen.append((self.headers["Idempotency-Key"], self.rfile.read(int(self.headers["Content-Length"])), turned.wait(2)))
            if broken:
                self.wfile.write(broken.pop(0))
                return
            self.send_response(409 if len(seen) == 4 else 201)
            self.send_header("Retry-After", "3")
            self.end_headers()
            self.wfile.write(b"made")
    clock, retry = FakeClock(), Retry(base=1, draw=lambda: 0.0)
    given = "i", "POST", f"http://127.0.0.1:{serve(Handler)}/", b"{}"

    async def turning():
        asyncio.get_running_loop().call_soon(turned.set)
        return await kind(DictStore(), clock=clock, retry=retry).call(*given)
    if kind is Caller:
        turned.set()
    answer = asyncio.run(turning()) if kind is AsyncCaller else kind(DictStore(), clock=clock, retry=retry).call(*given)
    assert (answer.status, answer.body, len(seen), len(set(seen)), seen[0][2]) == (201, b"made", 5, 1, True)
    assert clock.slept == [0, 0, 0, 3]


@pytest.mark.parametrize("method, code, target, want", [
    ("POST", 301, "/there", 301), ("POST", 302, "/there", 302), ("POST", 303, "/there", 303), ("PUT", 302, "/there", 302),
    ("POST", 307, "/there", 201), ("PUT", 308, "/there", 201), ("GET", 302, "/there", 201), ("HEAD", 303, "/there", 201),
    ("POST", 307, "http://localhost:{}/there", 307), ("GET", 302, "http://localhost:{}/there", 302), ("POST", 308, "/", 308)])
def test_a_redirect_keeps_method_and_origin_or_is_the_answer(serve, method, code, target, want):
    there = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def any(self):
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            if self.path == "/there":
                there.append((self.command, self.headers["Idempotency-Key"], self.headers["Authorization"], body))
            self.send_response(201 if self.path == "/there" else code)
            self.send_header("Location", target.format(self.server.server_port))
            self.send_header("Content-Length", "0")
            self.end_headers()
        do_GET = do_HEAD = do_POST = do_PUT = any
    caller = Caller(DictStore(), clock=FakeClock())
    body = b"{}" if method in ("POST", "PUT") else None
    answer = caller.call("pay", method, f"http://127.0.0.1:{serve(Handler)}/", body, {"Authorization": "secret"})
    assert answer.status == want
    assert there == [(method, f'"{caller.key_of("pay")}"', "secret", body or b"")] * (want == 201)
