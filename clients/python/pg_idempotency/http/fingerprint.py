"""What makes two requests the same: method, target and body."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, List, Mapping, Optional, Sequence
from urllib.parse import quote, unquote

from ..model import Json


DEEPEST = 200
LONGEST_NUMBER = 1000
LONGEST_EXPONENT = 4


class NotJson(Exception):
    """A body is no JSON, although its type says so."""


def target_of(path: str, raw_path: Optional[str], query: str, encoding: str = "utf-8") -> str:
    """Path and query of a request, as the client sent them where the server says so.

    ``path``: decoded by ``encoding``. ``raw_path``: percent-encoded, or None. One that is not that of ``path`` does not count:
    somebody has changed the path since, and two requests must not be taken for one. An escaped path is as good, as the
    application sees no more. A question mark without a query is none, which ASGI does not tell of.
    """
    if raw_path is None or unquote(raw_path, encoding) != path:
        raw_path = quote(path, "/!$&'()*+,;=:@~", encoding)
    return raw_path + ("?" + query if query else "")


def target_of_wsgi(environ: Mapping[str, Any], path: str, encoding: str) -> str:
    """The target under WSGI, which has the raw one where a server adds it: gunicorn, uWSGI, mod_wsgi, Werkzeug."""
    raw = environ.get("RAW_URI") or environ.get("REQUEST_URI")
    return target_of(path, raw and raw.split("?", 1)[0], environ.get("QUERY_STRING", ""), encoding)


def target_of_asgi(scope: Mapping[str, Any]) -> str:
    """The target under ASGI."""
    raw = scope.get("raw_path")
    query = scope.get("query_string", b"")
    text = query if isinstance(query, str) else query.decode("latin-1")     # that of Django's AsyncClient is text
    return target_of(scope["path"], raw and raw.decode("latin-1").split("?", 1)[0], text)


def refuse_constant(name: str) -> Any:
    """Python reads NaN and Infinity, which JSON does not have."""
    raise ValueError(name)


def is_storable_number(text: str) -> bool:
    """Whether jsonb can hold a number, to be on the safe side."""
    return len(text) <= LONGEST_NUMBER and len(text.lower().partition("e")[2]) <= LONGEST_EXPONENT


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


def is_json(content_type: Optional[str]) -> bool:
    """Whether a body is JSON by its type."""
    kind = media_type(content_type)
    return kind == "application/json" or kind.endswith("+json")


def json_text(body: bytes) -> Optional[str]:
    """JSON as text, if jsonb can hold it; else None. Raises NotJson."""
    text = body.decode("utf-8", "replace")
    numbers: List[str] = []
    try:
        json.loads(text, parse_constant=refuse_constant, parse_int=numbers.append, parse_float=numbers.append)
    except RecursionError:
        return None
    except ValueError as error:
        raise NotJson() from error
    is_storable = text.encode() == body and is_shallow(text) and all(map(is_storable_number, numbers))
    return text if is_storable else None


def fingerprint(method: str, target: str, content_type: Optional[str], encodings: Sequence[str], body: bytes,
                own: Optional[str] = None) -> Json:
    """The request as idem_begin compares it. ``own``: JSON text of the service in place of type and body. Raises NotJson.

    A JSON body goes in as it is: the order of its members does not matter to jsonb, and no number loses a digit,
    as it would on the way through Python. Any other body counts by its SHA-256, and so do the bytes of one that has a
    Content-Encoding (``encodings``): what they stand for is not known here.
    The packages for all languages make the same: clients/conformance/spellings.json.
    """
    head = {"method": method, "target": target}
    if own is not None:
        return Json(json.dumps(head)[:-1] + ', "own": ' + own + "}")
    is_encoded = any(one.strip().lower() not in ("", "identity") for one in encodings)
    text = json_text(body) if body and is_json(content_type) and not is_encoded else None
    if text is None:
        text = json.dumps("sha256:" + hashlib.sha256(body).hexdigest()) if body else "null"
    return Json(json.dumps({**head, "type": media_type(content_type)})[:-1] + ', "body": ' + text + "}")
