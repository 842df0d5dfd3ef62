"""A process that forks shares the open connections of its pools with its child: what both send there would mix.

So a child refuses a pool that had connections before, as of Celery, uWSGI and ``gunicorn --preload``. uWSGI forks without
the hooks of Python: the process is noted as soon as a pool is seen to have connections.
"""

from __future__ import annotations

import os
from typing import Any
from weakref import WeakKeyDictionary

from .errors import IdempotencyError

# The process in which each pool had connections first; 0: it has had none. Weak, and read whole: threads add to it.
OWNERS: "WeakKeyDictionary[Any, int]" = WeakKeyDictionary()


def owner_of(pool: Any, connects: bool = False) -> int:
    """Notes this process for a pool that has connections, or that connects now. 0 for a pool that has or keeps none."""
    if not hasattr(pool, "get_stats") and not hasattr(pool, "checkedin"):
        return 0
    if not OWNERS.setdefault(pool, 0) and (connects or has_connections(pool)):
        OWNERS[pool] = os.getpid()
    return OWNERS[pool]


def has_connections(pool: Any) -> bool:
    """Whether a pool of SQLAlchemy or psycopg_pool has some that a child would share."""
    if hasattr(pool, "checkedin"):
        return bool(pool.checkedin())
    sizes = pool.get_stats()
    return not getattr(pool, "closed", True) and bool(sizes.get("pool_min") or sizes.get("pool_available"))


def refuse_inherited(pool: Any) -> None:
    """Raises IdempotencyError for a pool from before the fork."""
    if owner_of(pool) not in (0, os.getpid()):
        raise IdempotencyError(
            "this process was forked when its pool had connections already, and shares them with its parent: open the pool "
            "in the child, or with SQLAlchemy call engine.dispose(close=False) there")


# The parent looks, as in the child a thread that is not there may hold a lock of the pool.
def before_fork() -> None:
    for reference in OWNERS.keyrefs():
        pool = reference()
        if pool is not None:
            owner_of(pool)


if hasattr(os, "register_at_fork"):     # not on Windows
    os.register_at_fork(before=before_fork)
