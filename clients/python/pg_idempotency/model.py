"""What goes in and what comes out: operations, responses, results. No I/O."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any, Callable, Mapping, Optional, Sequence, Union
from uuid import UUID

from .errors import BadOption

Duration = Union[float, int, timedelta]

ACQUIRED = "ACQUIRED"
COMPLETED = "COMPLETED"
FAILED = "FAILED"
IN_PROGRESS = "IN_PROGRESS"
MISMATCH = "MISMATCH"
WITHOUT_ANSWER = 500    # the code of what is stored in place of an answer that cannot be


@dataclass(frozen=True)
class Json:
    """A request that is JSON text already. It reaches the database as it is, numbers in full precision."""

    text: str


@dataclass(frozen=True)
class Operation:
    """An operation as the database answered a begin. Durations are seconds.

    ``outcome``: ACQUIRED: this call runs it; IN_PROGRESS: somebody else does; COMPLETED, FAILED: its stored end; MISMATCH, of
    ``begin_many`` alone: the key had another request. ``attempt``: from 1. ``replayed``: the rest is from the store.
    ``retry_after``: how long the owner's lease lasts, or until a failure may be tried again; None: not known, or never.
    ``code``, ``headers``, ``payload`` and ``body``: the stored Response. ``record``: see Result.
    ``taken_over``: an earlier leased attempt ran out without an end, so its outside effects are unknown.
    ``fence``: the fencing token of a leased attempt, None without a lease. ``lease_left``: how long its lease lasts by the
    server, which may be less than was asked for. ``created``: when its first attempt began, in microseconds since 1970.
    ``unstorable``: its leased work was done, and the answer could not be stored. ``is_null``: see Result.
    """

    outcome: str
    scope: str
    key: str
    attempt: Optional[int]
    taken_over: bool = False
    replayed: bool = False
    fence: Optional[int] = None
    retry_after: Optional[float] = None
    code: Optional[int] = None
    headers: Optional[Mapping[str, Any]] = None
    payload: Any = None
    body: Optional[bytes] = None
    record: Optional[str] = None
    lease_left: Optional[float] = None
    created: Optional[int] = None
    unstorable: bool = False
    is_null: bool = False


@dataclass(frozen=True)
class Response:
    """What work gives back, where a plain JSON value does not do.

    ``code``: status code. ``headers``: a mapping of JSON values. ``payload``: a JSON value; None is SQL NULL.
    ``body``: bytes that are replayed as they are. ``retention``: seconds to keep the record, None: the default.
    """

    code: Optional[int] = None
    headers: Optional[Mapping[str, Any]] = None
    payload: Any = None
    body: Optional[bytes] = None
    retention: Optional[Duration] = None


@dataclass(frozen=True)
class Completion:
    """What leased work gives back when it has writes to commit together with the end.

    ``response``: a Response or a JSON value. ``writes``: called with the transaction's connection.
    """

    response: Any
    writes: Callable[[Any], Any]


@dataclass(frozen=True)
class Done:
    """Answer of ``reconcile``: the earlier attempt took effect, and this is its response."""

    response: Any = None


NOT_DONE = "not done"   # answer of reconcile: the earlier attempt had no effect, run the work
UNKNOWN = "unknown"     # answer of reconcile: nobody can tell


@dataclass(frozen=True)
class Result:
    """The end of a call. ``outcome`` is COMPLETED, FAILED or IN_PROGRESS; ``retry_after`` is in seconds.

    ``code``, ``headers``, ``payload`` and ``body``: those of the Response, or of Declined; a payload that nests deeper than
    Python reads is a Json.
    ``replayed``: the answer came from the store, and this call did not run the work to its end.
    ``taken_over``: this call ran after an earlier leased attempt that has no end.
    ``record``: of a replay, names the stored record; another one where the operation ran anew. None: not a replay.
    ``is_null``: the payload is JSON null, which is an answer; else None says that there is none.
    """

    outcome: str
    code: Optional[int] = None
    headers: Optional[Mapping[str, Any]] = None
    payload: Any = None
    body: Optional[bytes] = None
    replayed: bool = False
    attempt: Optional[int] = None
    retry_after: Optional[float] = None
    taken_over: bool = False
    record: Optional[str] = None
    is_null: bool = False


@dataclass(frozen=True)
class Call:
    """One call's key, request and options, with the package's defaults filled in. Durations are seconds."""

    key: str
    request: Optional[str]
    scope: str
    request_hash: Optional[bytes] = None
    wait: float = 0.0
    max_attempts: Optional[int] = None
    max_lost_attempts: Optional[int] = None
    retention: Optional[float] = None
    isolation: Optional[str] = None
    lease: Optional[float] = None
    reconcile: Optional[Callable[[Operation], Any]] = field(default=None, compare=False)


LONGEST = 36500 * 86400.0       # the server takes no longer interval
SHORTEST = 1e-6                 # one that is shorter it has as 0


def seconds(name: str, duration: Duration, *, endless: bool = False, positive: bool = False,
            past: bool = False) -> float:
    """A duration, the option ``name``, as seconds. Raises BadOption for what the server would refuse each time: for what is
    none, is below 0 or over LONGEST, and for 0 where ``positive``. ``endless``: it may be infinite. ``past``: below 0 is 0."""
    try:
        value = duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not (value <= LONGEST or endless and value == math.inf):
        raise BadOption(f"{name} is a number of seconds, or a timedelta, of at most 36,500 days")
    if past:
        return max(value, 0.0)
    if value < (SHORTEST if positive else 0):
        raise BadOption(f"{name} is too short")
    return value


def maybe_seconds(name: str, duration: Optional[Duration], *, endless: bool = False,
                  positive: bool = False) -> Optional[float]:
    """The same; None stays None."""
    return None if duration is None else seconds(name, duration, endless=endless, positive=positive)


def check_count(name: str, count: Optional[int]) -> None:
    """Raises BadOption for what is no number of attempts."""
    if count is not None and not (isinstance(count, int) and 0 <= count < 2**31):
        raise BadOption(f"{name} is a whole number from 0")


def check_hash(data: Optional[bytes]) -> None:
    """Raises BadOption for what is no SHA-256."""
    if data is not None and len(data) != 32:
        raise BadOption("request_hash has 32 bytes")


def to_json(value: Any) -> Optional[str]:
    """JSON text of a value; None is SQL NULL. Raises TypeError or ValueError for what JSON does not have."""
    if value is None:
        return None
    if isinstance(value, Json):
        return value.text
    text = ENCODER.encode(value)
    check_names(value)
    return text


def check_names(value: Any) -> None:
    """Raises ValueError where JSON makes one name of two keys, such as 1 and "1": one of the members would count for nothing."""
    values = [value]
    while values:
        one = values.pop()
        if isinstance(one, dict):
            # most have strings alone
            if not {str}.issuperset(map(type, one)) and len(
                    {key if isinstance(key, str) else ENCODER.encode(key) for key in one}) < len(one):
                raise ValueError("two keys of a dict are one in JSON")
            values.extend(one.values())
        elif isinstance(one, (list, tuple)):
            values.extend(one)


def is_text(value: Any) -> bool:
    """Whether it is text that the database can hold: half a surrogate pair is none."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def as_text(value: Any) -> str:
    """A value that JSON has no form for, as Django and Pydantic write it: no digit is lost."""
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, UUID) or isinstance(value, Decimal) and value.is_finite():
        return str(value)
    raise TypeError(f"JSON cannot hold this value of type {type(value).__name__}")


