"""A payment gateway outside the database: a process of its own, with a file of its own.

It charges once per key, remembers the greatest fence that it has seen of each key, and
refuses smaller ones. A charge is on disk before it is answered.
"""

import json
import os
import signal
import socket
import socketserver
import threading


class Book:
    """The charges that were made, and the fences that were seen."""

    def __init__(self, path):
        self.lock = threading.Lock()
        self.charges = {}
        self.fences = {}
        self.file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)

    def charge(self, key, fence, amount):
        """Charges, or answers with what it did before; a smaller fence is refused."""
        with self.lock:
            if fence < self.fences.get(key, 0):
                self.note("refused", key, fence, amount)
                return {"refused": True}
            self.fences[key] = fence
            if key not in self.charges:
                self.note("charged", key, fence, amount)
                self.charges[key] = f"ch-{len(self.charges)}"
            return {"charge": self.charges[key]}

    def status(self, key):
        """What whoever takes over asks first."""
        with self.lock:
            return {"charge": self.charges.get(key)}

    def note(self, event, key, fence, amount):
        """Writes a line, and waits until it is on disk."""
        line = json.dumps({"event": event, "key": key, "fence": fence, "amount": amount})
        os.write(self.file, (line + "\n").encode())
        os.fsync(self.file)


class Handler(socketserver.StreamRequestHandler):
    """One client; a request and an answer are a line each."""

    def handle(self):
        for line in self.rfile:
            request = json.loads(line)
            action = getattr(self.server.book, request.pop("do"))
            self.wfile.write((json.dumps(action(**request)) + "\n").encode())


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Listens on a socket, with a thread for each client."""

    daemon_threads = True


def serve(path, file):
    """Runs until it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = Server(path, Handler)
    server.book = Book(file)
    server.serve_forever()


class Gateway:
    """A client's connection."""

    def __init__(self, path):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        self.stream = connection.makefile("rw")

    def ask(self, **request):
        self.stream.write(json.dumps(request) + "\n")
        self.stream.flush()
        return json.loads(self.stream.readline())
