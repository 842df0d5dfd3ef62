"""Views for the tests of Django."""

import asyncio
import json
import threading

from django.db import connection
from django.http import JsonResponse, StreamingHttpResponse
from django.template.response import SimpleTemplateResponse
from django.urls import path

tries = []
errors = []


def flaky(request, number):
    tries.append(number)
    with connection.cursor() as cursor:
        if len(tries) < 3:
            cursor.execute("DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '40001'; END $$")
        cursor.execute("INSERT INTO effect VALUES (%s, 1)", [json.loads(request.body)["name"]])
    response = JsonResponse({"number": number, "attempt": request.idempotency.operation.attempt}, status=201)
    response.set_cookie("c", "1")
    return response


def stream(request):
    def endless():
        while True:
            yield b"x" * 1000
    return StreamingHttpResponse(endless())


async def streams_later(request):
    async def parts():
        for part in (b"a", b"b"):
            yield part
    return StreamingHttpResponse(parts(), status=201)


running, may_go_on = threading.Event(), threading.Event()


def slow(request):
    running.set()
    may_go_on.wait(10)
    return JsonResponse({}, status=201)


cancelled = []


async def waits(request):
    running.set()
    try:
        await asyncio.sleep(5)
    except asyncio.CancelledError:
        cancelled.append(request.method)
        raise
    return JsonResponse({})


def raises(request):
    raise errors.pop(0)


class Unrendered(SimpleTemplateResponse):
    @property
    def rendered_content(self):
        raise TypeError("it is no JSON")


def rendered(request):
    def insert(tx):
        with tx.cursor() as cursor:
            cursor.execute("INSERT INTO effect VALUES (%s, 1)", [request.headers["Idempotency-Key"]])
    request.idempotency.complete_with(insert)
    return Unrendered("none")


urlpatterns = [path("rendered", rendered), path("raises", raises), path("flaky/<int:number>", flaky), path("stream", stream),
               path("streams-later", streams_later), path("slow", slow), path("waits", waits)]
