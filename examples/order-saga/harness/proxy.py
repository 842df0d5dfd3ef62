"""Stands between a program and its database or broker, and kills the program at a given point. So the programs hold
no code for tests."""

import socket
import threading

from wire import Amqp, Postgres


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
        """Whether the program has died here."""
        with self.lock:
            self.seen[point] = self.seen.get(point, 0) + 1
            if self.armed != point:
                return False
            self.armed = None
        self.kill()
        return True


class Proxy:
    """Listens on a port of its own. ``target()`` gives a new connection to the real one."""

    def __init__(self, tap, protocol, target):
        self.tap = tap
        self.protocol = protocol
        self.target = target
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        """One pair of connections after the other."""
        while True:
            client, _ = self.listener.accept()
            try:
                server = self.target()
            except OSError:
                client.close()
                continue
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            reader = self.protocol()
            for direction, source, sink in (("out", client, server), ("in", server, client)):
                threading.Thread(target=self.pump, args=(reader, direction, source, sink), daemon=True).start()

    def pump(self, reader, direction, source, sink):
        """Message by message, until one side is gone or the program is killed."""
        try:
            while data := source.recv(65536):
                for part, point in reader.cut(direction, data):
                    if point and self.tap.pass_by(point):
                        return
                    sink.sendall(part)
        except OSError:
            pass
        finally:
            for each in (source, sink):
                close(each)


def close(connection):
    """Wakes whoever reads from it."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    connection.close()


def protocol_of(kind):
    """Of "database" or "broker"."""
    return {"database": Postgres, "broker": Amqp}[kind]
