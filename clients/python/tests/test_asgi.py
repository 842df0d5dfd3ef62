"""The ASGI middleware, and its use by Starlette and FastAPI."""

import asyncio
import json
import types

import psycopg_pool
import pytest
from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI
from fastapi.testclient import TestClient
from starlette.applications import Starlette
from starlette.responses import FileResponse, Response as StarletteResponse
from starlette.routing import Mount, Route

from conftest import QUICK, run_out
from http_kit import LARGE, asgi, asgi_call, respond
from pg_idempotency import AsyncIdempotency
from pg_idempotency.http import current
from pg_idempotency.http.asgi import IdempotencyMiddleware as AsgiMiddleware, route_template


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


@pytest.mark.parametrize("length, statuses", [(b"3", [400]), (b"x", [400]), (b"2", [201]), (b"1", [201])])
def test_asgi_runs_no_body_that_is_shorter_than_its_length(run, key, length, statuses):
    """Granian gives one that its client has broken off as a whole one, under HTTP/2."""
    async def body(idem):
        app = asgi(idem, lambda body, receive, send: respond(send, 201))

        async def declaring(scope, receive, send):
            await app({**scope, "headers": [*scope["headers"], (b"content-length", length)]}, receive, send)
        return [(await asgi_call(declaring, key))[0]]
    assert run(body) == statuses


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


@pytest.mark.parametrize("parts", [0, 1, 2])
def test_asgi_answer_that_breaks_off_is_not_stored(run, key, effects, parts):
    """A server would cut the connection."""
    async def body(idem):
        async def handler(body, receive, send):
            await current().tx.execute("INSERT INTO effect VALUES (%s, 1)", (key,))
            for message in [{"type": "http.response.start", "status": 200, "headers": []},
                            {"type": "http.response.body", "body": b"x", "more_body": True}][:parts]:
                await send(message)
        return (await asgi_call(asgi(idem, handler), key))[0]
    assert (run(body), effects()) == (500, 0)


@pytest.mark.parametrize("fails", [False, True])
def test_asgi_tells_that_the_connection_is_over_behind_the_answer(run, key, fails):
    """A stream of Litestar waits for that. The answer to an error is sent while the error is handled."""
    async def body(idem):
        async def handler(body, receive, send):
            try:
                if fails:
                    raise ValueError
                await respond(send, 201)
            except ValueError:
                await respond(send, 201)
            told.append(await receive())
        told = []
        return (await asyncio.wait_for(asgi_call(asgi(idem, handler), key), 10))[0], told
    assert run(body) == (201, [{"type": "http.disconnect"}])


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


def test_routes_that_are_not_those_of_starlette_have_no_template():
    app = types.SimpleNamespace(routes=[object()])      # as Litestar has them
    assert route_template({"type": "http", "method": "POST", "path": "/a/7", "headers": [], "app": app}) == "/a/7"


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
