"""Runs a handler inside of a transaction or a lease, and always gives an answer."""

from __future__ import annotations

import asyncio
from typing import Any, Awaitable, Callable, Dict, Optional

from ..client import AsyncIdempotency, Idempotency
from ..drive import to_its_end
from ..model import IN_PROGRESS, Duration, Operation, Result, seconds
from .core import Admitted, Exchange, Reply, Served, active
from .problem import HandlerTimeout

Handler = Callable[[Exchange], Reply]
AsyncHandler = Callable[[Exchange], Awaitable[Reply]]


def arguments(admitted: Admitted) -> Dict[str, Any]:
    """The arguments that both styles of a route have."""
    options = admitted.options
    named: Dict[str, Any] = dict(scope=admitted.scope, wait=admitted.wait, max_attempts=options.max_attempts)
    if options.lease is not None:
        named.update(lease=options.lease, reconcile=options.reconcile)
    return named


def serve(idem: Idempotency, served: Served, handler: Handler) -> Reply:
    """Runs a blocking handler. Raises nothing that is an Exception."""
    admitted = served.admitted

    def handle(exchange: Exchange) -> Any:
        token = active.set(exchange)
        try:
            reply = handler(exchange)
        except Exception as error:
            served.refuse(error)
            raise
        finally:
            active.reset(token)
            exchange.tx = None
        return served.outcome(exchange, reply)

    def in_transaction(tx: Any, operation: Operation) -> Any:
        return handle(Exchange(tx, operation))

    def in_lease(operation: Operation, signal: Any) -> Any:
        return handle(Exchange(None, operation, signal))

    try:
        if admitted.options.lease is not None:
            result = idem.lease(admitted.key, admitted.request, in_lease, **arguments(admitted))
        else:
            result = idem.transaction(admitted.key, admitted.request, in_transaction, **arguments(admitted))
    except Exception as error:
        return served.refusal(error)
    reply = served.answer(result)
    if not is_looked_for(admitted, result):
        return reply
    try:
        return served.lasting(reply, idem.expires_at(admitted.key, scope=admitted.scope))
    except Exception:
        return reply    # the answer is true without it


def is_looked_for(admitted: Admitted, result: Result) -> bool:
    """Whether the answer is stored, and says until when."""
    return admitted.options.lifetime is not None and result.outcome != IN_PROGRESS


async def within(limit: Optional[Duration], reply: Awaitable[Reply]) -> Reply:
    """The reply, if it comes in so many seconds. Raises HandlerTimeout; the handler is cancelled then, and its
    clean-up waited for, as when we are cancelled ourselves: it must not go on with a connection that is not its own.
    """
    task = asyncio.ensure_future(reply)
    done = False
    try:
        await asyncio.wait([task], timeout=None if limit is None else seconds(limit))
        done = task.done()
    finally:
        if not task.done():
            task.cancel()
            await to_its_end(asyncio.wait([task]))
    if not done:
        raise HandlerTimeout()
    return task.result()


async def serve_async(idem: AsyncIdempotency, served: Served, handler: AsyncHandler) -> Reply:
    """The same for asyncio."""
    admitted = served.admitted
    limit = admitted.options.timeout

    async def handle(exchange: Exchange) -> Any:
        token = active.set(exchange)
        try:
            reply = await within(limit, handler(exchange))
        except Exception as error:
            served.refuse(error)
            raise
        finally:
            active.reset(token)
            exchange.tx = None
        return served.outcome(exchange, reply)

    async def in_transaction(tx: Any, operation: Operation) -> Any:
        return await handle(Exchange(tx, operation))

    async def in_lease(operation: Operation, signal: Any) -> Any:
        return await handle(Exchange(None, operation, signal))

    try:
        if admitted.options.lease is not None:
            result = await idem.lease(admitted.key, admitted.request, in_lease, **arguments(admitted))
        else:
            result = await idem.transaction(admitted.key, admitted.request, in_transaction, **arguments(admitted))
    except Exception as error:
        return served.refusal(error)
    reply = served.answer(result)
    if not is_looked_for(admitted, result):
        return reply
    try:
        return served.lasting(reply, await idem.expires_at(admitted.key, scope=admitted.scope))
    except Exception:
        return reply    # the answer is true without it
