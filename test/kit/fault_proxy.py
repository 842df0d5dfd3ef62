"""Stands between clients and the server, reads what they say, and does what a network does.

    python3 fault_proxy.py LISTEN UPSTREAM

LISTEN is "-" for a port of the loopback, or the path of a socket. UPSTREAM is the path of a
server's socket, HOST:PORT, or @FILE, which names the directory of the socket anew for each
connection. The first line of the output is the port. Then each line of the input is an order,
["arm", "lose"], and each line of the output its result, when it is in force. The program ends
with its input. Suites in Python import Proxy: the orders are its public methods.
"""

import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading

FAILING = b"SELECT 1/0\0"
ENCRYPTION = (struct.pack("!I", 80877103), struct.pack("!I", 80877104))      # requests for TLS and GSSAPI
COMMIT = r"(^|;)\s*(commit|end(\s+(work|transaction))?\s*(;|$))"
INSERT = re.compile(rb"\binsert\s+into\b", re.I)
BORDER = re.compile(rb"^\s*(begin|start|commit|end|rollback)\b", re.I)
ACTIONS = ("before", "after", "lose", "hold", "rollback")


class Fault:
    """What happens to the next statement that matches the pattern."""

    def __init__(self, action, pattern, inserted):
        if action not in ACTIONS:
            raise ValueError(f"no such fault: {action}")
        self.action, self.inserted = action, inserted
        self.pattern = re.compile(pattern.encode(), re.I)


class Proxy:
    """Accepts clients at a listening socket, and connects each to where `connect` leads. Who reads
    something else than faults in what is said gives a `session` of its own."""

    def __init__(self, listener, connect, session=None):
        self.listener, self.connect, self.session = listener, connect, session or Session
        self.lock = threading.Lock()
        self.sessions = set()
        self.flowing = threading.Event()
        self.flowing.set()
        self.refusing = False
        self.fault = self.trip = None
        self.reset()
        threading.Thread(target=self.serve, daemon=True).start()

    def reset(self):
        """Counts from zero: faults that happened, round trips, and Flushes of clients. Forgets the statements."""
        with self.lock:
            self.hits = self.trips = self.flushes = 0
            self.statements = []

    def state(self):
        with self.lock:
            return {"hits": self.hits, "trips": self.trips, "flushes": self.flushes}

    def texts(self):
        return list(self.statements)

    def arm(self, action, pattern=COMMIT, inserted=False):
        """What happens to the next statement that matches, if only in a transaction that inserted a row:

        before    the connection ends before the server gets it; the client hears of it when the server has ended, too
        after     the server executes it, and the connection ends before the answer
        lose      the same, where it ends a transaction
        hold      as lose, but the connection stays, and nothing passes on it any more
        rollback  a statement fails just before it, so that the answer to a COMMIT is ROLLBACK

        What fails is no hit: its answer passes, and the fault waits for the next one.
        """
        self.fault = Fault(action, pattern, inserted)

    def arm_trip(self, action, number):
        """The connection with that round trip, from now on, ends in place of its answer ("cut"), or hangs ("hold")."""
        with self.lock:
            self.trip = [number, action]

    def disarm(self):
        """The next fault does not happen."""
        self.fault = self.trip = None

    def hang(self):
        """Nothing passes until it flows again, and nothing ends."""
        self.flowing.clear()

    def flow(self):
        """What has come in the meantime passes, too."""
        self.flowing.set()

    def cut(self):
        with self.lock:
            for session in self.sessions:
                session.end()

    def refuse(self):
        """Ends all connections, and each new one at once."""
        self.refusing = True
        self.cut()

    def admit(self):
        """After a refusal."""
        self.refusing = False

    def close(self):
        self.refuse()
        self.listener.close()

    def take_fault(self, inserted, text, parsed=b""):
        """The fault of a statement that is to be executed, or is only parsed."""
        with self.lock:
            fault = self.fault
            # our failing statement would drop an unnamed one between Parse and Bind
            if not fault or not fault.pattern.search((parsed or text) if fault.action == "rollback" else text):
                return None
            if fault.inserted and not inserted:
                return None
            self.fault = None
            return fault

    def give_back(self, fault):
        """It waits for the next statement, if no other does."""
        with self.lock:
            self.fault = self.fault or fault

    def hit(self):
        with self.lock:
            self.hits += 1

    def count_trip(self):
        """What is armed for this round trip."""
        with self.lock:
            self.trips += 1
            if not self.trip:
                return None
            self.trip[0] -= 1
            if self.trip[0] > 0:
                return None
            action, self.trip = self.trip[1], None
            self.hits += 1
            return action

    def serve(self):
        while True:
            try:
                down, _ = self.listener.accept()
            except OSError:
                return
            try:
                up = self.connect()
            except OSError:
                down.close()
                continue
            session = self.session(self, down, up)
            with self.lock:
                self.sessions.add(session)
            if self.refusing:
                session.end()
            session.start()


