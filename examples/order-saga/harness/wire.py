"""Reads what goes over the wires: which statements a program sends to PostgreSQL, and which messages to RabbitMQ.

A reader takes the bytes of one direction and cuts them into parts, each with
the point that it is, or None: ("before", statement) or ("after", statement).
"""

import re
import struct
from collections import deque


class Postgres:
    """Both directions of one connection. Statements are known by their text."""

    def __init__(self):
        self.texts = {}
        self.bound = None
        self.running = deque()
        self.started = False
        self.rest = {"out": b"", "in": b""}

    def cut(self, direction, data):
        """Whole messages, each with its point."""
        data = self.rest[direction] + data
        while True:
            head = 1 if self.started or direction == "in" else 0
            if len(data) < head + 4:
                break
            size = head + struct.unpack_from("!i", data, head)[0]
            if len(data) < size:
                break
            message, data = data[:size], data[size:]
            if head == 0:
                self.started = True
                yield message, None
            else:
                yield message, self.sent(message) if direction == "out" else self.came(message)
        self.rest[direction] = data

    def sent(self, message):
        """Of Query, Parse, Bind and Execute."""
        kind = message[:1]
        if kind == b"P":
            name, text = message[5:].split(b"\0")[:2]
            self.texts[name] = name_of(text)
        elif kind == b"B":
            self.bound = self.texts.get(message[5:].split(b"\0")[1])
        elif kind in b"EQ":
            statement = self.bound if kind == b"E" else name_of(message[5:-1])
            self.running.append(statement)
            return "before", statement
        return None

    def came(self, message):
        """Of the end of a statement; when the server is ready, all have ended."""
        kind = message[:1]
        if kind == b"Z":
            self.running.clear()
        if kind in b"CIs" and self.running:
            return "after", self.running.popleft()
        return None


def name_of(text):
    """The beginning of a statement, without what differs from order to order."""
    text = re.sub(r"\s+", " ", text.decode()).strip()
    return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "…", text)[:70]


PUBLISH, DELIVER, ACK = 40, 60, 80


class Amqp:
    """Both directions of one connection. Only what concerns messages is a point."""

    def __init__(self):
        self.greeted = False
        self.rest = {"out": b"", "in": b""}

    def cut(self, direction, data):
        """Whole frames, each with its point."""
        data = self.rest[direction] + data
        if direction == "out" and not self.greeted and len(data) >= 8:
            self.greeted = True
            yield data[:8], None
            data = data[8:]
        while len(data) >= 7:
            size = 8 + struct.unpack_from("!I", data, 3)[0]
            if len(data) < size:
                break
            frame, data = data[:size], data[size:]
            yield frame, point_of(direction, frame)
        self.rest[direction] = data


def point_of(direction, frame):
    """Of basic.publish, basic.deliver, basic.ack, and the broker's confirmation."""
    kind, size = frame[0], len(frame)
    if kind != 1 or size < 12 or struct.unpack_from("!H", frame, 7)[0] != 60:
        return None
    method = struct.unpack_from("!H", frame, 9)[0]
    if method == PUBLISH:
        return "before", "publish " + short_strings(frame, 13, 2)[1]
    if method == DELIVER:
        tag = frame[11]
        return "before", "deliver " + short_strings(frame, 12 + tag + 9, 2)[1]
    if method == ACK:
        return ("before", "ack") if direction == "out" else ("after", "publish")
    return None


def short_strings(frame, at, count):
    """AMQP's strings of one byte of length."""
    found = []
    for _ in range(count):
        found.append(frame[at + 1:at + 1 + frame[at]].decode())
        at += 1 + frame[at]
    return found
