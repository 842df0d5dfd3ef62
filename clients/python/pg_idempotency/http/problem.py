"""Errors as answers to a client (RFC 9457). No answer shows a key, a scope, SQL or an error of the service."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import List, Optional, Tuple

from ..errors import (RETRY_STATES, BadArgument, BadOption, Forbidden, InProgress, KeyReused, LeaseLost, NotDone, TooLarge,
                      Unknown, Unstorable, is_unreachable, sqlstate_of)

BUSY_STATES = frozenset({"25006", "53300", "55P03", "57014"})


@dataclass(frozen=True)
class Problem:
    """An error for a client. ``title`` is the same each time, and in all languages. ``retry_after``: seconds, or None."""

    status: int
    title: str
    detail: str
    retry_after: Optional[float] = None


class ResponseTooLarge(Exception):
    """The handler's response is over the limit. Nothing was committed."""


class HandlerTimeout(Exception):
    """The handler gave no answer in time. Nothing was committed."""


# Not that nothing was done: the handler of a lease may have acted outside.
UNANSWERED = "There is no answer to this request."
AGAIN = "Send it again, with the same key, after the time in Retry-After."


def in_progress(retry_after: Optional[float]) -> Problem:
    """Somebody else has the operation. ``retry_after``: seconds, None: not known."""
    return Problem(409, "A request is outstanding for this Idempotency-Key", AGAIN, retry_after or 1)


def problem_of(error: BaseException) -> Problem:
    """The problem that a client gets for an error."""
    if isinstance(error, BadArgument) and not isinstance(error, BadOption):
        return Problem(400, "The request is not acceptable", "The idempotency key or the request is not valid.")
    if isinstance(error, Forbidden):
        return Problem(403, "This Idempotency-Key may not be used here", "The service has no right to it.")
    if isinstance(error, KeyReused):
        return Problem(422, "Idempotency-Key is already used",
                       "It was used with another request. Use a new key for a new request.")
    if isinstance(error, (InProgress, LeaseLost)):
        return in_progress(getattr(error, "retry_after", None))
    if isinstance(error, TooLarge):
        return Problem(413, "The answer is too large to be stored", "Nothing was stored.")
    if isinstance(error, Unstorable):
        return Problem(500, "The answer could not be stored", "The request was done, and is not repeated.")
    if isinstance(error, Unknown):
        return Problem(503, "It is not known yet whether an earlier attempt took effect", AGAIN, error.retry_after or 1)
    if isinstance(error, NotDone):
        if error.retry_after is None and error.__cause__ is not None:
            return problem_of(error.__cause__)
        return Problem(503, "The request was not processed", AGAIN, error.retry_after or 1)
    if isinstance(error, ResponseTooLarge):
        return Problem(500, "The answer is too large to be stored", UNANSWERED)
    if isinstance(error, HandlerTimeout):
        return Problem(503, "The request took too long", AGAIN, 1)
    if is_transient(error):
        return Problem(503, "The service is busy", AGAIN, 1)
    return Problem(500, "Internal Server Error", UNANSWERED)


def is_transient(error: BaseException) -> bool:
    """Whether the same request may succeed later."""
    state = sqlstate_of(error)
    return state in RETRY_STATES or state in BUSY_STATES or is_unreachable(error)


def whole_seconds(duration: Optional[float]) -> str:
    """Retry-After: rounded up, 1 at least, also where nothing is known."""
    return str(max(1, math.ceil(duration or 0)))


def document(problem: Problem, describedby: Optional[str]) -> Tuple[List[Tuple[str, str]], bytes]:
    """Headers and body of a problem."""
    body = json.dumps({
        "type": describedby or "about:blank", "title": problem.title,
        "status": problem.status, "detail": problem.detail}).encode()
    headers = [("Content-Type", "application/problem+json")]
    if problem.retry_after is not None:
        headers.append(("Retry-After", whole_seconds(problem.retry_after)))
    if describedby is not None:
        headers.append(("Link", f'<{describedby}>; rel="describedby"'))
    return headers, body
