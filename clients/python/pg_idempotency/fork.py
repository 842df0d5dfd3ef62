"""A process that forks shares the open connections of its pools with its child: what both send there would mix.

So a child refuses a pool that had connections before, as of Celery, uWSGI and ``gunicorn --preload``.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import Any
from weakref import WeakSet

from .errors import IdempotencyError


class Pooled(ABC):
    """A source over a pool. ``before`` is the pool that a child would share, ``inherited`` the one that this process does."""

    before: Any = None
    inherited: Any = None

    def __init__(self) -> None:
        SOURCES.add(self)

    @abstractmethod
    def shared(self) -> Any:
        """The pool, if it has connections."""

    def refuse_inherited(self, pool: Any) -> None:
        """Raises IdempotencyError for a pool from before the fork."""
        if self.inherited is not None and self.inherited is pool:
            raise IdempotencyError(
                "this process was forked when its pool had connections already, and shares them with its parent: open the pool "
                "in the child, or with SQLAlchemy call engine.dispose(close=False) there")


SOURCES: "WeakSet[Pooled]" = WeakSet()


# The parent looks, as in the child a thread that is not there may hold a lock of the pool.
def before_fork() -> None:
    for source in list(SOURCES):
        source.before = source.shared()


def in_child() -> None:
    for source in list(SOURCES):
        source.inherited = source.before


if hasattr(os, "register_at_fork"):     # not on Windows
    os.register_at_fork(before=before_fork, after_in_child=in_child)
