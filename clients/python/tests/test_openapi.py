"""The fragment of OpenAPI, and what FastAPI makes of it by docs/clients/openapi.md."""

import json
import re
from pathlib import Path

import psycopg_pool
import pytest
from fastapi.testclient import TestClient
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import validate

from pg_idempotency import AsyncIdempotency
from pg_idempotency.http.asgi import IdempotencyMiddleware

REPOSITORY = Path(__file__).parents[3]
FRAGMENT = json.loads((REPOSITORY / "clients" / "openapi.json").read_text(encoding="utf-8"))


@pytest.fixture
def page(monkeypatch):
    """The names of the page's program."""
    monkeypatch.chdir(REPOSITORY)
    path = REPOSITORY / "docs" / "clients" / "openapi.md"
    [program] = re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    names = {}
    exec(compile(program, str(path), "exec"), names)
    return names


def test_the_fragment_is_a_document():
    validate(FRAGMENT)


def test_each_component_is_used():
    text = json.dumps(FRAGMENT)
    for kind, parts in FRAGMENT["components"].items():
        for name in parts:
            assert f'"#/components/{kind}/{name}"' in text


def test_the_document_of_fastapi(page):
    document = page["app"].openapi()
    validate(document)
    route = document["paths"]["/payments"]["post"]
    assert [(one["in"], one["name"], one["required"]) for one in route["parameters"]] == [("header", "Idempotency-Key", True)]
    assert sorted(route["responses"]) == ["202", "400", "409", "413", "422", "503"]
    assert sorted(route["responses"]["202"]["headers"]) == ["Idempotency-Expires", "Idempotency-Replayed"]
    assert sorted(route["responses"]["422"]["content"]) == ["application/json", "application/problem+json"]


def test_the_service_answers_what_the_document_says(page, key):
    """Statuses, media types, headers, and the problems by their schema."""
    pool = psycopg_pool.AsyncConnectionPool("", min_size=1, open=False)
    app = page["app"]
    responses = app.openapi()["paths"]["/payments"]["post"]["responses"]
    app.add_middleware(IdempotencyMiddleware, idempotency=lambda: AsyncIdempotency(pool), principal=lambda asked: "p",
                       lifetime="Idempotency-Expires", max_request=100)
    app.router.on_startup.append(pool.open)
    app.router.on_shutdown.append(pool.close)
    given = [({}, "{}", 400), ({"Idempotency-Key": key}, "{", 400), ({"Idempotency-Key": key}, "x" * 101, 413),
             ({"Idempotency-Key": key}, '{"a": 1}', 202), ({"Idempotency-Key": key}, '{"a": 1}', 202),
             ({"Idempotency-Key": key}, '{"a": 2}', 422)]
    replays = []
    with TestClient(app) as client:
        for headers, body, status in given:
            answer = client.post("/payments", content=body, headers={"Content-Type": "application/json", **headers})
            assert answer.status_code == status
            said = responses[str(status)]
            assert answer.headers["content-type"] in said["content"]
            if status != 202:
                OAS31Validator(said["content"]["application/problem+json"]["schema"]).validate(answer.json())
            elif "Idempotency-Replayed" in answer.headers:
                replays.append(set(said["headers"]) <= {name.title() for name in answer.headers})
    assert replays == [True]