ENCODER = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=as_text)


def as_stored(value: Any) -> Any:
    """A JSON value as a replay has it, so that the first answer is the same."""
    text = to_json(value)
    return None if text is None else json.loads(text)


def json_value(text: str) -> Any:
    """The value of stored JSON. What nests deeper than Python reads stays text."""
    try:
        return json.loads(text)
    except RecursionError:
        return Json(text)


def is_null(payload: Any) -> bool:
    """Whether a payload is JSON null: None is SQL NULL."""
    return isinstance(payload, Json) and payload.text.strip() == "null"


def as_response(value: Any) -> Response:
    """What work gave back, as a Response."""
    return value if isinstance(value, Response) else Response(payload=value)


def operation_from_row(row: Sequence[Any]) -> Operation:
    """A row of ``sql.COLUMNS`` as an Operation."""
    (outcome, scope, key, attempt, taken_over, replayed, fence, lease_left, retry_after,
     code, headers, payload, body, created) = row
    return Operation(
        outcome=outcome, scope=scope, key=key, attempt=attempt, taken_over=bool(taken_over),
        replayed=bool(replayed), fence=fence, lease_left=lease_left, retry_after=retry_after, code=code,
        headers=None if headers is None else json.loads(headers),
        payload=None if payload is None else json_value(payload),
        body=None if body is None else bytes.fromhex(body),
        record=record_of(scope, key, created) if replayed else None, created=created,
        # JSON null is an answer
        unstorable=(outcome, code, headers, payload, body) == (COMPLETED, WITHOUT_ANSWER, None, None, None),
        is_null=payload == "null")


def record_of(scope: str, key: str, created: int) -> str:
    """Names a stored record. The packages for other languages do the same, so their consumers can share a queue."""
    return hashlib.sha256(f"{scope}\0{key}\0{created}".encode()).hexdigest()


def stored_result(operation: Operation) -> Result:
    """The result of a call that did not acquire the operation."""
    return Result(
        outcome=operation.outcome, code=operation.code, headers=operation.headers,
        payload=operation.payload, body=operation.body,
        replayed=operation.outcome in (COMPLETED, FAILED),
        attempt=operation.attempt, retry_after=operation.retry_after, record=operation.record, is_null=operation.is_null)


def own_result(operation: Operation, response: Response) -> Result:
    """The result of a call that completed the operation itself."""
    return Result(
        outcome=COMPLETED, code=response.code, headers=response.headers, payload=as_stored(response.payload),
        body=response.body, attempt=operation.attempt, taken_over=operation.taken_over, is_null=is_null(response.payload))
