"""The card gateway: a program of somebody else, with books of its own in a file.

It does once what it is asked for under one key. A fence that is lower than one it has
seen for the order is refused. At random it is busy, or does what it is asked for
and loses the answer.

    gateway.py PORT FILE SEED FAULTS      FAULTS: how many in a hundred requests
"""

import http.server
import json
import random
import sqlite3
import sys
import threading

TABLES = """
CREATE TABLE IF NOT EXISTS entry (
    key TEXT PRIMARY KEY, kind TEXT, order_id TEXT, charge TEXT, amount INTEGER, status INTEGER);
CREATE TABLE IF NOT EXISTS fence (order_id TEXT PRIMARY KEY, fence INTEGER);
"""


class Books:
    """What has been charged and refunded. A booking is on the disk before it is answered."""

    def __init__(self, file):
        self.database = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
        self.database.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;" + TABLES)
        self.lock = threading.Lock()

    def book(self, kind, key, fence, request):
        """The status and the body of the answer."""
        with self.lock:
            self.database.execute("BEGIN IMMEDIATE")
            answer = self.once(kind, key, fence, request)
            self.database.execute("COMMIT")
        return answer

    def once(self, kind, key, fence, request):
        """Books, unless the key or the fence says that it must not."""
        done = self.database.execute("SELECT status, charge FROM entry WHERE key = ?", (key,)).fetchone()
        if done:
            return done[0], {"id": done[1]}
        order = request["order"]
        seen = self.database.execute("SELECT fence FROM fence WHERE order_id = ?", (order,)).fetchone()
        if seen and seen[0] > fence:
            return 409, {"reason": "stale fence"}
        self.database.execute("INSERT OR REPLACE INTO fence VALUES (?, ?)", (order, fence))
        if kind == "charge":
            status = 402 if request["card"] == "tok_declined" else 201
            charge, amount = f"ch_{key}", request["amount"]
        else:
            status, charge = 201, request["charge"]
            amount, = self.database.execute(
                "SELECT amount FROM entry WHERE kind = 'charge' AND charge = ?", (charge,)).fetchone()
        self.database.execute("INSERT INTO entry VALUES (?, ?, ?, ?, ?, ?)", (key, kind, order, charge, amount, status))
        return status, {"id": charge}


class Handler(http.server.BaseHTTPRequestHandler):
    """POST /charges and POST /refunds."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        """One request, with a fault now and then."""
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        fault = self.server.draw()
        if fault == "busy":
            self.answer(503, {"reason": "busy"})
            return
        kind = {"/charges": "charge", "/refunds": "refund"}[self.path]
        status, body = self.server.books.book(
            kind, self.headers["Idempotency-Key"].strip('"'), int(self.headers["X-Fence"]), request)
        if fault == "lost":
            self.close_connection = True
        else:
            self.answer(status, body)

    def answer(self, status, body):
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        """Says nothing."""


class Server(http.server.ThreadingHTTPServer):
    """The gateway's books and its faults."""

    def __init__(self, port, file, seed, faults):
        super().__init__(("127.0.0.1", port), Handler)
        self.books = Books(file)
        self.random = random.Random(seed)
        self.faults = faults

    def draw(self):
        """None, "busy" or "lost"."""
        return self.random.choice(("busy", "lost")) if self.random.uniform(0, 100) < self.faults else None


if __name__ == "__main__":
    server = Server(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
    print("ready", flush=True)
    server.serve_forever()
