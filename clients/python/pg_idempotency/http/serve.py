"""Runs a handler inside of a transaction or a lease, and always gives an answer."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import Any, Awaitable, Callable, Dict, NoReturn, Optional, Union

from .. import steps
from ..client import AsyncIdempotency, Idempotency
from ..drive import to_its_end
from ..errors import Declined
from ..model import IN_PROGRESS, Completion, Done, Duration, Operation, as_response, maybe_seconds
from ..steps import Flow
from .core import Exchange, Reply, Served, active, storable
from .problem import HandlerTimeout


def serve(idem: Idempotency, served: Served, handler: Callable[[Exchange], Reply]) -> Reply:
    """Runs a blocking handler. Raises nothing that is an Exception."""
    reply: Reply = idem.driver.run(serving(idem, served, handler))
    return reply


async def serve_async(idem: AsyncIdempotency, served: Served, handler: Callable[[Exchange], Awaitable[Reply]]) -> Reply:
    """The same for asyncio."""
    limit = served.options.timeout
    reply: Reply = await idem.driver.run(serving(idem, served, lambda exchange: within(limit, handler(exchange))))
    return reply


def serving(idem: Union[Idempotency, AsyncIdempotency], served: Served, handler: Callable[[Exchange], Any]) -> Flow:
    """The flow of both. Result: a Reply."""
    admitted, options = served.admitted, served.options

    def handle(exchange: Exchange) -> Flow:
        served.reply = None     # that of a run before was rolled back
        token = active.set(exchange)
        try:
            reply = yield steps.call(handler, exchange)
        except Exception as error:
            served.refuse(error)
            raise
        finally:
            active.reset(token)
            exchange.tx = None
        exchange.writes = exchange.writes and sendable(exchange.writes, served.decline_done)
        return served.outcome(exchange, reply)

    def sendable(function: Callable[[Any], Any],
                 decline: Callable[[Declined], NoReturn] = served.decline) -> Callable[[Any], Any]:
        """A function whose own end of the lease is stored before it is an answer: what HTTP cannot send fails here."""
        def checked(given: Any) -> Flow:
            try:
                value = yield steps.call(function, given)
            except Declined as declined:
                decline(declined)
            if not isinstance(value, Done):
                return value
            found = value.response
            if isinstance(found, Completion):
                return Done(Completion(storable(as_response(found.response), options), sendable(found.writes)))
            return Done(storable(as_response(found), options))

        return lambda given: idem.driver.run(checked(given))

    def in_transaction(tx: Any, operation: Operation) -> Any:
        return idem.driver.run(handle(Exchange(tx, operation)))

    def in_lease(operation: Operation, signal: Any) -> Any:
        return idem.driver.run(handle(Exchange(None, operation, signal)))

    named: Dict[str, Any] = dict(scope=admitted.scope, wait=admitted.wait, max_attempts=options.max_attempts)
    run, work = (idem.transaction, in_transaction) if options.lease is None else (idem.lease, in_lease)
    if options.lease is not None:
        named.update(lease=options.lease, reconcile=options.reconcile and sendable(options.reconcile))
    try:
        result = yield steps.call(partial(run, admitted.key, admitted.request, work, **named))
        reply = served.answer(result)
    except Exception as error:
        return served.refusal(error)
    if options.lifetime is None or result.outcome == IN_PROGRESS:
        return reply
    with contextlib.suppress(Exception):    # the answer is true without it
        until = yield steps.call(partial(idem.expires_at, admitted.key, scope=admitted.scope))
        reply = served.lasting(reply, until)
    return reply


async def within(limit: Optional[Duration], reply: Awaitable[Reply]) -> Reply:
    """The reply, if it comes in so many seconds; 0 and None: without a limit. Raises HandlerTimeout; the handler is cancelled
    then, and its clean-up waited for, as when we are cancelled ourselves: it must not go on with a connection that is not
    its own.
    """
    task = asyncio.ensure_future(reply)
    done = False
    try:
        await asyncio.wait([task], timeout=maybe_seconds("timeout", limit, endless=True) or None)
        done = task.done()
    finally:
        if not task.done():
            task.cancel()
            await to_its_end(asyncio.wait([task]))
    if not done:
        raise HandlerTimeout()
    return task.result()
