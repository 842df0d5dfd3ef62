"""Tools of agents: the adapter by itself, and with the official SDK, over stdio and HTTP.

The servers are the program of docs/guide/agents.md, and they are killed in the middle of a call.
"""

import asyncio
import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import httpx2
import psycopg
import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.server.mcpserver import Context, MCPServer
from mcp.types import CallToolResult

from conftest import run_out
from pg_idempotency import (NOT_DONE, UNKNOWN, BadArgument, Completion, Declined, Done, NotDone, Response, TooLarge, Unknown,
                            Unstorable)
from pg_idempotency.errors import BadOption
from pg_idempotency.mcp import AsyncTools, Tools, key_of_arguments

ROOT = Path(__file__).parents[3]
SHARED = json.loads((ROOT / "clients/conformance/tools.json").read_text(encoding="utf-8"))
SCOPE = "tool send ann"
META = "pg-idempotency/"


def same(answer):
    """A result as JSON has it, in place of one of the SDK."""
    return answer


@pytest.fixture
def errors():
    return []


@pytest.fixture
def tools(idem, errors):
    return Tools(idem, same, on_error=errors.append)


def outcome_of(answer):
    return answer["_meta"][META + "outcome"]


def problem(outcome, retry=None):
    """An answer without an answer of the work."""
    message = SHARED["messages"][outcome]
    return {
        "content": [{"type": "text", "text": message}],
        "structuredContent": {"outcome": outcome, "message": message, **({} if retry is None else {"retryAfterSeconds": retry})},
        "isError": True,
        "_meta": {META + "outcome": outcome, **({} if retry is None else {META + "retryAfterSeconds": retry})}}


def replay(first):
    """The same answer, which says that it is a replay."""
    return {**first, "_meta": {**first["_meta"], META + "replayed": True}}


def never(*arguments):
    raise AssertionError("ran")


def stored(admin, key):
    return admin.execute("SELECT request_hash, round(extract(epoch FROM expires_at - now()))::int FROM idempotency_store"
                         " WHERE idempotency_key = %s AND scope = %s", (key, SCOPE)).fetchall()


def test_scopes_and_keys():
    """Those of the packages for other languages."""
    asked = [Tools(SimpleNamespace(scope=one["service"]), same).call(one["name"], one["principal"], "k", {}).scope
             for one in SHARED["scopes"]]
    assert asked == [one["scope"] for one in SHARED["scopes"]]
    assert len(set(asked)) == len(asked) > 10
    assert [key_of_arguments(json.loads(one["arguments"])) for one in SHARED["keys"]] == [one["key"] for one in SHARED["keys"]]
    for value in (float("nan"), float("inf"), 10 ** 400, b"", "\ud800", {1: 2}, {"\ud800": 1}, object()):
        with pytest.raises(TypeError):
            key_of_arguments({"value": value})


def test_once(tools, admin, key, effects, errors):
    arguments = {"to": "é", "parts": [1, 2.5, None]}

    def call(principal="ann", given=arguments, name="send"):
        def work(tx, operation):
            tx.execute("INSERT INTO effect VALUES (%s, 1)", (key,))
            return {"by": operation.scope}

        return tools.transaction(name, principal, key, given, work)

    first = call()
    assert first == {"content": [{"type": "text", "text": '{"by":"tool send ann"}'}],
                     "structuredContent": {"by": "tool send ann"}, "isError": False, "_meta": {META + "outcome": "COMPLETED"}}
    assert call() == replay(first)
    assert call(given={"to": "f"}) == problem("KEY_REUSED")
    assert call(given=None) == problem("KEY_REUSED")
    assert effects() == 1
    assert stored(admin, key)[0][0] == admin.execute("SELECT idem_fingerprint(%s)", (json.dumps(arguments),)).fetchone()[0]
    # another principal, and another tool
    assert call("bob")["structuredContent"] == {"by": "tool send bob"}
    assert call(name="mail")["structuredContent"] == {"by": "tool mail ann"}
    assert (effects(), errors) == (3, [])


