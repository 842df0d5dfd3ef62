"""Redis Streams: consumes a stream, one operation for each entry, by redis-py.

An entry has an identifier that stays the same when it is delivered again. What changes
more than one thing is a script, which Redis runs as a whole: so a dead letter is added
when, and only when, its entry is acknowledged.
"""

from __future__ import annotations

import math
import re
import uuid
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, List, Optional, Sequence, Union

from .client import Idempotency
from .consumer import DELAYS, Decision, Policy
from .hooks import logger
from .model import Result
from .settle import AGAIN, DEAD_LETTER, Settlement

# Each consumer that is gone has left its name. One that lives has its own again when it reads.
# Without the right to it the names stay.
TIDY = """
for _, consumer in ipairs(redis.pcall('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  if consumer[4] == 0 then redis.pcall('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], consumer[2]) end
end
"""

# Entries of consumers that died, and entries whose pause is over. XAUTOCLAIM would take those that still pause.
TAKE = """
local stream, again, tries = KEYS[1], KEYS[2], KEYS[3]
local group, consumer, idle, count = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local ids, from = {}, '-'
repeat
  local page = redis.call('XPENDING', stream, group, 'IDLE', idle, from, '+', 100)
  for _, pending in ipairs(page) do
    if #ids < count and not redis.call('ZSCORE', again, pending[1]) then ids[#ids + 1] = pending[1] end
  end
  if #page > 0 then from = '(' .. page[#page][1] end
until #page < 100 or #ids >= count
for _, id in ipairs(redis.call('ZRANGEBYSCORE', again, '-inf', now, 'LIMIT', 0, count - #ids)) do
  redis.call('ZREM', again, id)
  ids[#ids + 1] = id
end
local taken = {}
for _, id in ipairs(ids) do
  local entry = redis.call('XCLAIM', stream, group, consumer, 0, id)[1]
  if entry then
    local pending = redis.call('XPENDING', stream, group, id, id, 1)[1]
    taken[#taken + 1] = {entry[1], entry[2], pending[4], tonumber(redis.call('HGET', tries, id) or 0)}
  else
    redis.call('HDEL', tries, id)
  end
end
return taken
"""

PAUSE = """
if #redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[2], ARGV[2], 1) == 0 then return 0 end
local time = redis.call('TIME')
redis.call('ZADD', KEYS[2], time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[3], ARGV[2])
redis.call('HSET', KEYS[3], ARGV[2], ARGV[4])
redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[5], 0, ARGV[2], 'RETRYCOUNT', ARGV[6], 'JUSTID')
return 1
"""

# Of two consumers that have the same entry, one acknowledges it. Redis takes nothing back where a script fails, so the
# dead letter comes first. Lua passes on 8000 values at most.
END = """
if #redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[2], ARGV[2], 1) == 0 then return 0 end
if ARGV[3] == 'bury' then
  local entry = redis.call('XRANGE', KEYS[1], ARGV[2], ARGV[2])[1]
  local fields = entry and entry[2] or {'trimmed', '1'}
  if #fields > 4000 then fields = {'x-idempotency-fields', cjson.encode(fields)} end
  redis.call('XADD', KEYS[4], '*', 'x-idempotency-id', ARGV[2], unpack(fields))
end
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZREM', KEYS[2], ARGV[2])
redis.call('HDEL', KEYS[3], ARGV[2])
return 1
"""


@dataclass(frozen=True)
class Entry:
    """An entry of the stream. ``fields`` are as the client decodes them. ``tries``: how many errors it has had."""

    id: str
    fields: Dict[Any, Any]
    deliveries: int
    tries: int


