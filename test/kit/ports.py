"""Ports of the loopback that nobody listens on."""

import contextlib
import random
import socket


def free_ports(count):
    """Below those that the system gives to clients: hardly anybody gets one meanwhile."""
    with contextlib.ExitStack() as stack:
        sockets = []
        while len(sockets) < count:
            with contextlib.suppress(OSError):
                sockets.append(stack.enter_context(socket.create_server(("127.0.0.1", random.randrange(20000, 32768)))))
        return [each.getsockname()[1] for each in sockets]