@pytest.mark.parametrize("nobody", [None, "", 7, {}, ["ann"], b"ann", "\ud800"])
def test_no_principal(tools, nobody):
    """The server is wrong, and nothing runs."""
    for style in (tools.transaction, tools.lease):
        with pytest.raises(TypeError, match="principal"):
            style("send", nobody, "k", {}, never)
        with pytest.raises(TypeError, match="name"):
            style(nobody, "ann", "k", {}, never)


@pytest.mark.parametrize("arguments", [7, "a", [1]])
def test_no_arguments(tools, arguments):
    with pytest.raises(TypeError, match="arguments"):
        tools.transaction("send", "ann", "k", arguments, never)


@pytest.mark.parametrize("key, value", [
    (None, 1), ("", 1), (7, 1), ("k" * 256, 1), ("a\0b", 1), ("\ud800", 1), ("k", "a\0b"), ("k", "\ud800"), ("k", float("nan"))])
def test_no_key_and_what_cannot_be_stored(tools, errors, key, value):
    for style in (tools.transaction, tools.lease):
        assert style("send", "ann", key, {"value": value}, never) == problem("BAD_ARGUMENT")
    assert errors == []


def test_the_longest_key(tools, key):
    assert outcome_of(tools.transaction("send", "ann", key.ljust(255, "😀"), {}, lambda tx, operation: 1)) == "COMPLETED"


@pytest.mark.parametrize("returned, text, structured", [
    (7, "7", {"result": 7}), (None, "null", {"result": None}), ([1], "[1]", {"result": [1]}),
    (Response(201, payload={"bb": 1, "a": {"d": [{"f": 2, "e": 1}], "c": 3}}), '{"a":{"c":3,"d":[{"e":1,"f":2}]},"bb":1}',
     {"bb": 1, "a": {"d": [{"f": 2, "e": 1}], "c": 3}}),
    ({"content": "text"}, '{"content":"text"}', {"content": "text"})])
def test_answers(tools, key, returned, text, structured):
    first = tools.transaction("send", "ann", key, {}, lambda tx, operation: returned)
    assert first == {"content": [{"type": "text", "text": text}], "structuredContent": structured, "isError": False,
                     "_meta": {META + "outcome": "COMPLETED"}}
    assert tools.transaction("send", "ann", key, {}, never) == replay(first)


def test_a_result_of_its_own(tools, key):
    image = {"content": [{"type": "image", "data": "aGk=", "mimeType": "image/png"}], "_meta": {"mine": 1}}
    first = tools.transaction("send", "ann", key, {}, lambda tx, operation: image)
    assert first == {**image, "isError": False, "_meta": {"mine": 1, META + "outcome": "COMPLETED"}}
    assert tools.transaction("send", "ann", key, {}, never) == replay(first)


OWN = {"content": [{"type": "text", "text": "no money"}], "isError": True}


def declined():
    raise Declined(402, {"reason": "no money"})


@pytest.mark.parametrize("end", [declined, lambda: OWN, lambda: Response(payload=OWN)])
def test_a_failure_is_stored(tools, key, effects, end):
    def work(tx, operation):
        tx.execute("INSERT INTO effect VALUES (%s, 1)", (key,))
        return end()

    first = tools.transaction("send", "ann", key, {}, work)
    assert (outcome_of(first), first["isError"]) == ("FAILED", True)
    assert "no money" in first["content"][0]["text"]
    assert tools.transaction("send", "ann", key, {}, never) == replay(first)
    assert effects() == 0


