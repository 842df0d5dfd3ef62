"""WSGI middleware, and its use by Flask.

The answer is sent after COMMIT: nothing is said before it is true.
"""

from __future__ import annotations

import io
import re
from http import HTTPStatus
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple, Union

from ..client import Idempotency
from .core import WITHOUT_LENGTH, Admitted, Core, Exchange, Headers, NoReply, Options, Reply, Request, Served
from .fingerprint import target_of_wsgi
from .serve import serve

Environ = Dict[str, Any]
ERROR = "pg_idempotency.error"


class IdempotencyMiddleware:
    """``application = IdempotencyMiddleware(application, idempotency, route=…, principal=…)``

    It stands before the application: what it replays, no ``before_request`` and no view sees. So ``principal`` has to
    authenticate the request. Behind a middleware that does so, it reads the result from ``request.native``, the environ.
    ``idempotency``: an Idempotency. ``route(environ)``: the template of a request's route, or None for one that
    is not covered; by default the path. The other arguments are those of ``Options``.
    A handler finds its connection in ``current().tx``.
    """

    def __init__(self, app: Callable[..., Iterable[bytes]], idempotency: Idempotency,
                 route: Optional[Callable[[Environ], Optional[str]]] = None, **options: Any) -> None:
        self.app = app
        self.idempotency = idempotency
        self.route = route or (lambda environ: str(environ.get("PATH_INFO", "/")))
        self.core = Core(Options(**options), lambda: idempotency.scope, blocking=True)

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        route = self.route(environ)
        if route is None or not self.core.covers(environ["REQUEST_METHOD"], route):
            return self.app(environ, start_response)
        options = self.core.options_of(route)
        try:
            body = read_body(environ, options.max_request)
        except OSError:     # the client went away, or has sent chunks that are none
            body = 400
        if isinstance(body, int):
            return send_reply(start_response, self.core.unreadable(options, body))
        admitted = self.core.admit(request_of(environ, route, body))
        if admitted is None:
            return self.app(with_body(environ, body), start_response)
        if isinstance(admitted, Reply):
            return send_reply(start_response, admitted)
        return self.run(environ, start_response, admitted, body)

    def run(self, environ: Environ, start_response: Callable[..., Any], admitted: Admitted, body: bytes) -> Iterable[bytes]:
        """Runs the application inside of a transaction or a lease, and answers. What its answer does when it is closed,
        as by Flask's call_on_close, it does behind the answer that is stored."""
        served = Served(self.core, admitted)
        given: List[Iterable[bytes]] = []

        def handler(exchange: Exchange) -> Reply:
            given.clear()       # What was rolled back has nothing behind it: it goes as with a process that ends.
            own = with_body(environ, body)
            own["idempotency"] = exchange
            reply = capture(self.app, own, admitted.options.max_response, given)
            # Frameworks turn errors into an answer 500; what happened decides whether to repeat.
            error = own.get(ERROR)
            if reply.status < 500 or error is None:
                return reply
            if isinstance(error, NoReply):
                return error
            raise error

        chunks = send_reply(start_response, serve(self.idempotency, served, handler))
        close = getattr(given[0], "close", None) if served.is_kept else None
        given.clear()
        return chunks if close is None else Closing(chunks, close)


class Closing:
    """An answer that says when its server has sent it."""

    def __init__(self, chunks: Iterable[bytes], close: Callable[[], Any]) -> None:
        self.chunks = chunks
        self.close = close

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.chunks)


