"""Django's middleware, under WSGI and ASGI."""

import asyncio
import contextvars
import io
import json

import kinds        # the settings of Django
import pytest
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.core.handlers.asgi import ASGIHandler, ASGIRequest
from django.core.handlers.wsgi import WSGIRequest
from django.http import Http404, HttpResponse, StreamingHttpResponse
from django.test import AsyncClient, Client, RequestFactory, override_settings
from django.urls import path as django_path

import django_urls
from conftest import QUICK
from http_kit import Gone
from pg_idempotency import KeyReused
from pg_idempotency.http import Reply, Store
from pg_idempotency.http.django import IdempotencyMiddleware as DjangoMiddleware, http_response, route_template as django_template

assert kinds.settings.configured


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


def test_what_a_view_leaves_in_a_context_reaches_those_before_it_under_asgi(key):
    """As without the middleware: one that logs may want it."""
    payment = contextvars.ContextVar("payment")

    async def view(request):
        payment.set(key)
        return HttpResponse(status=201)

    async def answers():
        headers = [(b"idempotency-key", key.encode()), (b"x-tenant", b"t")]
        request = ASGIRequest({"method": "POST", "path": "/flaky/1", "headers": headers}, io.BytesIO(b"{}"))
        return (await DjangoMiddleware(view)(request)).status_code, payment.get(None)
    assert asyncio.run(answers()) == (201, key)


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


def test_django_counts_no_refusal_that_is_raised_as_a_lost_attempt(key, admin):
    admin.execute("SELECT idem_set_policy('raised django', max_lost_attempts => 1)")
    django_urls.errors[:] = [PermissionDenied(), Http404(), KeyReused(), PermissionDenied(), KeyError()]
    with override_settings(IDEMPOTENCY={"client": {"retry": QUICK}, "scope": lambda asked: "raised django",
                                        "statuses": {"404": Store("release")}}):
        client = Client(raise_request_exception=False)
        answers = [client.post("/raises", HTTP_IDEMPOTENCY_KEY=key) for _ in range(6)]
    assert [answer.status_code for answer in answers] == [403, 404, 422, 403, 500, 422]
    assert answers[-1].json()["reason"] == "attempts lost"


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


def test_django_cannot_make_an_answer(key, effects):
    """What a view gave back is rendered behind it, as by Django's templates and REST framework."""
    client = Client(raise_request_exception=False)
    with override_settings(IDEMPOTENCY={**kinds.settings.IDEMPOTENCY, "lease": 30}):
        statuses = [client.post("/rendered", data="{}", content_type="application/json", HTTP_IDEMPOTENCY_KEY=key,
                                HTTP_X_TENANT="t").status_code for _ in range(2)]
    assert (statuses, effects()) == ([500, 500], 1)


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


def test_django_knows_the_routes_that_a_request_brings():
    """As a middleware of several hosts has it: without its route the request would run unprotected."""
    asked = RequestFactory().post("/own")
    assert django_template(asked) is None
    asked.urlconf = (django_path("own", lambda request: None),)
    assert django_template(asked) == "/own"