def test_other_failures(tools, key, effects):
    def write(tx):
        tx.execute("INSERT INTO effect VALUES (%s, 1)", (key,))

    def refuse(tx, operation):
        raise Declined(409, retry_after=1.2)

    leased = tools.lease("send", "ann", key, {}, lambda operation, signal: Completion(OWN, write))
    assert (outcome_of(leased), effects()) == ("FAILED", 0)
    assert tools.transaction("send", "ann", key + "-2", {}, refuse) == problem("FAILED", 2)


def test_an_error_of_the_work(tools, admin, key, effects, errors):
    """Nothing is stored, no text of it is shown, and the next call runs."""
    def work(tx, operation):
        tx.execute("INSERT INTO effect VALUES (%s, 1)", (key,))
        raise ValueError("secret")

    def not_done(operation, signal):
        raise NotDone("secret")

    def bad_argument(tx, operation):
        raise BadArgument("of another call")

    assert tools.transaction("send", "ann", key, {}, work) == problem("ERROR")
    assert tools.transaction("send", "ann", key, {}, lambda tx, operation: object()) == problem("ERROR")
    assert tools.lease("send", "ann", key, {}, not_done) == problem("ERROR")
    assert tools.transaction("send", "ann", key, {}, bad_argument) == problem("ERROR")
    assert tools.transaction("send", "ann", key, {}, never, wait="soon") == problem("ERROR")
    assert [type(error) for error in errors] == [ValueError, TypeError, NotDone, BadArgument, BadOption]
    assert (stored(admin, key), effects()) == ([], 0)
    assert outcome_of(tools.transaction("send", "ann", key, {}, lambda tx, operation: 1)) == "COMPLETED"


def test_errors_are_logged(idem, key, caplog):
    assert Tools(idem, same).transaction("send", "ann", key, {}, lambda tx, operation: 1 / 0) == problem("ERROR")
    assert [(record.name, record.exc_info[0]) for record in caplog.records] == [("pg_idempotency", ZeroDivisionError)]


def test_a_lease(tools, admin, key, errors):
    """In progress, unknown, and nothing is done twice without reconcile."""
    def work(operation, signal):
        busy = tools.lease("send", "ann", key, {}, never)
        retry = busy["structuredContent"]["retryAfterSeconds"]
        assert busy == problem("IN_PROGRESS", retry) and 20 < retry <= 30
        raise ConnectionError("hang up")

    def down(operation):
        raise ConnectionError("down")

    def later(operation):
        raise Unknown(retry_after=1.5)

    assert tools.lease("send", "ann", key, {}, work) == problem("UNKNOWN")
    assert [str(error) for error in errors] == ["hang up"]
    run_out(admin, key)
    assert tools.lease("send", "ann", key, {}, never) == problem("UNKNOWN")
    assert tools.lease("send", "ann", key, {}, never, reconcile=lambda operation: UNKNOWN) == problem("UNKNOWN")
    assert tools.lease("send", "ann", key, {}, never, reconcile=later) == problem("UNKNOWN", 2)
    assert len(errors) == 1
    assert tools.lease("send", "ann", key, {}, never, reconcile=down) == problem("UNKNOWN")
    assert str(errors[1]) == "down"
    known = tools.lease("send", "ann", key, {}, lambda operation, signal: {"again": operation.taken_over},
                        reconcile=lambda operation: NOT_DONE)
    assert known["structuredContent"] == {"again": True}
    assert tools.lease("send", "ann", key, {}, never) == replay(known)


def test_a_failure_that_reconcile_finds(run, tools, admin, key):
    """It is stored as one of the work."""
    async def later(operation):
        return Done(Response(payload=OWN))

    async def as_task(idem, name):
        return await AsyncTools(idem, same).lease("send", "ann", name, {}, never, reconcile=later)

    ask = {key: lambda name: tools.lease("send", "ann", name, {}, never, reconcile=lambda operation: Done(OWN)),
           key + "-async": lambda name: run(lambda idem: as_task(idem, name))}
    for name, again in ask.items():
        assert tools.lease("send", "ann", name, {}, lambda operation, signal: 1 / 0) == problem("UNKNOWN")
        run_out(admin, name)
        found = again(name)
        assert found == {**OWN, "_meta": {META + "outcome": "FAILED"}}
        assert tools.lease("send", "ann", name, {}, never) == replay(found)