class Consumer:
    """Consumes ``stream`` as a member of ``group``, one entry at a time, by a ``redis.Redis`` of your own. Its
    ``socket_timeout``, longer than ``poll``, bounds the waits for a Redis that hangs.

    ``handle(entry)``: runs the operation and gives its Result, or a Settlement; None: acknowledge.
    ``idempotency``: remembers which entry of an operation became its dead letter. ``tries``: after so many errors of ``handle``
    an entry is a dead letter. ``delays``: seconds after the first error, the second, and so on; growing. ``idle``: seconds
    after which the entries of a consumer that died come again; while ``handle`` runs, the entry is claimed anew at each
    third of it. ``poll``: seconds between two looks for entries whose time has come, above 0. ``delivery_limit``: an entry
    that was delivered so often, for whatever reason but IN_PROGRESS, is a dead letter. Call ``declare`` before ``consume``.
    """

    def __init__(self, client: Any, stream: str, group: str,
                 handle: Callable[[Entry], Optional[Union[Result, Settlement]]], *, idempotency: Idempotency,
                 tries: int = 20, delays: Sequence[float] = DELAYS, idle: float = 30.0, poll: float = 0.5,
                 delivery_limit: int = 100) -> None:
        for option, seconds in (("idle", idle), ("poll", poll)):
            if not 0 < seconds < math.inf:
                raise ValueError(f"{option} is a number of seconds above 0")
        self.client = client
        self.stream = stream
        self.group = group
        self.handle = handle
        self.policy = Policy(idempotency, f"{stream}.{group}", tries, delays)
        self.clock = idempotency.settings.clock
        self.idle = idle
        self.poll = poll
        self.delivery_limit = delivery_limit
        self.name = str(uuid.uuid4())
        # What is in braces decides in which node of a cluster a key is, and a script needs all its keys in one.
        prefix = stream if re.search("{.+}", stream) else f"{{{stream}}}"
        self.keys = [stream, *(f"{prefix}.{group}.{name}" for name in ("again", "tries", "dead"))]
        self.stopping = False

    def declare(self) -> None:
        """Makes the group, and the stream where there is none."""
        try:
            self.client.execute_command("XGROUP", "CREATE", self.stream, self.group, "0", "MKSTREAM")
        except Exception as error:
            if not str(error).startswith("BUSYGROUP"):
                raise
        self.run(TIDY, self.group)

    def consume(self) -> None:
        """Consumes until ``stop`` is called. Raises redis-py's errors when the server is away."""
        while not self.stopping:
            for entry in self.next():
                self.settle(entry)

    def stop(self) -> None:
        """Lets ``consume`` return after the entry under way: from a handler, a thread or a signal."""
        self.stopping = True

    def next(self) -> List[Entry]:
        """The next entry, if there is one soon: of a consumer that died, after its pause, or new."""
        taken = self.run(TAKE, self.group, self.name, milliseconds(self.idle), 1)
        if taken:
            return [Entry(text(each[0]), pairs(each[1]), each[2], each[3]) for each in taken]
        # So that redis-py makes nothing else of the answer, which is a list in RESP 2, and a dict in RESP 3.
        read = self.client.execute_command(
            "XREADGROUP GROUP", self.group, self.name, "COUNT", 1, "BLOCK", milliseconds(self.poll),
            "STREAMS", self.stream, ">", NEVER_DECODE=True)
        if not read:
            return []
        entries = (read if isinstance(read, list) else list(read.items()))[0][1]
        return [Entry(text(each[0]), pairs(each[1]), 1, 0) for each in entries]

    def settle(self, entry: Entry) -> None:
        """Runs one entry's operation, and settles the entry."""
        stop_claiming = self.clock.every(self.idle / 3, lambda: self.claim(entry))
        try:
            decision = self.decide(entry)
        finally:
            stop_claiming()
        settlement = decision.settlement
        if settlement.action == AGAIN:
            self.run(PAUSE, self.group, entry.id, milliseconds(settlement.after), decision.tries, self.name,
                     entry.deliveries - decision.in_progress)
            return
        if settlement.action == DEAD_LETTER:
            logger.warning("an entry of %s becomes a dead letter: %s", self.stream, settlement.reason)
        self.run(END, self.group, entry.id, "bury" if settlement.action == DEAD_LETTER else "ack")

    def decide(self, entry: Entry) -> Decision:
        """What is to become of an entry."""
        if entry.deliveries > self.delivery_limit:
            return Decision(Settlement(DEAD_LETTER, reason="delivered too often"), entry.tries)
        return self.policy.decide_by_position(lambda: self.handle(self.decoded(entry)), entry.id, entry.tries)

    def decoded(self, entry: Entry) -> Entry:
        """The entry as the client decodes it. Read so, one that it cannot decode would stop each consumer."""
        decode = self.client.get_encoder().decode
        return replace(entry, fields={decode(name): decode(value) for name, value in entry.fields.items()})

    def claim(self, entry: Entry) -> None:
        """Tells Redis that the entry is being handled."""
        try:
            self.client.execute_command(
                "XCLAIM", self.stream, self.group, self.name, 0, entry.id, "JUSTID", parse_justid=True)
        except Exception as error:
            logger.error("an entry of %s was not claimed anew", self.stream, exc_info=error)

    def run(self, script: str, *arguments: Any) -> Any:
        """Runs a script on the consumer's keys."""
        return self.client.execute_command("EVAL", script, len(self.keys), *self.keys, *arguments, NEVER_DECODE=True)


def milliseconds(seconds: float) -> int:
    """As Redis counts."""
    return math.ceil(seconds * 1000)


def text(identifier: Any) -> str:
    """An identifier, whether or not the client decodes answers."""
    return identifier.decode() if isinstance(identifier, bytes) else str(identifier)


def pairs(fields: Sequence[Any]) -> Dict[Any, Any]:
    """Names and values in turn, as a dict."""
    return dict(zip(fields[::2], fields[1::2]))
