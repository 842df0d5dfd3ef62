"""Django middleware: the view and the ORM work in the transaction that stores the answer.

Settings: ``IDEMPOTENCY = {…}`` takes the names of ``Options``, ``using`` (the alias of a database), and ``client``
(arguments of Idempotency). ``principal`` is by default the user who has logged in, so the middleware stands behind
AuthenticationMiddleware; who has not logged in is answered 401.
"""

from __future__ import annotations

import contextvars
import re
from typing import Any, Callable, Optional, Tuple, Union

from asgiref.sync import async_to_sync, iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpResponse, UnreadablePostError
from django.urls import Resolver404, resolve

from ..client import Idempotency
from ..django import DjangoSource
from ..drive import to_its_end
from .core import Admitted, Core, Exchange, Headers, NoReply, Options, Reply, Request, Served
from .fingerprint import target_of_asgi, target_of_wsgi
from .serve import serve


def signed_in(request: Request) -> Optional[str]:
    """The user of Django's AuthenticationMiddleware, or None for one who has not logged in."""
    user = getattr(request.native, "user", None)
    if user is None:
        raise ImproperlyConfigured("pg_idempotency's middleware has to stand behind AuthenticationMiddleware, or the"
                                   " setting IDEMPOTENCY needs a principal: a function of a request that says who asks")
    return str(user.pk) if user.is_authenticated else None


class IdempotencyMiddleware:
    """``MIDDLEWARE = [..., "pg_idempotency.http.django.IdempotencyMiddleware"]``

    A view finds its operation in ``request.idempotency`` and in ``current()``.
    """

    sync_capable = async_capable = True

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        given = dict(getattr(settings, "IDEMPOTENCY", {}))
        source = DjangoSource(given.pop("using", "default"))
        self.idempotency = Idempotency(source, **given.pop("client", {}))
        if given.get("scope") is None:
            given.setdefault("principal", signed_in)
        self.core = Core(Options(**given), lambda: self.idempotency.scope, blocking=True)
        self.get_response = self.view = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)
            self.view = async_to_sync(get_response)

    def __call__(self, request: Any) -> Any:
        route = route_template(request)
        if route is None or not self.core.covers(request.method, route):
            return self.get_response(request)
        if iscoroutinefunction(self):
            return self.answer_async(request, route)
        admitted = self.admit(request, route)
        return self.get_response(request) if admitted is None else self.answer(request, admitted)

    async def answer_async(self, request: Any, route: str) -> Any:
        """Under ASGI Django cancels the call when its client goes away. Work with a key runs to its end."""
        admitted = await sync_to_async(self.admit)(request, route)
        if admitted is None:
            return await self.get_response(request)
        response, context = await to_its_end(self.answer_in_context(request, admitted))
        for variable, value in context.items():     # as of a view without the middleware
            variable.set(value)
        return response

    async def answer_in_context(self, request: Any, admitted: Union[Admitted, Reply]) -> Tuple[Any, contextvars.Context]:
        """Django's response, and the context in which its view has left it: this is a task of its own."""
        return await sync_to_async(self.answer)(request, admitted), contextvars.copy_context()

    def admit(self, request: Any, route: str) -> Union[Admitted, Reply, None]:
        """As Core.admit, where the body may not be readable."""
        body = self.read_body(request, self.core.options_of(route))
        return body if isinstance(body, Reply) else self.core.admit(request_of(request, route, body))

    def answer(self, request: Any, admitted: Union[Admitted, Reply]) -> Any:
        """Django's response to a request with a key."""
        return http_response(admitted if isinstance(admitted, Reply) else self.run(request, admitted))

    def read_body(self, request: Any, options: Options) -> Union[bytes, Reply]:
        """The whole body, which Django keeps for the view, or a refusal."""
        from django.core.exceptions import RequestDataTooBig
        length = request.META.get("CONTENT_LENGTH") or "0"
        if not re.fullmatch(r"\d{1,18}", length):
            return self.core.unreadable(options)
        try:
            if int(length) > options.max_request:
                return self.core.too_large(options)
            body = bytes(request.body)
        except RequestDataTooBig:
            return self.core.too_large(options)
        except UnreadablePostError:
            return self.core.unreadable(options)
        # Django's requests of WSGI end where CONTENT_LENGTH says, so of a chunked body they have nothing.
        if not body and "HTTP_TRANSFER_ENCODING" in request.META:
            return self.core.unreadable(options, 411)
        return body if len(body) >= int(length) else self.core.unreadable(options)

    def run(self, request: Any, admitted: Admitted) -> Reply:
        """Runs the view inside of a transaction or a lease."""
        def handler(exchange: Exchange) -> Reply:
            request.idempotency = exchange
            request.idempotency_error = None
            request.idempotency_done = False
            reply = capture(self.view(request), admitted.options.max_response)
            # Django turns errors into an answer 500; what happened decides whether to repeat.
            error = request.idempotency_error
            if reply.status < 500 or error is None:
                return reply
            if request.idempotency_done:
                return NoReply(error=error)
            raise error

        return serve(self.idempotency, Served(self.core, admitted), handler)

    def process_template_response(self, request: Any, response: Any) -> Any:
        """Remembers that the view is done; Django renders what it gave back as always."""
        request.idempotency_done = True
        return response

    def process_exception(self, request: Any, error: Exception) -> None:
        """Remembers the error of a view, or of its rendering; Django goes on as always."""
        request.idempotency_error = error


def route_template(request: Any) -> Optional[str]:
    """The route of Django's resolver, or None."""
    try:
        return "/" + str(resolve(request.path_info, getattr(request, "urlconf", None)).route)
    except Resolver404:
        return None


def request_of(request: Any, route: str, body: bytes) -> Request:
    """The request as the core sees it. Django's own full path escapes more than other frameworks do."""
    scope = getattr(request, "scope", None)
    target = target_of_wsgi(request.META, request.path, "utf-8") if scope is None else target_of_asgi(scope)
    return Request(request.method.upper(), target, route, list(request.headers.items()), body, request)


def capture(response: Any, limit: int) -> Reply:
    """A response as a whole, or until it is over the limit."""
    chunks = []
    size = 0
    for chunk in response:      # also where that streams asynchronously
        chunks.append(bytes(chunk))
        size += len(chunks[-1])
        if size > limit:
            break
    headers: Headers = [(name, str(value)) for name, value in response.items()]
    headers.extend(("Set-Cookie", morsel.OutputString()) for morsel in response.cookies.values())
    return Reply(response.status_code, headers, b"".join(chunks))


def http_response(reply: Reply) -> Any:
    """An answer as Django's response."""
    response = HttpResponse(reply.body, status=reply.status)
    del response["Content-Type"]
    for name, value in reply.headers:
        if name.lower() == "set-cookie":
            response.cookies.load(value)
        else:       # a record of another framework may have a header twice
            response[name] = f"{response[name]}, {value}" if name in response else value
    return response
