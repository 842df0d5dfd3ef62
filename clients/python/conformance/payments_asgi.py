"""What the ASGI programs share: pool, middleware and handlers, all of Starlette, which is below FastAPI, too."""
import asyncio
import contextlib

import payments
import psycopg_pool
from pg_idempotency import AsyncIdempotency, NotDone
from pg_idempotency.http import current
from pg_idempotency.http.asgi import IdempotencyMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse

pool = psycopg_pool.AsyncConnectionPool(payments.DATABASE_URL, min_size=2, max_size=20, timeout=5, open=False)
idempotency = AsyncIdempotency(pool)


@contextlib.asynccontextmanager
async def lifespan(app):
    payments.prepare()
    async with pool:
        yield


def protect(app):
    app.add_middleware(
        IdempotencyMiddleware, idempotency=idempotency,
        principal=lambda request: request.value("x-tenant") or "nobody", **payments.OPTIONS)


async def root(request: Request):
    return JSONResponse({})


async def invalid(request: Request, error):
    return respond(payments.INVALID)


async def pay(request: Request):
    payment = payments.read(await request.body())
    await current().tx.execute(payments.INSERT, payments.row(payment, "payment"))
    await asyncio.sleep(payments.pause(payment))
    if payment.get("crash"):
        raise payments.Crash()
    return respond(payments.DECLINED if payments.is_declined(payment) else payments.paid(payment))


async def charge(request: Request):
    payment = payments.read(await request.body())
    await asyncio.sleep(payments.pause(payment))
    if payments.is_declined(payment):
        return respond(payments.DECLINED)

    async def writes(tx):
        await tx.execute(payments.INSERT, payments.row(payment, "charge"))
        if payment.get("crash"):
            raise NotDone() from payments.Crash()
    current().complete_with(writes)
    return respond(payments.paid(payment))


def respond(answer):
    status, headers, value = answer
    return JSONResponse(value, status, headers)
