"""Plain functions: a decorator that makes each call with the same key take effect once."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable, Dict, Optional, Union

from .client import AsyncIdempotency, Idempotency
from .model import Duration


def idempotent(idempotency: Union[Idempotency, AsyncIdempotency], *, key: Callable[..., str],
               request: Optional[Callable[..., Any]] = None, scope: Optional[str] = None,
               lease: Optional[Duration] = None, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates ``function(tx, …)``, or ``function(operation, signal, …)`` where ``lease`` (seconds) is given.

    ``key(…)``, ``request(…)``: called with the call's own arguments; the request is by default all of them as JSON.
    ``scope``: by default the function's module and name; ValueError for a lambda, which has no name. Other options: those
    of ``transaction`` or ``lease``.
    The decorated function is called without ``tx``. It gives a Result, and is a coroutine function for
    AsyncIdempotency. Raises what ``transaction`` and ``lease`` raise.
    """
    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        given = 1 if lease is None else 2
        if scope is None and function.__name__ == "<lambda>":
            raise ValueError("a function that runs once needs a name, or a scope of its own")
        named: Dict[str, Any] = dict(options, scope=f"{function.__module__}.{function.__qualname__}"
                                     if scope is None else scope)
        if lease is not None:
            named["lease"] = lease

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            start = idempotency.transaction if lease is None else idempotency.lease
            asked = request(*args, **kwargs) if request else arguments_of(function, given, args, kwargs)
            return start(key(*args, **kwargs), asked, work_of(function, given, args, kwargs), **named)

        return wrapper

    return decorate


def work_of(function: Callable[..., Any], given: int, args: Any, kwargs: Any) -> Callable[..., Any]:
    """The function as work: its first ``given`` arguments come from the package."""
    def work(first: Any, second: Any) -> Any:
        own = (first,) if given == 1 else (first, second)
        return function(*own, *args, **kwargs)

    return work


def arguments_of(function: Callable[..., Any], given: int, args: Any, kwargs: Any) -> Dict[str, Any]:
    """All arguments of a call by name, but for those that come from the package."""
    bound = inspect.signature(function).bind(*([None] * given), *args, **kwargs)
    bound.apply_defaults()
    return dict(list(bound.arguments.items())[given:])