def test_an_answer_that_cannot_be_stored(tools, key, errors):
    assert tools.lease("send", "ann", key, {}, lambda operation, signal: "x" * 2_000_000) == problem("UNKNOWN")
    assert tools.lease("send", "ann", key, {}, never) == problem("UNKNOWN")
    assert [type(error) for error in errors] == [TooLarge, Unstorable]


def test_a_database_that_cannot_be_reached(tools, key, errors, pool):
    """An error, as nothing has begun."""
    pool.close()
    assert tools.transaction("send", "ann", key, {}, never) == problem("ERROR")
    assert tools.lease("send", "ann", key, {}, never) == problem("ERROR")
    assert len(errors) == 2


def test_options(tools, admin, key):
    tools.transaction("send", "ann", key, {}, lambda tx, operation: 1, retention=90 * 86400)
    assert abs(stored(admin, key)[0][1] - 90 * 86400) < 600
    with pytest.raises(TypeError):
        tools.transaction("send", "ann", key, {}, never, scope="mine")


def test_asyncio(run, admin, key, effects):
    """AsyncTools, with a key in _meta, over the SDK."""
    async def body(idem):
        tools = AsyncTools(idem, CallToolResult.model_validate)
        server = MCPServer("test")

        @server.tool()
        async def send(to: str, ctx: Context) -> CallToolResult:
            async def work(tx, operation):
                await tx.execute("INSERT INTO effect VALUES (%s, 1)", (key,))
                return OWN if to == "nobody" else {"to": to}

            return await tools.transaction("send", "ann", (ctx.request_context.meta or {}).get("pg-idempotency/key"),
                                           {"to": to}, work)

        @server.tool()
        async def charge(key: str, fail: bool) -> CallToolResult:
            async def work(operation, signal):
                raise ConnectionError("hang up") if fail else Declined(402, {"reason": "no money"})

            async def found(operation):
                return Done({"charge": "ch_1"})

            return await tools.lease("charge", "ann", key, {}, work, reconcile=None if fail else found)

        async with Client(server) as client:
            asked = {"pg-idempotency/key": key}
            first = await client.call_tool("send", {"to": "bob"}, meta=asked)
            assert first.structured_content == {"to": "bob"}
            assert as_json(await client.call_tool("send", {"to": "bob"}, meta=asked)) == replay(as_json(first))
            assert as_json(await client.call_tool("send", {"to": "eve"}, meta=asked)) == problem("KEY_REUSED")
            assert as_json(await client.call_tool("send", {"to": "bob"})) == problem("BAD_ARGUMENT")
            own = as_json(await client.call_tool("send", {"to": "nobody"}, meta={"pg-idempotency/key": key + "-own"}))
            assert own == {**OWN, "_meta": {META + "outcome": "FAILED"}}
            refused = await client.call_tool("charge", {"key": key + "-2", "fail": False})
            assert (refused.structured_content, refused.is_error) == ({"reason": "no money"}, True)
            lost = {"key": key + "-3", "fail": True}
            assert as_json(await client.call_tool("charge", lost)) == problem("UNKNOWN")
            assert as_json(await client.call_tool("charge", {"key": "", "fail": True})) == problem("BAD_ARGUMENT")
            run_out(admin, key + "-3")
            assert as_json(await client.call_tool("charge", lost)) == problem("UNKNOWN")
            known = await client.call_tool("charge", {**lost, "fail": False})
            assert known.structured_content == {"charge": "ch_1"}

    run(body)
    assert effects() == 1


