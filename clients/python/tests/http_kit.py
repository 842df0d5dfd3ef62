"""What the tests of HTTP share: requests to an application without a server, and applications."""

import io

from conftest import QUICK
from pg_idempotency import Declined, Idempotency
from pg_idempotency.http.asgi import IdempotencyMiddleware as AsgiMiddleware
from pg_idempotency.http.wsgi import IdempotencyMiddleware as WsgiMiddleware

LARGE, WRONG = "The answer is too large to be stored", "Internal Server Error"


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


class Gone(io.BytesIO):
    """The body of a client that has gone away."""

    def read(self, *size):
        raise OSError


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
