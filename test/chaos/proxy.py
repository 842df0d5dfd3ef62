"""Stands between some clients and the server, and loses answers.

When armed it lets the next COMMIT through (or the next idem_call, which commits by
itself), waits until the server has answered that it is done, and then cuts the
connection: committed, and nobody was told.
"""

import asyncio
import os
import signal

TRIGGERS = (b"COMMIT\0", b"idem_call(")
# CommandComplete of what was waited for, and ReadyForQuery: idle, or any
DONE = (b"C\0\0\0\x0bCOMMIT\0", b"C\0\0\0\x0dSELECT 1\0")
IDLE = b"Z\0\0\0\x05I"
READY = IDLE[:-1]


class Proxy:
    """Armed and its cuts are shared with the controller."""

    def __init__(self, target, armed, cuts):
        self.target = target
        self.armed = armed
        self.cuts = cuts

    async def serve_client(self, reader, writer):
        """Connects one client to whichever server is the primary now."""
        try:
            with open(self.target, encoding="utf-8") as file:
                path = os.path.join(file.read(), ".s.PGSQL.5432")
            up_reader, up_writer = await asyncio.open_unix_connection(path)
        except OSError:
            writer.close()
            return
        connection = Connection(self, (reader, writer), (up_reader, up_writer))
        await asyncio.wait(
            [asyncio.create_task(connection.requests()), asyncio.create_task(connection.answers())],
            return_when=asyncio.FIRST_COMPLETED)
        writer.close()
        up_writer.close()


class Connection:
    """One client's; while held is not None its answers are kept back."""

    def __init__(self, proxy, down, up):
        self.proxy = proxy
        self.down_reader, self.down_writer = down
        self.up_reader, self.up_writer = up
        self.held = None

    async def requests(self):
        """From the client to the server."""
        while data := await read(self.down_reader):
            if self.proxy.armed.value > 0 and any(word in data for word in TRIGGERS):
                self.proxy.armed.value -= 1
                self.held = b""
            self.up_writer.write(data)

    async def answers(self):
        """From the server to the client, or to nobody."""
        while data := await read(self.up_reader):
            if self.held is None:
                self.down_writer.write(data)
                continue
            self.held += data
            if self.held[-6:-1] != READY:
                continue
            if self.held.endswith(IDLE) and any(word in self.held for word in DONE):
                self.proxy.cuts.value += 1
                return
            self.down_writer.write(self.held)
            self.held = None
            self.proxy.armed.value += 1


async def read(reader):
    """The next bytes, or none when the other side is gone."""
    try:
        return await reader.read(65536)
    except ConnectionError:
        return b""


async def listen(directory, proxy):
    """Accepts clients for ever."""
    server = await asyncio.start_unix_server(
        proxy.serve_client, os.path.join(directory, ".s.PGSQL.5432"))
    async with server:
        await server.serve_forever()


def serve(directory, target, armed, cuts):
    """Runs until it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(listen(directory, Proxy(target, armed, cuts)))
