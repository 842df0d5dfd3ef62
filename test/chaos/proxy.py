"""Stands between some clients and the server, and loses answers to COMMIT: committed, and
nobody gets the answer. A call of idem_call outside of a transaction commits, too."""

import os
import signal
import socket

import fault_proxy


class Proxy(fault_proxy.Proxy):
    """Armed and its cuts are shared with the controller. Connects to whichever server is the primary now."""

    def __init__(self, directory, target, armed, cuts):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(os.path.join(directory, ".s.PGSQL.5432"))
        listener.listen(64)
        super().__init__(listener, self.connect_to_primary, also=(b"idem_call(",))
        self.target = target
        self.armed = armed
        self.cuts = cuts

    def connect_to_primary(self):
        with open(self.target, encoding="utf-8") as file:
            return fault_proxy.connect_to_socket(os.path.join(file.read(), ".s.PGSQL.5432"))

    def take_fault(self):
        with self.lock:
            if self.armed.value <= 0:
                return None
            self.armed.value -= 1
            return "lose"

    def hit(self):
        with self.lock:
            self.cuts.value += 1

    def give_back(self, fault):
        with self.lock:
            self.armed.value += 1


def serve(directory, target, armed, cuts):
    """Runs until it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Proxy(directory, target, armed, cuts).serve()
