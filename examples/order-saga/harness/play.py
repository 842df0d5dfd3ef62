"""Plays some thousand orders, while everything is killed at random, and looks at the books at the end."""

import contextlib
import os
import sys
import threading
import time

from books import audit
from chaos import Chaos
from customers import GOODS, SCARCE, Customers, draw_all
from world import SERVICES, World

STUCK_AFTER = 60    # seconds without any progress
PAUSE = 3           # seconds between two kills, on average
COMPENSATIONS = ("payment.refunded", "stock.released")
HEADER = "  time requests  orders  confirmed  cancelled   open  compensations  duplicates  kills"


def main():
    """Exits with 0 if the books are right."""
    mode = os.environ.get("MODE") or "orchestrated"
    if mode not in ("orchestrated", "choreographed"):
        sys.exit("MODE is orchestrated or choreographed")
    seed = int(os.environ.get("SEED") or time.time()) % 1_000_000
    minutes = float(os.environ.get("MINUTES") or 5)
    orders = int(os.environ.get("ORDERS") or 2000)
    world = World(mode, seed, stock_for(orders))
    try:
        world.start()
        print(f"{mode}, seed {seed}. The shop is open: {world.address}\n", flush=True)
        customers = Customers(world.address, draw_all(seed, orders))
        good = play(world, customers, seed, minutes)
        if os.environ.get("STAY"):
            print(f"\nThe shop stays open: {world.address} (end it with Ctrl-C)", flush=True)
            wait_for_interrupt()
    finally:
        world.stop()
    sys.exit(not good)


def stock_for(orders):
    """Enough of everything, but of one thing."""
    return {**{sku: 10 * orders + 1000 for sku in GOODS}, SCARCE: orders // 20 + 5}


def play(world, customers, seed, minutes):
    """Whether the books are right at the end."""
    began = time.monotonic()
    line = Lines(world, customers, began)
    chaos = Chaos(world, seed, PAUSE, line.killed)
    line.chaos = chaos
    print(HEADER, flush=True)
    with line.every(5):
        with chaos:
            customers.play(minutes * 60)
        customers.wait()
        wait_for_end(world)
    line.row()
    return report(world, customers)


def wait_for_end(world):
    """Of all orders, and of the duplicates that are on their way; or until nothing moves any more, which the books show."""
    sent, still = None, 0
    while still < (2 if world.unfinished() == (0, 0) else STUCK_AFTER):
        time.sleep(1)
        before, sent = sent, [world.query(name, "SELECT count(*), sum(sent) FROM outbox") for name in SERVICES]
        still = still + 1 if sent == before else 0


def report(world, customers):
    counts = [world.query(name, "SELECT coalesce(sum(sent), 0), count(*) FROM outbox")[0] for name in SERVICES]
    sent, messages = map(sum, zip(*counts))
    print(f"\n{messages} messages, sent {sent} times; {world.duplicates} duplicates were turned away. "
          f"{customers.asked} requests for {len(customers.intents)} orders.\n\nThe books:")
    right = True
    for good, what, details in audit(world, customers.intents):
        right = right and good
        print(f'{"ok" if good else "WRONG"}: {what}' + ("" if good else f" {details}"))
    return right


class Lines:
    """The table and the timeline."""

    def __init__(self, world, customers, began):
        self.world = world
        self.customers = customers
        self.began = began
        self.chaos = None

    def clock(self):
        seconds = int(time.monotonic() - self.began)
        return f"{seconds // 60:3}:{seconds % 60:02}"

    def killed(self, name):
        print(f"{self.clock()} killed: {name}", flush=True)

    def row(self):
        orders = dict(self.world.query("orders", "SELECT state, count(*) FROM orders GROUP BY 1"))
        compensations, = self.world.query("orders", "SELECT count(*) FROM history WHERE cause = ANY(%s)", list(COMPENSATIONS))[0]
        ends = [orders.pop(state, 0) for state in ("CONFIRMED", "CANCELLED")]
        left = sum(orders.values())
        print(f"{self.clock()} {self.customers.asked:8} {sum(ends) + left:7} {ends[0]:10} {ends[1]:10} {left:6} "
              f"{compensations:14} {self.world.duplicates:11} {self.chaos.kills:6}", flush=True)

    @contextlib.contextmanager
    def every(self, seconds):
        over = threading.Event()

        def rows():
            while not over.wait(seconds):
                self.row()
        thread = threading.Thread(target=rows)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def wait_for_interrupt():
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(3600)


if __name__ == "__main__":
    main()
