#!/usr/bin/python3
"""A slow network: passes on what clients and the server send, each way half of a round trip later.

    delay.py FOLDER PORT MILLISECONDS

listens on the socket of FOLDER that a server on PORT would have, and passes on to the server that PGHOST names.
Prints a line when it is ready. Threads that sleep: a timer of an event loop would round a delay to whole milliseconds.
"""

import os
import queue
import socket
import sys
import threading
import time

CHUNK = 65536


def pump(source, target, delay):
    """One direction. What comes while something else is on its way is not held up by it."""
    on_the_way = queue.SimpleQueue()
    threading.Thread(target=deliver, args=(on_the_way, target), daemon=True).start()
    while True:
        try:
            data = source.recv(CHUNK)
        except OSError:
            data = b''
        on_the_way.put((time.monotonic() + delay, data))
        if not data:
            return


def deliver(on_the_way, target):
    """Passes each chunk on when its time has come; an empty one is the end."""
    while True:
        due, data = on_the_way.get()
        time.sleep(max(0, due - time.monotonic()))
        try:
            if not data:
                target.shutdown(socket.SHUT_WR)
                return
            target.sendall(data)
        except OSError:
            return


def connected(path):
    """A connection to a Unix socket."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    return connection


def main():
    folder, port, milliseconds = sys.argv[1:]
    name = f'.s.PGSQL.{port}'
    delay = float(milliseconds) / 2000
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.path.join(folder, name))
    listener.listen()
    print('ready', flush=True)
    while True:
        client, _ = listener.accept()
        server = connected(os.path.join(os.environ['PGHOST'], name))
        for source, target in ((client, server), (server, client)):
            threading.Thread(target=pump, args=(source, target, delay), daemon=True).start()


main()