class Session:
    """One connection of a client. `asked` and `answered` number the messages Query and Sync, and
    the ReadyForQuery that each gets; the first of these ends the start."""

    def __init__(self, proxy, down, up):
        self.proxy, self.down, self.up = proxy, down, up
        for end in (down, up):
            if end.family != socket.AF_UNIX:
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.statements = {}        # name of a prepared statement: its text
        self.inserted = False       # the open transaction did
        self.asked, self.answered = 1, 0
        self.doom = None            # the fault of the statement whose answer has the number `doomed`
        self.doomed = 0
        self.held = []
        self.deaf = self.mute = False           # requests, answers do not pass any more
        self.failing = False        # the answer to our failing statement is awaited
        self.failed = threading.Event()

    def start(self):
        """Hands on in both directions until one side ends."""
        for direction in (self.requests, self.answers):
            threading.Thread(target=self.until_the_end, args=(direction,), daemon=True).start()

    def until_the_end(self, direction):
        try:
            direction()
        except OSError:
            pass
        self.end()
        with self.proxy.lock:
            self.proxy.sessions.discard(self)

    def end(self):
        """Wakes whoever reads from it."""
        self.failed.set()
        for end in (self.down, self.up):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def requests(self):
        """From the client to the server. Encryption is refused, as we read what is said."""
        startup = receive_startup(self.down)
        while startup[4:8] in ENCRYPTION:
            self.down.sendall(b"N")
            startup = receive_startup(self.down)
        self.up.sendall(startup)
        for kind, whole in messages(self.down):
            self.proxy.flowing.wait()
            self.read(kind, whole[5:])
            if not self.deaf:
                self.up.sendall(whole)

    def read(self, kind, body):
        """A message of the client, before it passes."""
        if kind in b"QPB":
            self.strike(*self.texts_of(kind, body))
        if kind in b"QS":
            self.asked += 1
        if kind == b"H":
            self.proxy.flushes += 1

    def texts_of(self, kind, body):
        """What a message executes, and what it only parses, without a name."""
        text = parsed = b""
        if kind == b"Q":
            text = body[:-1]
            self.proxy.statements.append(text.decode(errors="replace"))
        elif kind == b"P":
            name, statement = body.split(b"\0")[:2]
            self.statements[name] = statement
            self.proxy.statements.append(statement.decode(errors="replace"))
            parsed = b"" if name else statement
        else:
            text = self.statements.get(body.split(b"\0")[1], b"")
        return text, parsed

    def strike(self, text, parsed):
        """Does the fault of a statement, or begins it."""
        begins = bool(BORDER.search(text))
        inserted = bool(INSERT.search(text)) or self.inserted
        fault = None if self.deaf or self.doom else self.proxy.take_fault(inserted, text, parsed)
        self.inserted = inserted and (not begins or bool(INSERT.search(text)))
        if not fault:
            return
        if fault.action == "before":
            self.proxy.hit()
            self.deaf = True
            self.up.shutdown(socket.SHUT_WR)
        elif fault.action == "rollback":
            self.failing = True
            self.up.sendall(b"Q" + struct.pack("!I", len(FAILING) + 4) + FAILING)
            self.failed.wait()
            self.proxy.hit()
        else:
            self.doomed = self.asked + 1
            self.doom = fault

    def answers(self):
        for kind, whole in messages(self.up):
            self.proxy.flowing.wait()
            if self.mute:
                continue
            if self.failing and kind in b"EZ" and self.answered == self.asked:
                self.note_failure(kind)
                continue
            if kind == b"C" and whole[5:].startswith(b"INSERT"):
                self.inserted = True
            passing = self.hold(whole) if self.doom and self.answered + 1 == self.doomed else whole
            if kind == b"Z":
                self.answered += 1
                passing = self.end_trip(whole, passing)
            if passing is None:
                return
            self.down.sendall(passing)

    def note_failure(self, kind):
        """An error and the end of the query, both of our failing statement."""
        if kind == b"Z":
            self.failing = False
            self.failed.set()

    def hold(self, whole):
        """Answers to what is doomed wait for their end."""
        self.held.append(whole)
        return b""

    def end_trip(self, ready, passing):
        """What passes at the end of a round trip. None: the connection ends."""
        action = self.proxy.count_trip()
        if self.held:
            action, passing = self.end_doom(ready, action)
        if action == "hold":
            self.deaf = self.mute = True
            return b""
        return None if action == "cut" else passing

    def end_doom(self, ready, action):
        """What becomes of the answers that were held."""
        fault, self.doom = self.doom, None
        answers, self.held = self.held, []
        if is_done(answers) and (fault.action == "after" or ready[5:] == b"I"):
            self.proxy.hit()
            return "hold" if fault.action == "hold" else "cut", b""
        self.proxy.give_back(fault)
        return action, b"".join(answers)


