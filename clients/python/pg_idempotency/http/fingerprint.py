"""What makes two requests the same: method, target and body."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Optional

from ..model import Json


def refuse_constant(name: str) -> Any:
    """Python reads NaN and Infinity, which JSON does not have."""
    raise ValueError(name)


def media_type(content_type: Optional[str]) -> str:
    """The type without parameters, in lower case."""
    return (content_type or "").split(";", 1)[0].strip().lower()


def json_text(content_type: Optional[str], body: bytes) -> Optional[str]:
    """The body as text, if it is JSON by its type and in fact; else None."""
    kind = media_type(content_type)
    if kind != "application/json" and not kind.endswith("+json"):
        return None
    try:
        text = body.decode("utf-8")
        json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        return None
    return text


def fingerprint(method: str, target: str, content_type: Optional[str], body: bytes, own: Optional[str] = None) -> Json:
    """The request as idem_begin compares it. ``own``: JSON text of the service in place of type and body.

    A JSON body goes in as it is: the order of its members does not matter to jsonb, and no number loses a digit,
    as it would on the way through Python. Any other body counts by its SHA-256.
    """
    head = {"method": method, "target": target}
    if own is not None:
        return Json(json.dumps(head)[:-1] + ', "own": ' + own + "}")
    text = json_text(content_type, body)
    if text is None:
        text = json.dumps("sha256:" + hashlib.sha256(body).hexdigest()) if body else "null"
    return Json(json.dumps({**head, "type": media_type(content_type)})[:-1] + ', "body": ' + text + "}")
