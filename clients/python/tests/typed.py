"""For mypy: a decorated function keeps its signature. What is ignored here must be an error, or mypy says so."""

from typing import Any, assert_type

from starlette.applications import Starlette

from pg_idempotency import AsyncIdempotency, Idempotency, Operation, Result, idempotent
from pg_idempotency.http.asgi import IdempotencyMiddleware


def of(idem: Idempotency, idem_async: AsyncIdempotency) -> None:
    @idempotent(idem, key=lambda order, amount=1: str(order))
    def pay(tx: Any, order: str, amount: int = 1) -> dict[str, int]:
        return {order: amount}
    assert_type(pay("order", amount=2), dict[str, int])
    pay(1)      # type: ignore[arg-type]
    pay()       # type: ignore[call-arg]

    @idempotent(idem, key=str, lease=30)
    def charge(operation: Operation, signal: Any, order: str) -> bool:
        return bool(signal.is_set())
    assert_type(charge("order"), bool)
    charge("order", 2)      # type: ignore[call-arg]

    @idempotent(idem_async, key=str)
    async def ship(tx: Any, order: str) -> int:
        return 1

    async def main() -> None:
        assert_type(await ship("order"), int)
        assert_type(await idem_async.transaction("order", None, max), Result)
        await idem_async.transaction(1, None, max)  # type: ignore[arg-type]


def middleware(idem_async: AsyncIdempotency) -> None:
    app = Starlette()
    app.add_middleware(IdempotencyMiddleware, idempotency=idem_async, principal=lambda request: "me", routes={"/a": {"lease": 5}})
    app.add_middleware(IdempotencyMiddleware, principal=lambda request: "me")  # type: ignore[call-arg]
    IdempotencyMiddleware(app, idem_async, route=lambda scope: None)
    IdempotencyMiddleware(app=app, idempotency=idem_async)
    IdempotencyMiddleware(idem_async)   # type: ignore[call-overload]
