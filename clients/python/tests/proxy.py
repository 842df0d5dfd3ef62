"""A proxy between clients and the server: it counts round trips, and cuts connections.

A round trip is a ReadyForQuery that the server sends, or a Flush of the client.
Cuts: "commit" lets a COMMIT through, waits until the server has done it, and then
cuts; "before commit" cuts in place of handing a COMMIT on, and waits until the
server has noticed. While ``flowing`` is not set, no answer comes through: the network hangs.
"""

import os
import socket
import threading

from fault_proxy import messages, receive_startup


class Proxy:
    """Listens in a directory of its own, as a server does."""

    def __init__(self, directory, upstream):
        self.directory = str(directory)
        self.upstream = upstream
        self.trips = 0
        self.flushes = 0
        self.cuts = 0
        self.armed = None
        self.flowing = threading.Event()
        self.flowing.set()
        self.word = b""
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(os.path.join(self.directory, ".s.PGSQL.5432"))
        self.listener.listen(64)
        threading.Thread(target=self.accept, daemon=True).start()

    def arm(self, cut, word=b"COMMIT\0"):
        """The next COMMIT is cut, or the next statement that has another word."""
        self.word = word
        self.armed = cut

    def reset(self):
        """Counts from zero."""
        self.trips = self.flushes = 0

    def accept(self):
        while True:
            try:
                down, _ = self.listener.accept()
            except OSError:
                return
            up = socket.socket(socket.AF_UNIX)
            up.connect(self.upstream)
            pair = Pair(self, down, up)
            threading.Thread(target=pair.requests, daemon=True).start()
            threading.Thread(target=pair.answers, daemon=True).start()

    def close(self):
        self.listener.close()


class Pair:
    """One client's connection."""

    def __init__(self, proxy, down, up):
        self.proxy = proxy
        self.down = down
        self.up = up
        self.cutting = False

    def requests(self):
        """From the client to the server."""
        try:
            self.up.sendall(self.startup())
            for kind, whole in messages(self.down):
                if kind == b"H":
                    self.proxy.flushes += 1
                if kind in b"QP" and self.proxy.armed and self.proxy.word in whole:
                    cut, self.proxy.armed = self.proxy.armed, None
                    if cut == "before commit":
                        self.proxy.cuts += 1
                        # the client hears of it when the server has rolled back, and ended
                        self.up.shutdown(socket.SHUT_WR)
                        return
                    self.cutting = True
                self.up.sendall(whole)
        except OSError:
            pass
        self.close()

    def startup(self):
        """The first message has no kind."""
        return receive_startup(self.down)

    def answers(self):
        """From the server to the client."""
        try:
            for kind, whole in messages(self.up):
                if kind == b"Z":
                    self.proxy.trips += 1
                    if self.cutting:
                        self.proxy.cuts += 1
                        break
                self.proxy.flowing.wait()
                if not self.cutting:
                    self.down.sendall(whole)
        except OSError:
            pass
        self.close()

    def close(self):
        for end in (self.down, self.up):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
