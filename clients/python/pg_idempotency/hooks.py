"""Hooks for metrics and logs. They get names and numbers, never a request or a response."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Callable, Mapping, Optional

logger = logging.getLogger("pg_idempotency")

NAMES = frozenset({"acquired", "replayed", "in_progress", "mismatch", "taken_over", "lease_lost", "declined", "retried"})


@dataclass(frozen=True)
class Event:
    """What a hook is called with: its ``name``, the operation's ``scope`` and ``key``, and what is known, else None.

    ``attempt`` counts attempts of the operation; ``tries`` the repeats of this call. ``sqlstate``: of the error behind it.
    """

    name: str
    scope: str
    key: str
    attempt: Optional[int] = None
    tries: Optional[int] = None
    sqlstate: Optional[str] = None


Hooks = Mapping[str, Callable[[Event], None]]


def check(hooks: Hooks) -> Hooks:
    """The hooks, if each has a known name; raises ValueError otherwise."""
    unknown = set(hooks) - NAMES
    if unknown:
        raise ValueError(f"no such hook: {', '.join(sorted(unknown))}")
    return hooks


def emit(hooks: Hooks, event: Event) -> None:
    """Calls the hook of that name, if there is one. A hook that raises is logged, and changes nothing."""
    hook = hooks.get(event.name)
    if hook is None:
        return
    try:
        hook(event)
    except Exception:
        logger.exception("the hook %s raised an error", event.name)