class FlaskIdempotency(IdempotencyMiddleware):
    """``FlaskIdempotency(app, idempotency, principal=…)`` covers the routes of a Flask application.

    The route's template comes from ``app.url_map``, and errors of a view are known before Flask makes them a 500. So is what
    Flask can make no answer of: the view is done.
    """

    def __init__(self, app: Any, idempotency: Idempotency, **options: Any) -> None:
        super().__init__(app.wsgi_app, idempotency, self.rule, **options)
        self.flask = app
        self.handle = app.handle_user_exception
        app.handle_user_exception = self.remember
        self.make = app.make_response
        app.make_response = self.make_response
        app.wsgi_app = self

    def rule(self, environ: Environ) -> Optional[str]:
        """The rule that takes this request, or None."""
        from werkzeug.exceptions import HTTPException
        request = self.flask.request_class(environ, populate_request=False)
        try:
            rule, _ = self.flask.create_url_adapter(request).match(return_rule=True)
        except HTTPException:
            return None
        return str(rule.rule)

    def remember(self, error: Exception) -> Any:
        """Flask's handling of an error, which is remembered."""
        from flask import request
        request.environ[ERROR] = error
        return self.handle(error)

    def make_response(self, value: Any) -> Any:
        """Flask's answer of what a view, or else an error handler, gave back."""
        from flask import request
        try:
            return self.make(value)
        except Exception as error:
            request.environ.setdefault(ERROR, NoReply(error=error))
            raise


def request_of(environ: Environ, route: str, body: bytes) -> Request:
    headers: Headers = [(name[5:].replace("_", "-"), value)
                        for name, value in environ.items() if name.startswith("HTTP_")]
    if environ.get("CONTENT_TYPE"):
        headers.append(("Content-Type", environ["CONTENT_TYPE"]))
    target = target_of_wsgi(environ, environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", ""), "latin-1")
    return Request(environ["REQUEST_METHOD"].upper(), target, route, headers, body, environ)


def read_body(environ: Environ, limit: int) -> Union[bytes, int]:
    """The whole body, or a byte more than the limit; or the status for one that cannot be read as a whole."""
    stream = environ["wsgi.input"]
    length = environ.get("CONTENT_LENGTH")
    if length:
        if not re.fullmatch(r"\d{1,18}", length):
            return 400
        wanted = min(int(length), limit + 1)
        body = bytes(stream.read(wanted))
        return body if len(body) == wanted else 400
    # Without a length only a server that says so ends the stream by itself. Granian does so, too, where its client breaks off.
    is_terminated, is_granian = environ.get("wsgi.input_terminated"), environ.get("SERVER_SOFTWARE") == "Granian"
    if is_terminated and not is_granian:
        return bytes(stream.read(limit + 1))
    return 411 if environ.get("HTTP_TRANSFER_ENCODING") or is_terminated and stream.read(1) else b""


def with_body(environ: Environ, body: bytes) -> Environ:
    """A copy of the environ whose body can be read again."""
    own = dict(environ)
    own["wsgi.input"] = io.BytesIO(body)
    own["CONTENT_LENGTH"] = str(len(body))
    return own


def capture(app: Callable[..., Iterable[bytes]], environ: Environ, limit: int, given: List[Iterable[bytes]]) -> Reply:
    """What the application answers, as a whole or until it is over the limit, and in ``given`` as it came. It is not closed."""
    started: List[Tuple[str, Headers]] = []
    chunks: List[bytes] = []

    def start_response(status: str, headers: Headers, error: Any = None) -> Callable[[bytes], None]:
        started.append((status, headers))
        return chunks.append

    given.append(app(environ, start_response))
    size = 0
    for chunk in given[0]:
        chunks.append(chunk)
        size += len(chunk)
        if size > limit:
            break
    status, headers = started[-1]
    return Reply(int(status.split(" ", 1)[0]), list(headers), b"".join(chunks))


def phrase(status: int) -> str:
    """The reason of a status, also of one that nobody has registered."""
    return HTTPStatus(status).phrase if status in set(HTTPStatus) else "Unknown"


def send_reply(start_response: Callable[..., Any], reply: Reply) -> Iterable[bytes]:
    headers = list(reply.headers)
    if not any(name.lower() == "content-length" for name, _ in headers) and reply.status not in WITHOUT_LENGTH:
        headers.append(("Content-Length", str(len(reply.body))))
    start_response(f"{reply.status} {phrase(reply.status)}", headers)
    return [reply.body]
