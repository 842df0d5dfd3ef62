"""Idempotency by hand, for the services in Python: a lock in Redis around a table.

It stands before the package in PYTHONPATH. The consumer of the package stays.
"""

import contextlib
import json
import os
from pkgutil import extend_path

import redis

__path__ = extend_path(__path__, __name__)
from pg_idempotency.model import Result    # noqa: E402  # pylint: disable=wrong-import-position

TTL = 10    # seconds, after which the lock of a process that died is free


class Idempotency:
    """A message is an insert in the transaction of its work."""

    def __init__(self, pool, scope):
        self.pool = pool
        self.scope = scope
        self.redis = redis.Redis.from_url(os.environ["REDIS_URL"], socket_timeout=2)

    def transaction(self, key, request, work):
        """Runs ``work``, or gives the answer of the time before."""
        with self.locked(f"lock:{self.scope}:{key}"), self.pool.connection() as tx:
            new = tx.execute(
                "INSERT INTO processed_messages (message_id) VALUES (%s) ON CONFLICT DO NOTHING", (key,)).rowcount == 1
            if not new:
                answer, = tx.execute("SELECT answer FROM processed_messages WHERE message_id = %s", (key,)).fetchone()
                return Result("COMPLETED", payload=answer, replayed=True)
            answer = work(tx, None)
            tx.execute("UPDATE processed_messages SET answer = %s::jsonb WHERE message_id = %s", (json.dumps(answer), key))
            return Result("COMPLETED", payload=answer)

    @contextlib.contextmanager
    def locked(self, name):
        """Raises if somebody else has the lock: the message comes again."""
        lock = self.redis.lock(name, timeout=TTL)
        if not lock.acquire(blocking=False):
            raise RuntimeError(f"{name} is locked")
        try:
            yield
        finally:
            with contextlib.suppress(redis.RedisError):
                lock.release()
