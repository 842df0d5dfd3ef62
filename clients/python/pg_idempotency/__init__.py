"""Client of the PostgreSQL extension "idempotency": each operation takes effect once."""

from .caller import AsyncCaller, Caller, DictStore, FileStore, GaveUp
from .client import AsyncIdempotency, Idempotency
from .clock import Clock, FakeClock
from .consumer import owns_dead_letter
from .errors import (BadArgument, CommitRolledBack, Declined, Forbidden, IdempotencyError, InProgress, KeyReused,
                     LeaseLost, NotDone, NotReady, TooLarge, Unknown, Unstorable, sqlstate_of)
from .function import idempotent
from .hooks import Event
from .model import (ACQUIRED, COMPLETED, FAILED, IN_PROGRESS, MISMATCH, NOT_DONE, UNKNOWN, Completion, Done, Json,
                    Operation, Response, Result)
from .retry import Retry
from .settle import Settlement, settle

__version__ = "1.1.0"

__all__ = [
    "ACQUIRED", "AsyncCaller", "AsyncIdempotency", "BadArgument", "COMPLETED", "Caller", "Clock",
    "CommitRolledBack", "Completion", "Declined", "DictStore", "Done", "Event", "FAILED", "FakeClock",
    "FileStore", "Forbidden", "GaveUp", "IN_PROGRESS", "Idempotency", "IdempotencyError", "InProgress", "Json", "KeyReused",
    "LeaseLost", "MISMATCH", "NOT_DONE", "NotDone", "NotReady", "Operation", "Response", "Result", "Retry", "Settlement",
    "TooLarge", "UNKNOWN", "Unknown", "Unstorable", "idempotent", "owns_dead_letter", "settle", "sqlstate_of",
]