def is_done(answers):
    """Whether nothing failed."""
    tags = [answer[5:] for answer in answers if answer[:1] == b"C"]
    return b"ROLLBACK\0" not in tags and all(answer[:1] != b"E" for answer in answers)


def listen_at(where):
    """A port of the loopback, or a socket with a path."""
    if where == "-":
        return socket.create_server(("127.0.0.1", 0))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(where)
    listener.listen(64)
    return listener


def connect_to(where):
    """The server, as UPSTREAM names it."""
    if where.startswith("@"):
        with open(where[1:], encoding="utf-8") as file:
            where = os.path.join(file.read(), ".s.PGSQL.5432")
    if not where.startswith("/"):
        host, port = where.rsplit(":", 1)
        return socket.create_connection((host, int(port)))
    end = socket.socket(socket.AF_UNIX)
    try:
        end.connect(where)
    except OSError:
        end.close()
        raise
    return end


def receive_startup(end):
    """The first message has no kind."""
    head = exactly(end, 4)
    return head + exactly(end, struct.unpack("!I", head)[0] - 4)


def messages(end):
    """Each message: its kind, and all of it."""
    while True:
        head = exactly(end, 5)
        yield head[:1], head + exactly(end, struct.unpack("!I", head[1:])[0] - 4)


def exactly(end, size):
    """That many bytes. Raises OSError at the end of the stream."""
    data = b""
    while len(data) < size:
        more = end.recv(size - len(data))
        if not more:
            raise OSError("end of stream")
        data += more
    return data


class Program:
    """A proxy as a program of its own, beside many clients."""

    def __init__(self, listen, upstream):
        self.process = subprocess.Popen([sys.executable, __file__, listen, upstream], text=True, bufsize=1,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.place = json.loads(self.process.stdout.readline())

    def order(self, *order):
        """Its result, when it is carried out."""
        print(json.dumps(order), file=self.process.stdin)
        return json.loads(self.process.stdout.readline())


def main():
    listener = listen_at(sys.argv[1])
    proxy = Proxy(listener, lambda: connect_to(sys.argv[2]))
    name = listener.getsockname()
    print(json.dumps(name if isinstance(name, str) else name[1]), flush=True)
    for line in sys.stdin:
        order, *arguments = json.loads(line)
        print(json.dumps(getattr(proxy, order)(*arguments)), flush=True)


if __name__ == "__main__":
    main()
