"""Plain functions: a decorator that makes each call with the same key take effect once."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable, Concatenate, Dict, Optional, ParamSpec, TypeVar, Union, overload

from .client import AsyncIdempotency, Idempotency
from .errors import Declined, InProgress
from .model import COMPLETED, IN_PROGRESS, Duration, Operation, Response, Result

P = ParamSpec("P")
R = TypeVar("R")
Either = Union[Idempotency, AsyncIdempotency]


@overload
def idempotent(idempotency: Either, *, key: Callable[..., str], request: Optional[Callable[..., Any]] = None,
               name: Optional[str] = None, lease: None = None, **options: Any,
               ) -> Callable[[Callable[Concatenate[Any, P], R]], Callable[P, R]]: ...


@overload
def idempotent(idempotency: Either, *, key: Callable[..., str], request: Optional[Callable[..., Any]] = None,
               name: Optional[str] = None, lease: Duration, **options: Any,
               ) -> Callable[[Callable[Concatenate[Operation, Any, P], R]], Callable[P, R]]: ...


def idempotent(idempotency: Either, *, key: Callable[..., str], request: Optional[Callable[..., Any]] = None,
               name: Optional[str] = None, lease: Optional[Duration] = None, **options: Any) -> Any:
    """Decorates ``function(tx, …)``, or ``function(operation, signal, …)`` where ``lease`` (seconds) is given.

    ``key(…)``, ``request(…)``: called with the call's own arguments; the request is by default all of them as JSON.
    ``name``: tells the function's operations from those of others, so it must not change; by default the function's
    module and name. The scope is the option ``scope``, or that of the Idempotency, a dot, and the name, as in the
    packages for other languages. ValueError for a lambda, which has no name. Other options: those of ``transaction``
    or ``lease``.
    The decorated function is called without what the package gives, and is a coroutine function for AsyncIdempotency.
    It gives the function's value, a JSON value, to each caller as JSON has it. Raises Declined for a failure that is
    stored, InProgress while another call runs, and what ``transaction`` and ``lease`` raise.
    """
    given = 1 if lease is None else 2
    if lease is not None:
        options["lease"] = lease
    service = idempotency.scope if options.get("scope") is None else options["scope"]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        own = dict(options, scope=".".join(filter(None, (service, name_of(function) if name is None else name))))
        if name == "":
            raise ValueError("the name of a function that runs once is empty")

        def start(*args: Any, **kwargs: Any) -> Any:
            asked = request(*args, **kwargs) if request else arguments_of(function, given, args, kwargs)
            return (idempotency.transaction if lease is None else idempotency.lease)(
                key(*args, **kwargs), asked, work_of(function, given, args, kwargs), **own)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return value_of(start(*args, **kwargs))

        async def wrapper_async(*args: Any, **kwargs: Any) -> Any:
            return value_of(await start(*args, **kwargs))

        wrapped = functools.wraps(function)(wrapper_async if isinstance(idempotency, AsyncIdempotency) else wrapper)
        signature = inspect.signature(function)
        wrapped.__signature__ = signature.replace(      # type: ignore[attr-defined]
            parameters=list(signature.parameters.values())[given:])
        return wrapped

    return decorate


def name_of(function: Callable[..., Any]) -> str:
    """Module and name of a function. Raises ValueError where it has none."""
    if getattr(function, "__name__", "<lambda>") == "<lambda>":
        raise ValueError("a function that runs once needs a name: give it one, or the option name")
    return f"{function.__module__}.{function.__qualname__}"


def work_of(function: Callable[..., Any], given: int, args: Any, kwargs: Any) -> Callable[..., Any]:
    """The function as work: its first ``given`` arguments come from the package."""
    def work(first: Any, second: Any) -> Any:
        value = function(*(first, second)[:given], *args, **kwargs)
        return later(value) if inspect.isawaitable(value) else Response(payload=value)

    async def later(value: Any) -> Response:
        return Response(payload=await value)

    return work


def value_of(result: Result) -> Any:
    if result.outcome == IN_PROGRESS:
        raise InProgress(result.retry_after)
    if result.outcome != COMPLETED:
        raise Declined(result.code, result.payload, headers=result.headers, retry_after=result.retry_after, body=result.body)
    return result.payload


def arguments_of(function: Callable[..., Any], given: int, args: Any, kwargs: Any) -> Dict[str, Any]:
    """All arguments of a call by name, but for those that come from the package."""
    bound = inspect.signature(function).bind(*([None] * given), *args, **kwargs)
    bound.apply_defaults()
    return dict(list(bound.arguments.items())[given:])
