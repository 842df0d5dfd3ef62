"""Kills each program before and after each statement and each message in turn, and looks at the books.

A round plays one order of each kind while every program waits for its own point
to die at. The points come from rounds without a kill, from the start of the programs, and from
the scenes; those of the scenes have to be provoked.
"""

import contextlib
import random
import re
import time

from customers import Customers, Intent
from world import wait_for

PATIENCE = 180    # seconds for the orders of a round to end
TRIES = 3        # rounds in which a point may be missed
PROVOKED = 30    # seconds for a point to come while the gateway is away
BORDER = re.compile("publish|deliver|ack|COMMIT")


class Crash:
    """``taps``: the wiretap of each program. ``started``: the points that it came by at its start."""

    def __init__(self, world, taps, seed, started):
        self.world = world
        self.taps = taps
        self.started = started
        self.random = random.Random(seed)
        self.intents = []
        self.rounds = 0

    def run(self, seconds):
        """As many rounds as begin within the time; None: all.

        Gives what was hit, what was missed, and all there are: pairs of a program and a point.
        """
        until = time.monotonic() + seconds if seconds else None
        plain = self.play_plainly()
        queues = {name: self.shuffled(tap.seen) for name, tap in self.taps.items()}
        every = [(name, point) for name, queue in queues.items() for point in queue]
        hit, missed, tries = [], [], {}
        while any(queues.values()) and (until is None or time.monotonic() < until):
            armed = {name: queue.pop() for name, queue in queues.items() if queue}
            self.arm(armed, {(name, point) for name, point in armed.items()
                             if point in self.started[name] or point not in plain[name] or (name, point) in tries})
            self.play([name for name, point in armed.items() if point not in plain[name] | self.started[name]])
            for name, point in armed.items():
                tries[name, point] = tries.get((name, point), 0) + 1
                if self.taps[name].disarm():
                    hit.append((name, point))
                elif tries[name, point] < TRIES:
                    queues[name].insert(0, point)
                else:
                    missed.append((name, point))
        return hit, missed, every

    def shuffled(self, points):
        """The last one comes first: messages and COMMIT, then the rest, in an order of the seed. A short run is a sample."""
        points = sorted(points)
        self.random.shuffle(points)
        return sorted(points, key=lambda point: bool(BORDER.match(point[1])))

    def play_plainly(self):
        """Two rounds without a kill; gives the points that each program came by."""
        before = {name: dict(tap.seen) for name, tap in self.taps.items()}
        self.play()
        self.play()
        return {name: {point for point, count in tap.seen.items() if count > before[name].get(point, 0)}
                for name, tap in self.taps.items()}

    def arm(self, armed, fresh):
        """``fresh``: what a program does at its start, or with a new connection, it does again only when it starts again."""
        for name, point in armed.items():
            self.taps[name].arm(point)
            if (name, point) in fresh:
                self.world.programs[name].kill()

    def play(self, rare=()):
        """One round. ``rare``: programs whose points have to be provoked. Raises if an order does not come to its end."""
        number = len(self.intents)
        mug = [{"sku": "mug", "quantity": 1}]
        new = [Intent(number, mug), Intent(number + 1, mug, card="tok_declined"),
               Intent(number + 2, mug, city="Atlantis"), Intent(number + 3, mug, cancels_after=0, clicks=2),
               Intent(number + 4, [{"sku": "grinder", "quantity": 1}])]
        self.intents += new
        self.rounds += 1
        customers = Customers(self.world.address, new)
        customers.play(0)
        if rare:
            self.provoke(rare)
        customers.wait()
        wait_for(lambda: self.world.unfinished() == (0, 0), PATIENCE, f"stuck in round {self.rounds}")
        self.world.wait_until_ready()

    def provoke(self, names):
        """An order is given up while its charge hangs: a time-out, and a refund that has to come again."""
        gateway = self.world.programs["gateway"]
        gateway.hold()
        intent = Intent(len(self.intents), [{"sku": "mug", "quantity": 1}])
        self.intents.append(intent)
        customers = Customers(self.world.address, [intent])
        customers.play(0)
        customers.wait()
        order = intent.answers[0]
        wait_for(lambda: self.world.query("payments", "SELECT 1 FROM payment WHERE order_id = %s AND state = 'charging'", order),
                 PATIENCE, "the charge does not hang")
        if self.world.mode == "orchestrated":
            self.world.query("orders", "UPDATE saga SET gives_up_at = now() WHERE order_id = %s RETURNING 1", order)
        else:
            customers.cancel(intent)
        with contextlib.suppress(RuntimeError):    # a point that is missed is tried again
            wait_for(lambda: not any(self.taps[name].armed for name in names), PROVOKED, "")
        gateway.let_go()
