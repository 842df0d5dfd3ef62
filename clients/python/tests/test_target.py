"""The target of a request is the same under each framework: what the client sent, where the server says so."""

import io
from urllib.parse import unquote

import kinds
import pytest
from django.core.handlers.asgi import ASGIRequest
from django.core.handlers.wsgi import WSGIRequest
from pg_idempotency.http import asgi, django, wsgi

assert kinds.settings.configured

TARGETS = {     # and what it is where the server has decoded it
    "/a": "/a", "/a?": "/a", "/a?b=c&d": "/a?b=c&d", "/a??": "/a??",
    "/a;b=c": "/a;b=c", "/a%3Bb%3Dc": "/a;b=c", "/a%2Fb": "/a/b", "/a%2fb": "/a/b", "/a%3Fb": "/a%3Fb", "/a%23b": "/a%23b",
    "/%zz": "/%25zz", "/%25zz": "/%25zz", "/a%20b": "/a%20b", "/a+b": "/a+b", "/~a(b)'*!$,:@": "/~a(b)'*!$,:@",
    "//a//b": "//a//b", "/%C3%BC": "/%C3%BC", "/%E2%82%AC?q=%E2%82%AC;%zz": "/%E2%82%AC?q=%E2%82%AC;%zz",
}


def environ(target, **more):
    path, _, query = target.partition("?")
    return {"REQUEST_METHOD": "POST", "SCRIPT_NAME": "", "PATH_INFO": unquote(path, "latin-1"), "QUERY_STRING": query,
            "SERVER_NAME": "x", "SERVER_PORT": "80", "wsgi.input": io.BytesIO(), **more}


def scope(target, **more):
    path, _, query = target.partition("?")
    return {"type": "http", "method": "POST", "path": unquote(path), "query_string": query.encode("latin-1"),
            "headers": [], **more}


def targets_by_wsgi(target, **more):
    flask, own = environ(target, **more), WSGIRequest(environ(target, **more))
    return {wsgi.request_of(flask, "r", b"").target, django.request_of(own, "r", b"").target}


def targets_by_asgi(target, **more):
    own = ASGIRequest(scope(target, **more), io.BytesIO())
    return {asgi.request_of(scope(target, **more), "r", b"").target, django.request_of(own, "r", b"").target}


@pytest.mark.parametrize("target", [*TARGETS, "/%FF", "/\xfc"])
@pytest.mark.parametrize("name", ["RAW_URI", "REQUEST_URI"])
def test_what_the_client_sent(target, name):
    sent = "/a" if target == "/a?" else target
    got = targets_by_asgi(target, raw_path=target.partition("?")[0].encode("latin-1"))
    if target not in ("/%FF", "/\xfc"):
        got |= targets_by_wsgi(target, **{name: target})
    else:
        # No UTF-8: Django knows it by its bytes.
        got.add(wsgi.request_of(environ(target, **{name: target}), "r", b"").target)
    assert got == {sent}


@pytest.mark.parametrize("target,decoded", TARGETS.items())
def test_what_a_server_has_decoded(target, decoded):
    assert targets_by_wsgi(target) | targets_by_asgi(target) == {decoded}


@pytest.mark.parametrize("raw", ["/outer", "http://x/a%2Fb", "/a%2Fb%2Fc", ""])
def test_a_path_that_was_changed_since(raw):
    """As by a batch of requests inside of one: they are told apart by what the application sees."""
    assert targets_by_wsgi("/a%2Fb", RAW_URI=raw) == {"/a/b"}
    assert targets_by_asgi("/a%2Fb", raw_path=raw.encode()) == {"/a/b"}


def test_bytes_that_are_no_utf_8_are_told_apart():
    assert len({django.request_of(WSGIRequest(environ(f"/{one}")), "r", b"").target for one in ("%FE", "%FF")}) == 2
    assert len(set.union(*(targets_by_asgi(f"/{one}", raw_path=f"/{one}".encode()) for one in ("%FE", "%FF")))) == 2