def as_json(result):
    """What the client got, without what the protocol adds."""
    got = result.model_dump(mode="json", by_alias=True, exclude_none=True)
    meta = {name: value for name, value in got.get("_meta", {}).items() if name.startswith(META)}
    return {**{name: got[name] for name in ("content", "structuredContent", "isError") if name in got}, "_meta": meta}


class Gateway:
    """Charges once for each reference; a call may be left without an answer, or the list of charges be down."""

    def __init__(self):
        self.charges, self.calls, self.hold, self.down = {}, 0, None, False
        self.killed = threading.Event()
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self, status, body=None):
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            def do_GET(self):
                found = gateway.charges.get(parse_qs(urlsplit(self.path).query)["reference"][0])
                self.answer(500 if gateway.down else 200 if found else 404, found)

            def do_POST(self):
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                gateway.calls += 1
                gateway.charges[asked["reference"]] = {"charge": f"ch_{gateway.calls}", "amount": asked["amount"]}
                if gateway.hold:
                    gateway.hold.set()
                    assert gateway.killed.wait(60)      # a connection that ends would be an answer
                else:
                    self.answer(200, gateway.charges[asked["reference"]])

            def log_message(self, *arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def gateway():
    gateway = Gateway()
    yield gateway
    gateway.server.shutdown()
    gateway.server.server_close()


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    page = (ROOT / "docs/guide/agents.md").read_text(encoding="utf-8")
    path = tmp_path_factory.mktemp("agents") / "server.py"
    path.write_text(re.search(r"^```python agents/server.py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[1], encoding="utf-8")
    return path


@contextlib.asynccontextmanager
async def over_stdio(program, directory, **settings):
    """The program, started by its only client; what gives that client; and a function that kills the program."""
    pid = directory / "pid"
    start = ["-c", 'echo $$ >"$1"; exec "$2" "$3"', "sh", str(pid), sys.executable, str(program)]
    parameters = StdioServerParameters(command="sh", args=start, env={**os.environ, "BANK_USER": "ada", **settings})
    async with Client(parameters) as client:
        @contextlib.asynccontextmanager
        async def client_of(user):
            yield client

        yield client_of, lambda: os.kill(int(pid.read_text()), signal.SIGKILL)


def free_port():
    """Below those that the system gives to connections: hardly anybody gets it meanwhile."""
    while True:
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", random.randrange(20000, 32000))) as free:
            return free.getsockname()[1]


@contextlib.asynccontextmanager
async def over_http(program, directory, **settings):
    """The same over HTTP, where each client has a token."""
    port = free_port()
    with open(directory / "log", "a", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, str(program), str(port)], env={**os.environ, **settings}, stdout=log, stderr=log)

    @contextlib.asynccontextmanager
    async def client_of(user):
        async with httpx2.AsyncClient(headers={"Authorization": f"Bearer token-of-{user}"}, timeout=60) as http:
            async with Client(streamable_http_client(f"http://127.0.0.1:{port}/mcp", http_client=http)) as client:
                yield client

    try:
        while True:
            assert process.poll() is None, (directory / "log").read_text(encoding="utf-8")
            with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
                break
            await asyncio.sleep(0.05)
        yield client_of, process.kill
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("start", [over_stdio, over_http])
def test_a_server_that_is_killed(start, program, gateway, admin, key, tmp_path):
    """In the middle of a call, and the call is repeated: one effect."""
    admin.execute("CREATE TABLE IF NOT EXISTS wallet (id text PRIMARY KEY, balance int NOT NULL)")
    admin.execute("INSERT INTO wallet VALUES ('ada', 100), ('bob', 0) ON CONFLICT (id) DO UPDATE SET balance = excluded.balance")
    charged = f"{key}-charge"

    def server(**settings):
        return start(program, tmp_path, GATEWAY=gateway.url, **settings)

    def balances():
        return [row[0] for row in admin.execute("SELECT balance FROM wallet ORDER BY id")]

    async def transfer(client, given, amount, to="bob"):
        return as_json(await client.call_tool("transfer", {"key": given, "to": to, "amount": amount}))

    async def charge(client):
        return as_json(await client.call_tool("charge_card", {"key": charged, "amount": 7}))

    async def lost(client_of, call, *arguments):
        """A call whose server is killed. Over HTTP the SDK ends the whole client."""
        with pytest.raises((MCPError, ExceptionGroup)):
            async with client_of("ada") as client:
                await call(client, *arguments)

    async def play():
        async with server() as (client_of, kill), client_of("ada") as client:
            first = await transfer(client, key, 30)
            assert (first["structuredContent"], first["isError"]) == ({"to": "bob", "amount": 30}, False)
            assert await transfer(client, key, 30) == replay(first)
            assert await transfer(client, key, 31) == problem("KEY_REUSED")
            assert await transfer(client, "", 30) == problem("BAD_ARGUMENT")
            poor = await transfer(client, f"{key}-poor", 500)
            assert (poor["structuredContent"], poor["isError"]) == ({"reason": "not enough money"}, True)
            assert await transfer(client, f"{key}-poor", 500) == replay(poor)
            nowhere = await transfer(client, f"{key}-nowhere", 10, "nobody")
            assert (nowhere["structuredContent"], nowhere["isError"]) == ({"reason": "no such account"}, True)
            assert balances() == [70, 30]
            # killed while its statement waits for our lock
            with psycopg.connect("") as locker:
                locker.execute("SELECT FROM wallet WHERE id = 'ada' FOR UPDATE")
                cut = asyncio.create_task(lost(client_of, transfer, f"{key}-cut", 10))
                worker = await waiting(admin)
                kill()
                await cut
                assert admin.execute("SELECT pg_terminate_backend(%s, 60000)", (worker,)).fetchone()[0]
                locker.rollback()
        async with server() as (client_of, kill), client_of("ada") as client:
            repeated = await transfer(client, f"{key}-cut", 10)
            assert repeated["_meta"] == {META + "outcome": "COMPLETED"}
            assert await transfer(client, f"{key}-cut", 10) == replay(repeated)
            assert balances() == [60, 40]
            # killed when the gateway has charged, and has not answered
            gateway.hold = threading.Event()
            cut = asyncio.create_task(lost(client_of, charge))
            assert await asyncio.to_thread(gateway.hold.wait, 60)
            kill()
            await cut
            gateway.hold = None
            gateway.killed.set()
        async with server() as (client_of, kill), client_of("ada") as client:
            busy = await charge(client)
            retry = busy["structuredContent"]["retryAfterSeconds"]
            assert busy == problem("IN_PROGRESS", retry) and 0 < retry <= 60
            run_out(admin, charged)
            gateway.down = True
            assert await charge(client) == problem("UNKNOWN")
            gateway.down = False
            found = await charge(client)
            assert (found["structuredContent"], found["isError"]) == ({"charge": "ch_1", "amount": 7}, False)
            assert await charge(client) == replay(found)
            assert (gateway.calls, len(gateway.charges)) == (1, 1)
            if start is over_http:
                async with client_of("bob") as other:
                    assert (await charge(other))["structuredContent"] == {"charge": "ch_2", "amount": 7}
                with pytest.raises((MCPError, ExceptionGroup)):
                    async with client_of("nobody") as nobody:
                        await charge(nobody)
                assert gateway.calls == 2
        if start is over_stdio:
            async with server(BANK_USER="") as (client_of, kill), client_of("nobody") as nobody:
                assert (await charge(nobody))["isError"]
                assert gateway.calls == 1

    asyncio.run(play())


async def waiting(admin):
    """The process on the server whose UPDATE waits for a lock."""
    while True:
        found = admin.execute("SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                              " AND query LIKE 'UPDATE wallet %'").fetchone()
        if found:
            return found[0]
        await asyncio.sleep(0.02)
