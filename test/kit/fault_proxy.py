"""Stands between clients and the server, and does to a COMMIT what a network or a failed
statement does:

  cut       the connection ends before the server gets the COMMIT
  lose      the server commits, and the connection ends before the answer
  rollback  a statement fails just before the COMMIT, so that its answer is ROLLBACK
"""

import socket
import struct
import threading

FAILING = b"SELECT 1/0\0"
ENCRYPTION = (struct.pack("!I", 80877103), struct.pack("!I", 80877104))      # requests for TLS and GSSAPI
# CommandComplete of what commits: a COMMIT, or a function that is called in autocommit
DONE = (b"COMMIT\0", b"SELECT 1\0")


class Proxy:
    """Accepts clients at a listening socket, and connects each to where `connect` leads.
    A statement that contains one of `also` commits, too."""

    def __init__(self, listener, connect, also=()):
        self.listener = listener
        self.connect = connect
        self.also = also
        self.fault = None
        self.hits = 0
        self.lock = threading.Lock()

    def arm(self, fault):
        """The next COMMIT has this fault."""
        self.fault = fault
        self.hits = 0

    def take_fault(self):
        """The fault for the COMMIT that has just come."""
        with self.lock:
            fault, self.fault = self.fault, None
            return fault

    def hit(self):
        """A fault has happened."""
        self.hits += 1

    def give_back(self, fault):
        """A COMMIT whose answer was to be lost did not commit."""
        self.fault = fault

    def serve(self):
        """For ever."""
        while True:
            down, _ = self.listener.accept()
            try:
                up = self.connect()
            except OSError:
                down.close()
                continue
            Session(self, down, up).start()


class Session:
    """One connection of a client."""

    def __init__(self, proxy, down, up):
        self.proxy, self.down, self.up = proxy, down, up
        self.statements = {}        # name of a prepared statement: its text
        self.held = None            # answers to a COMMIT that may get lost
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
            if self.is_commit(kind, whole[5:]) and not self.let_pass(self.proxy.take_fault()):
                return
            self.up.sendall(whole)

    def is_commit(self, kind, body):
        """Whether a message makes the server commit: a query, or a statement that is
        bound. An unnamed one counts when it is parsed, as a query of ours would drop it."""
        text = b""
        if kind == b"Q":
            text = body
        elif kind == b"P":
            name, parsed = body.split(b"\0")[:2]
            self.statements[name] = parsed if name else b""
            text = b"" if name else parsed
        elif kind == b"B":
            text = self.statements.get(body.split(b"\0")[1], b"")
        return text.strip().upper().startswith(b"COMMIT") or any(word in text for word in self.proxy.also)

    def let_pass(self, fault):
        """Does the fault. False: the COMMIT must not be handed on."""
        if fault == "rollback":
            self.failing = True
            self.up.sendall(b"Q" + struct.pack("!I", len(FAILING) + 4) + FAILING)
            self.failed.wait()
        if fault == "lose":
            self.held = []
        elif fault:
            self.proxy.hit()
        return fault != "cut"

    def answers(self):
        """From the server to the client."""
        for kind, whole in messages(self.up):
            if self.failing and kind in b"EZ":
                self.note_failure(kind)
            elif self.held is None:
                self.down.sendall(whole)
            else:
                self.held.append(whole)
                if kind == b"Z" and self.loses_them(whole):
                    return

    def note_failure(self, kind):
        """An error and the end of the query, both of our failing statement."""
        if kind == b"Z":
            self.failing = False
            self.failed.set()

    def loses_them(self, ready):
        """Whether the answers that are held say that the server has committed."""
        if ready[5:] == b"I" and any(answer[:1] == b"C" and answer[5:] in DONE for answer in self.held):
            self.proxy.hit()
            return True
        answers, self.held = self.held, None
        self.down.sendall(b"".join(answers))
        self.proxy.give_back("lose")
        return False


def connect_to_socket(path):
    """Of a server."""
    end = socket.socket(socket.AF_UNIX)
    try:
        end.connect(path)
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
