"""ASGI middleware, for FastAPI, Starlette and others.

The request is read whole before the handler runs, as the handler may run more than
once. The answer is sent after COMMIT: nothing is said before it is true. What the
application does behind its answer, such as Starlette's background tasks, comes then, too.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import sys
import traceback
from typing import Any, Awaitable, Callable, Dict, Iterator, List, Mapping, MutableMapping, Optional, Set, Union, overload

from ..client import AsyncIdempotency
from ..drive import to_its_end
from .core import WITHOUT_LENGTH, Admitted, Core, Exchange, Headers, NoReply, Options, Reply, Request, Served
from .fingerprint import target_of_asgi
from .problem import ResponseTooLarge
from .serve import serve_async

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Route = Callable[[Scope], Optional[str]]


class IdempotencyMiddleware:
    """``app.add_middleware(IdempotencyMiddleware, idempotency=…, principal=…)``

    It stands before the application: what it replays, no dependency and no route sees. So ``principal`` has to
    authenticate the request. Behind a middleware that does so, it reads the result from ``request.native``, the scope.
    ``idempotency``: an AsyncIdempotency, or a function that gives one. ``route(scope)``: the template of a request's
    route, or None for one that is not covered; by default it is looked up in Starlette's routes.
    The other arguments are those of ``Options``. A handler finds its connection in ``current().tx``.
    """

    # add_middleware asks a type checker for an application by position: one named `app` could be among the options, too.
    @overload
    def __init__(self, app: App, /, idempotency: Any, route: Optional[Route] = None, **options: Any) -> None: ...

    @overload
    def __init__(self, *, app: App, idempotency: Any, route: Optional[Route] = None, **options: Any) -> None: ...

    def __init__(self, app: App, idempotency: Any, route: Optional[Route] = None, **options: Any) -> None:  # type: ignore[misc]
        self.app = app
        self.idempotency = idempotency
        self.route = route or route_template
        self.core = Core(Options(**options), lambda: self.client().scope)
        self.running: Set["asyncio.Future[None]"] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self.route(scope) if scope["type"] == "http" else None
        if route is None or not self.core.covers(scope["method"], route):
            await self.app(scope, receive, send)
            return
        options = self.core.options_of(route)
        body = await read_body(receive, options.max_request)
        if body is None:
            return    # the client went away before it had sent everything
        if len(body) <= options.max_request and not is_whole(scope, body):
            await send_reply(send, self.core.unreadable(options))
            return
        admitted = await self.admit(request_of(scope, route, body))
        if admitted is None:
            await self.app(scope, replaying(body, receive), send)
        elif isinstance(admitted, Reply):
            await send_reply(send, admitted)
        else:
            await self.run(scope, admitted, body, send)

    def client(self) -> AsyncIdempotency:
        """The AsyncIdempotency, which may have to be asked for."""
        given = self.idempotency
        idem: AsyncIdempotency = given if isinstance(given, AsyncIdempotency) else given()
        return idem

    async def admit(self, request: Request) -> Union[Admitted, Reply, None]:
        """As Core.admit, where the principal may be a coroutine."""
        if self.core.is_skipped(request):
            return None
        who = self.core.asker(request)
        return self.core.admit_from(request, await who if inspect.isawaitable(who) else who)

    async def run(self, scope: Scope, admitted: Admitted, body: bytes, send: Send) -> None:
        """Runs to its end, even if the server cancels this call because its client went away."""
        task = asyncio.ensure_future(self.answer(scope, admitted, body, send))
        self.running.add(task)
        task.add_done_callback(self.running.discard)
        await asyncio.shield(task)

    async def answer(self, scope: Scope, admitted: Admitted, body: bytes, send: Send) -> None:
        """Runs the application inside of a transaction or a lease, answers, and lets the application go on."""
        served = Served(self.core, admitted)
        call: Optional[Call] = None

        async def handler(exchange: Exchange) -> Reply:
            nonlocal call
            if call is not None:
                await call.undo()
            own = dict(scope, idempotency=exchange, extensions=without_sending(scope.get("extensions")))
            call = Call(self.app, own, body, admitted.options.max_response)
            try:
                return await call.reply()
            except Exception as error:
                if is_of_answer(error):
                    return NoReply(error=error)
                raise

        reply = await serve_async(self.client(), served, handler)
        try:
            await send_reply(send, reply)
        finally:
            if call is not None:
                await (call.go_on() if served.is_kept else call.undo())


def is_of_answer(error: Exception) -> bool:
    """Whether FastAPI could make no answer of what the handler gave back."""
    return any(frame.f_code.co_name == "serialize_response" and frame.f_globals["__name__"] == "fastapi.routing"
               for frame, _ in traceback.walk_tb(error.__traceback__))


def request_of(scope: Scope, route: str, body: bytes) -> Request:
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
    return Request(scope["method"].upper(), target_of_asgi(scope), route, headers, body, scope)


def without_sending(extensions: Optional[Mapping[str, Any]]) -> Dict[str, Any]:
    """What the server offers, but for other ways to answer, such as by the path of a file: those cannot be stored."""
    return {name: value for name, value in (extensions or {}).items() if not name.startswith("http.response.")}


async def read_body(receive: Receive, limit: int) -> Optional[bytes]:
    """The whole body, or a little more than the limit, or None where the client went away."""
    chunks: List[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if not message.get("more_body") or size > limit:
            return b"".join(chunks)


def is_whole(scope: Scope, body: bytes) -> bool:
    """Whether a body is no shorter than what its client has announced. Granian gives one that breaks off under HTTP/2, too."""
    length = dict(scope["headers"]).get(b"content-length", b"0")
    return re.fullmatch(rb"\d{1,18}", length) is not None and len(body) >= int(length)


def replaying(body: bytes, receive: Receive) -> Receive:
    """A receive that gives the body once, and then goes on with the other one."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if not given:
            given = True
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return replay


