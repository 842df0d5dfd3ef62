"""Reads a key from a header: a string of RFC 8941, or the same characters without quotes."""

from __future__ import annotations

import re
from typing import Optional, Sequence

LONGEST = 255
# without quotes: visible ASCII without what delimits strings, lists and parameters
BARE = re.compile(r"[!#-'*+\--:<-\[\]-~]+")
# RFC 8941, 3.3.3: printable ASCII; a quote and a backslash are escaped. Parameters may follow, and are ignored (3.1.2)
STRING = r'"((?:[\x20-\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"'
QUOTED = re.compile(rf"{STRING}(?:; *[a-z*][a-z0-9_.*-]*(?:={BARE.pattern}|={STRING})?)*")


class BadKey(Exception):
    """The header is no key. The message may be shown to a client, and does not have the header."""


def read_key(values: Sequence[str], strict: bool) -> Optional[str]:
    """The key of all values of the header, or None where there is no header. Raises BadKey.

    ``strict``: only a string in quotes is a key. The quoted and the bare spelling are one key.
    """
    if not values:
        return None
    if len(values) > 1:
        raise BadKey("There is more than one idempotency key.")
    value = values[0].strip(" \t")
    key = unquote(value)
    if key is None and not strict and BARE.fullmatch(value):
        key = value
    if key is None:
        raise BadKey("The idempotency key is malformed.")
    if not key:
        raise BadKey("The idempotency key is empty.")
    if len(key) > LONGEST:
        raise BadKey(f"The idempotency key has more than {LONGEST} characters.")
    return key


def unquote(value: str) -> Optional[str]:
    """The characters of a string in quotes, or None where it is none."""
    match = QUOTED.fullmatch(value)
    return None if match is None else re.sub(r"\\(.)", r"\1", match[1])
