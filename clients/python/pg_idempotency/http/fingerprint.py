"""What makes two requests the same: method, target and body."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, Optional

from ..model import Json


DEEPEST = 200
LONGEST_NUMBER = 1000
LONGEST_EXPONENT = 4


def refuse_constant(name: str) -> Any:
    """Python reads NaN and Infinity, which JSON does not have."""
    raise ValueError(name)


def storable_number(text: str) -> None:
    """Raises ValueError for a number that jsonb may not hold."""
    if len(text) > LONGEST_NUMBER or len(text.lower().partition("e")[2]) > LONGEST_EXPONENT:
        raise ValueError(text)


def is_shallow(text: str) -> bool:
    """Whether jsonb takes the depth of a text that is JSON."""
    depth = 0
    for mark in re.findall(r'"[^"\\]*(?:\\.[^"\\]*)*"|[][{}]', text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(mark, 0)
        if depth > DEEPEST:
            return False
    return True


def media_type(content_type: Optional[str]) -> str:
    """The type without parameters, in lower case."""
    return (content_type or "").split(";", 1)[0].strip().lower()


def json_text(content_type: Optional[str], body: bytes) -> Optional[str]:
    """The body as text, if it is JSON by its type and in fact, and jsonb can hold it; else None."""
    kind = media_type(content_type)
    if kind != "application/json" and not kind.endswith("+json"):
        return None
    try:
        text = body.decode("utf-8")
        json.loads(text, parse_constant=refuse_constant, parse_int=storable_number, parse_float=storable_number)
    except (ValueError, RecursionError):
        return None
    return text if is_shallow(text) else None


def fingerprint(method: str, target: str, content_type: Optional[str], body: bytes, own: Optional[str] = None) -> Json:
    """The request as idem_begin compares it. ``own``: JSON text of the service in place of type and body.

    A JSON body goes in as it is: the order of its members does not matter to jsonb, and no number loses a digit,
    as it would on the way through Python. Any other body counts by its SHA-256.
    The packages for all languages make the same: clients/conformance/spellings.json.
    """
    head = {"method": method, "target": target}
    if own is not None:
        return Json(json.dumps(head)[:-1] + ', "own": ' + own + "}")
    text = json_text(content_type, body)
    if text is None:
        text = json.dumps("sha256:" + hashlib.sha256(body).hexdigest()) if body else "null"
    return Json(json.dumps({**head, "type": media_type(content_type)})[:-1] + ', "body": ' + text + "}")