class Call:
    """One run of the application, which waits in its last ``send`` until it is known whether its answer is stored."""

    def __init__(self, app: App, scope: Scope, body: bytes, limit: int) -> None:
        self.limit = limit
        self.start: Dict[str, Any] = {}
        self.chunks: List[bytes] = []
        self.size = 0
        self.is_whole = False
        self.stored = asyncio.Event()
        self.over = asyncio.Event()
        self.answered: "asyncio.Future[None]" = asyncio.get_running_loop().create_future()
        self.task = asyncio.ensure_future(app(scope, replaying(body, self.disconnect), self.send))
        self.task.add_done_callback(lambda task: self.has_answered())

    def has_answered(self) -> None:
        """Lets ``reply`` go on."""
        if not self.answered.done():
            self.answered.set_result(None)

    async def send(self, message: Message) -> None:
        """What the application is given to answer by."""
        if message["type"] == "http.response.start":
            self.start.update(message)
        elif message["type"] == "http.response.body":
            self.chunks.append(bytes(message.get("body", b"")))
            self.size += len(self.chunks[-1])
            if self.size > self.limit:
                raise ResponseTooLarge()
            self.is_whole = not message.get("more_body")
            # The answer to an error has no task behind it, and the error may be raised again: it says whether to repeat.
            if self.is_whole and sys.exc_info()[0] is None:
                self.has_answered()
                await self.stored.wait()
            if self.is_whole:
                self.over.set()

    async def disconnect(self) -> Message:
        """As a server tells it behind the answer. Before that it is not told: if the client goes away, the work goes on."""
        await self.over.wait()
        return {"type": "http.disconnect"}

    async def reply(self) -> Reply:
        """The answer as a whole, or until it is over the limit. Raises what the application raises."""
        try:
            await self.answered
        except asyncio.CancelledError:
            await self.undo()
            raise
        if self.task.done() and self.size <= self.limit:
            self.task.result()
            if not self.is_whole:
                raise RuntimeError("the application gave no whole answer")
        headers: Headers = [(name.decode("latin-1"), value.decode("latin-1"))
                            for name, value in self.start.get("headers", [])]
        return Reply(self.start["status"], headers, b"".join(self.chunks))

    async def go_on(self) -> None:
        """The answer is stored: what comes behind it may come. Raises what that raises."""
        self.stored.set()
        await self.task

    async def undo(self) -> None:
        """The answer is not stored: nothing comes behind it."""
        self.task.cancel()
        await to_its_end(asyncio.wait([self.task]))


async def send_reply(send: Send, reply: Reply) -> None:
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers]
    if not any(name in (b"content-length", b"transfer-encoding") for name, _ in headers) and reply.status not in WITHOUT_LENGTH:
        headers.append((b"content-length", str(len(reply.body)).encode()))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})


def route_template(scope: Scope) -> Optional[str]:
    """The template of Starlette's route, with its mounts; the path where the application is another one, such as Litestar."""
    app = scope.get("app")
    routes = getattr(app, "routes", None)
    if routes is None or not hasattr(app, "router"):
        path: str = scope["path"]
        return path
    return template_among(routes, scope)


def template_among(routes: Any, scope: Scope) -> Optional[str]:
    """The template of the route that takes this request, or None."""
    for route in one_by_one(routes):
        match, child = route.matches(scope)
        if match.value != 2:    # starlette.routing.Match.FULL
            continue
        path: str = getattr(route, "path", "")
        inner = getattr(route, "routes", None)
        if not inner:
            return path
        found = template_among(inner, {**scope, **child})
        if found is not None:
            return path + found
    return None


def one_by_one(routes: Any) -> Iterator[Any]:
    """The routes, with those of FastAPI's included routers in their place: as a whole such a router has no template."""
    for route in routes:
        included = getattr(route, "effective_route_contexts", None)
        if included is None:
            yield route
        else:
            yield from (each.starlette_route or each for each in included())
