"""Errors as answers to a client (RFC 9457). No answer shows a key, a scope, SQL or an error of the service."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from http import HTTPStatus
from typing import List, Optional, Tuple

from ..errors import (RETRY_STATES, BadArgument, Forbidden, KeyReused, LeaseLost, NotDone, TooLarge, Unknown,
                      is_unreachable, sqlstate_of)

BUSY_STATES = frozenset({"25006", "53300", "55P03", "57014"})


@dataclass(frozen=True)
class Problem:
    """An error for a client. ``retry_after``: seconds, or None."""

    status: int
    detail: str
    retry_after: Optional[float] = None


class ResponseTooLarge(Exception):
    """The handler's response is over the limit. Nothing was committed."""


class HandlerTimeout(Exception):
    """The handler gave no answer in time. Nothing was committed."""


def problem_of(error: BaseException) -> Problem:
    """What a client is told of an error."""
    if isinstance(error, BadArgument):
        return Problem(400, "The idempotency key or the request is not valid.")
    if isinstance(error, Forbidden):
        return Problem(403, "This idempotency key may not be used here.")
    if isinstance(error, KeyReused):
        return Problem(422, "The idempotency key was used before with a different request.")
    if isinstance(error, LeaseLost):
        return Problem(409, "The request is in progress.", 1)
    if isinstance(error, TooLarge):
        return Problem(413, "The response is too large to be stored.")
    if isinstance(error, Unknown):
        return Problem(503, "The outcome of an earlier attempt is not known yet.", error.retry_after or 1)
    if isinstance(error, NotDone) and error.retry_after is not None:
        return Problem(503, "The request was not done. Send it again later.", error.retry_after)
    if isinstance(error, HandlerTimeout):
        return Problem(503, "The request took too long, and was undone.", 1)
    if is_transient(error):
        return Problem(503, "The service is busy. Send the request again later.", 1)
    return Problem(500, "The request could not be processed, and nothing was stored.")


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
        "type": describedby or "about:blank", "title": HTTPStatus(problem.status).phrase,
        "status": problem.status, "detail": problem.detail}).encode()
    headers = [("Content-Type", "application/problem+json")]
    if problem.retry_after is not None:
        headers.append(("Retry-After", whole_seconds(problem.retry_after)))
    if describedby is not None:
        headers.append(("Link", f'<{describedby}>; rel="describedby"'))
    return headers, body
