"""Client of the PostgreSQL extension "idempotency": each operation takes effect once."""

from .client import AsyncIdempotency, Idempotency
from .clock import Clock, FakeClock
from .errors import (BadArgument, CommitRolledBack, Declined, Forbidden, IdempotencyError, KeyReused, LeaseLost,
                     NotDone, TooLarge, Unknown, sqlstate_of)
from .hooks import Event
from .model import (ACQUIRED, COMPLETED, FAILED, IN_PROGRESS, MISMATCH, NOT_DONE, UNKNOWN, Completion, Done, Json,
                    Operation, Response, Result)
from .retry import Retry

__version__ = "1.0.0"

__all__ = [
    "ACQUIRED", "COMPLETED", "FAILED", "IN_PROGRESS", "MISMATCH", "NOT_DONE", "UNKNOWN",
    "AsyncIdempotency", "BadArgument", "Clock", "CommitRolledBack", "Completion", "Declined", "Done", "Event",
    "FakeClock", "Forbidden", "Idempotency", "IdempotencyError", "Json", "KeyReused", "LeaseLost", "NotDone",
    "Operation", "Response", "Result", "Retry", "TooLarge", "Unknown", "sqlstate_of",
]
