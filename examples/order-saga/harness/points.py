"""Kills a program at a given point of what it says to its database or broker: the proxy of test/kit stands between
them. So the programs hold no code for tests. A point is ("before", statement) or ("after", statement)."""

import functools
import re
import struct
import threading
from collections import deque

from fault_proxy import Proxy, Session, connect_to, exactly, listen_at, messages

PUBLISH, DELIVER, ACK = 40, 60, 80


class Wiretap:
    """One program's points: what it has come by, and where it is to die."""

    def __init__(self):
        self.seen = {}    # point => how often, in the order of the first time
        self.armed = None
        self.kill = None
        self.lock = threading.Lock()

    def arm(self, point):
        """Dies there, the next time."""
        with self.lock:
            self.armed = point

    def disarm(self):
        """Whether it has died."""
        with self.lock:
            died, self.armed = self.armed is None, None
            return died

    def pass_by(self, point):
        """Raises OSError, which ends the connection, if the program has died here."""
        with self.lock:
            self.seen[point] = self.seen.get(point, 0) + 1
            if self.armed != point:
                return
            self.armed = None
        self.kill()
        raise ConnectionAbortedError


def stand_before(upstream, kind, tap):
    """The port of a proxy before a "database" or a "broker"; ``upstream`` as the proxy knows it."""
    listener = listen_at("-")
    Proxy(listener, lambda: connect_to(upstream), functools.partial({"database": Postgres, "broker": Amqp}[kind], tap))
    return listener.getsockname()[1]


class Postgres(Session):
    """Statements are known by their text."""

    def __init__(self, tap, *ends):
        super().__init__(*ends)
        self.tap = tap
        self.running = deque()

    def read(self, kind, body):
        if kind in b"QPB":
            text, _ = self.texts_of(kind, body)
            if kind != b"P":
                self.running.append(name_of(text))
                self.tap.pass_by(("before", self.running[-1]))

    def answers(self):
        """The end of a statement is a point; when the server is ready, all have ended."""
        for kind, whole in messages(self.up):
            if kind == b"Z":
                self.running.clear()
            if kind in b"CIs" and self.running:
                self.tap.pass_by(("after", self.running.popleft()))
            self.down.sendall(whole)


def name_of(text):
    """The beginning of a statement, without what differs from order to order."""
    text = re.sub(r"\s+", " ", text.decode()).strip()
    return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "…", text)[:70]


class Amqp(Session):
    """Only what concerns messages is a point."""

    def __init__(self, tap, *ends):
        super().__init__(*ends)
        self.tap = tap

    def requests(self):
        """After the name of the protocol."""
        self.up.sendall(exactly(self.down, 8))
        self.hand_on("out", self.down, self.up)

    def answers(self):
        self.hand_on("in", self.up, self.down)

    def hand_on(self, direction, source, sink):
        while True:
            head = exactly(source, 7)
            frame = head + exactly(source, struct.unpack_from("!I", head, 3)[0] + 1)
            point = point_of(direction, frame)
            if point:
                self.tap.pass_by(point)
            sink.sendall(frame)


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
