#!/usr/bin/env -S --block-signal=INT /usr/bin/python3
"""The message file: reading and checking it (messages.py --check FILE); and writing
the payments that the demo uses without a file (messages.py 1000)."""

import interrupts  # noqa: F401

import json
import os
import random
import signal
import sys
from dataclasses import dataclass

LONGEST_KEY = 255
LARGEST_AMOUNT = 10**12
MOST_LINES = 100_000
METHODS = ("wallet", "card")


class InputError(Exception):
    """The message file cannot be used; the text says why and where."""


@dataclass(frozen=True)
class Message:
    """One payment as sent; body is the whole JSON object."""

    body: dict

    @property
    def id(self):
        return self.body["id"]

    @property
    def account(self):
        return self.body["account"]

    @property
    def amount(self):
        return self.body["amount"]

    @property
    def method(self):
        return self.body["method"]


@dataclass
class MessageFile:
    """The content of a file: its messages, in order and each id once; how many
    more identical lines an id has; and the lines that use an id again with
    another body."""

    messages: list
    more_copies: dict
    conflicts: list


def read_messages(lines, name):
    """A MessageFile, or InputError at the first wrong line."""
    seen, more_copies, conflicts = {}, {}, []
    try:
        for number, line in enumerate(lines, 1):
            if number > MOST_LINES:
                raise InputError(f"{name}: more than {MOST_LINES} lines")
            if not line.strip():
                continue
            message = parse_line(line, f"{name}:{number}")
            first = seen.setdefault(message.id, message)
            if first.body != message.body:
                conflicts.append(message)
            elif first is not message:
                more_copies[message.id] = more_copies.get(message.id, 0) + 1
    except UnicodeDecodeError:
        raise InputError(f"{name}: is not UTF-8 text") from None
    if not seen:
        raise InputError(f"{name}: holds no messages")
    return MessageFile(list(seen.values()), more_copies, conflicts)


def parse_line(line, where):
    """The Message in this line; every string in it is one that PostgreSQL can store."""
    try:
        line = line.strip()
        body = json.loads(line, parse_constant=reject_constant)
        text = json.dumps(body, ensure_ascii=False, allow_nan=False)
        text.encode()
    except json.JSONDecodeError as error:
        if is_cut_off(line, error):
            raise InputError(f"{where}: ends in the middle of a JSON object, after column {len(line)}") from None
        raise InputError(f"{where}: is not JSON: {error.msg} (column {error.colno})") from None
    except (ValueError, RecursionError):
        raise InputError(f"{where}: holds a value that PostgreSQL's jsonb cannot") from None
    if "\\u0000" in text.replace("\\\\", ""):
        raise InputError(f"{where}: holds a NUL character")
    if not isinstance(body, dict):
        raise InputError(f"{where}: is not a JSON object")
    for problem in problems(body):
        raise InputError(f"{where}: {problem}")
    return Message(body)


def is_cut_off(line, error):
    """Whether the line would be right so far if more came."""
    return line.startswith("{") and (error.pos >= len(line) or error.msg.startswith("Unterminated string"))


def reject_constant(name):
    """NaN and Infinity are not JSON, though Python reads them."""
    raise ValueError(name)


def problems(body):
    """Each mistake in the fields of a message, as a sentence."""
    for field in ("id", "type", "order", "account", "amount", "method"):
        if field not in body:
            yield f'"{field}" is missing'
    for field in ("id", "order", "account"):
        value = body[field]
        if not isinstance(value, str) or not 1 <= len(value) <= LONGEST_KEY:
            yield f'"{field}" must be a string of 1 to {LONGEST_KEY} characters'
    if body["type"] != "payment":
        yield '"type" must be "payment"'
    if body["method"] not in METHODS:
        yield '"method" must be "wallet" or "card"'
    amount = body["amount"]
    if not isinstance(amount, int) or isinstance(amount, bool):
        yield '"amount" must be a whole number of cents'
    elif not 0 < amount <= LARGEST_AMOUNT:
        yield f'"amount" must be from 1 to {LARGEST_AMOUNT} cents'


def open_and_read(path, name=None):
    """read_messages of the file at path, or of standard input for '-'."""
    name = printable(name or path)
    if path == "-":
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="strict")
        return read_messages(sys.stdin, name)
    if os.path.exists(path) and not os.path.isfile(path):
        raise InputError(f"{name}: is not a regular file")
    try:
        with open(path, encoding="utf-8-sig") as lines:
            return read_messages(lines, name)
    except OSError as error:
        raise InputError(f"{name}: {error.strerror}") from None


def printable(text):
    """The text without control characters for a terminal."""
    return "".join(c if c.isascii() and c.isprintable() else ascii(c)[1:-1] for c in text)


def write_sample(count, out):
    """Writes count payments, the same bytes every time. payments.jsonl has the first ten."""
    rng = random.Random("payments.jsonl")
    for number in range(1, count + 1):
        body = {
            "id": f"evt-{number:06}",
            "type": "payment",
            "order": f"order-{number}",
            "account": f"acct-{rng.randint(1, 60)}",
            "amount": int(rng.lognormvariate(8, 0.9)) + 99,
            "method": rng.choices(METHODS, weights=(65, 35))[0],
        }
        out.write(json.dumps(body) + "\n")


def main():
    """messages.py 1000: writes a sample; messages.py --check FILE: whether it can be used."""
    if sys.argv[1] != "--check":
        write_sample(int(sys.argv[1]), sys.stdout)
        return 0
    try:
        open_and_read(sys.argv[2])
    except InputError as problem:
        print(f"demo: {problem}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    # a reader that is gone ends it without a word
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
