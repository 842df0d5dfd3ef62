"""Tests the fault proxy: between a client and a server that are both this program, so that
nothing depends on time. The last line is the verdict."""

import faulthandler
import socket
import struct

from fault_proxy import Proxy, listen_at, messages
from verdict import Verdict


def message(kind, body=b""):
    return kind + struct.pack("!I", len(body) + 4) + body


def query(text):
    return message(b"Q", text + b"\0")


def bind(name):
    return message(b"B", b"\0" + name + b"\0")


def done(tag, state=b"I"):
    """The answer to a statement."""
    return message(b"C", tag + b"\0") + message(b"Z", state)


FAILED = message(b"E", b"error") + message(b"Z", b"I")
COMMIT, COMMITTED = query(b"COMMIT"), done(b"COMMIT")


class Stage:
    """One connection through a proxy, which is started."""

    def __init__(self, *fault):
        self.server, upstream = socket.socketpair()
        self.proxy = Proxy(listen_at("-"), lambda: upstream)
        self.client = socket.create_connection(self.proxy.listener.getsockname())
        self.client.sendall(struct.pack("!II", 8, 196608))
        self.server.recv(8, socket.MSG_WAITALL)
        self.answer(message(b"Z", b"I"))
        if fault:
            self.proxy.arm(*fault)

    def ask(self, asked):
        """Whether the server gets it as it is."""
        self.client.sendall(asked)
        return self.server.recv(len(asked), socket.MSG_WAITALL) == asked

    def answer(self, answer):
        """Whether the client gets it as it is. False: its connection ends."""
        self.server.sendall(answer)
        return self.client.recv(len(answer), socket.MSG_WAITALL) == answer

    def ends(self):
        """Whether the client gets nothing more."""
        return self.client.recv(1) == b""

    def hits(self):
        return self.proxy.state()["hits"]


def check(verdict, what, stage, passed, hits):
    """All that should pass did, and the fault happened as often as it should."""
    verdict.check(all(passed) and stage.hits() == hits, what, f"    passed {passed}, hits {stage.hits()}")
    stage.proxy.close()


def lose(verdict):
    """Exactly the answer of what committed."""
    stage = Stage("lose")
    passed = [stage.ask(query(b"SELECT 1") + COMMIT), stage.answer(done(b"SELECT 1", b"T")), not stage.answer(COMMITTED)]
    check(verdict, "in a pipeline the answer to COMMIT is lost, and no other", stage, passed, 1)
    others = (("an error", FAILED), ("ROLLBACK", done(b"ROLLBACK")), ("no end of a transaction", done(b"COMMIT", b"T")))
    for name, answer in others:
        stage = Stage("lose")
        passed = [stage.ask(COMMIT), stage.answer(answer), stage.ask(COMMIT), not stage.answer(COMMITTED)]
        check(verdict, f"{name} passes, and the next COMMIT is lost", stage, passed, 1)
    stage = Stage("after", "insert")
    passed = [stage.ask(query(b"INSERT 1")), not stage.answer(done(b"INSERT 0 1", b"T"))]
    check(verdict, "a statement in a transaction is lost", stage, passed, 1)
    parse, sync = message(b"P", b"c\0COMMIT\0\0\0"), message(b"S")
    stage = Stage("lose")
    passed = [stage.ask(parse + sync), stage.answer(message(b"1") + message(b"Z", b"I")), stage.ask(bind(b"c") + sync),
              not stage.answer(COMMITTED)]
    check(verdict, "a prepared COMMIT is lost where it is executed", stage, passed, 1)


def inserted(verdict):
    """Only in a transaction that inserted a row."""
    stage = Stage("lose", "^commit", True)
    passed = [stage.ask(COMMIT), stage.answer(COMMITTED), stage.ask(query(b"BEGIN")), stage.answer(done(b"BEGIN", b"T")),
              stage.ask(query(b"INSERT INTO a VALUES (1)")), stage.answer(done(b"INSERT 0 1", b"T")),
              stage.ask(COMMIT), not stage.answer(COMMITTED)]
    check(verdict, "the COMMIT of an INSERT is lost", stage, passed, 1)
    stage = Stage("lose", "^commit", True)
    passed = [stage.ask(query(b"INSERT INTO a VALUES (1)")), stage.answer(done(b"INSERT 0 1")), stage.ask(query(b"BEGIN")),
              stage.answer(done(b"BEGIN", b"T")), stage.ask(COMMIT), stage.answer(COMMITTED)]
    check(verdict, "an INSERT before the transaction is none of it", stage, passed, 0)


def more(verdict):
    """Before, rollback, hold, round trips, refuse."""
    stage = Stage("before")
    stage.client.sendall(COMMIT)
    passed = [stage.server.recv(1) == b"", stage.answer(message(b"N", b"notice"))]
    stage.server.close()
    check(verdict, "the connection ends before COMMIT, the server's first", stage, passed + [stage.ends()], 1)
    stage = Stage("rollback")
    stage.client.sendall(COMMIT)
    passed = [next(messages(stage.server))[1] == query(b"SELECT 1/0")]
    stage.server.sendall(FAILED)
    passed += [next(messages(stage.server))[1] == COMMIT, stage.answer(done(b"ROLLBACK"))]
    check(verdict, "COMMIT answers ROLLBACK, and the failure does not show", stage, passed, 1)
    stage = Stage("hold")
    passed = [stage.ask(COMMIT)]
    stage.server.sendall(COMMITTED)
    stage.server.sendall(done(b"SELECT 1"))
    stage.server.shutdown(socket.SHUT_WR)
    check(verdict, "after a COMMIT that is held nothing passes", stage, passed + [stage.ends()], 1)
    stage = Stage()
    stage.proxy.arm_trip("cut", 2)
    passed = [stage.ask(query(b"SELECT 1")), stage.answer(done(b"SELECT 1")), stage.ask(query(b"SELECT 2"))]
    stage.server.sendall(message(b"Z", b"I"))
    check(verdict, "the second round trip is cut", stage, passed + [stage.ends()], 1)
    stage = Stage()
    stage.proxy.refuse()
    passed = [stage.ends(), stage.server.recv(1) == b""]
    another = socket.socketpair()
    stage.proxy.connect = lambda: another[0]
    late = socket.create_connection(stage.proxy.listener.getsockname())
    check(verdict, "all connections end, and each new one", stage, passed + [late.recv(1) == b""], 0)


def main():
    """Each fault. What hangs says where, and has failed."""
    faulthandler.dump_traceback_later(60, exit=True)
    with Verdict() as verdict:
        lose(verdict)
        inserted(verdict)
        more(verdict)


if __name__ == "__main__":
    main()
