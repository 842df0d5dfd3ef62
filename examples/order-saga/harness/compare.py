"""Compares two runs of the same customers and the same kills: the extension, and idempotency by hand.

    compare.py FIGURES FIGURES      two files of play.py --figures and check.py --figures
"""

import json
import statistics
import sys
from collections import Counter

from books import read_gateway
from world import BY_HAND, HERE, SERVICES

OURS = {".sql", ".js", ".mjs", ".go", ".py"}
PARTS = (*SERVICES, "relay", "service.py", "outbox.sql")


def write_figures(file, world, customers, chaos):
    """The figures of one run."""
    orders = world.query("orders", """
        SELECT state, extract(epoch FROM (SELECT max(at) FROM history WHERE order_id = id) - placed_at)::float8 FROM orders""")
    ended = [took for state, took in orders if state in ("CONFIRMED", "CANCELLED")]
    answered = [took for intent in customers.intents for took in intent.took]
    booked = Counter((kind, order) for kind, order, _, _ in read_gateway(world))
    with open(file, "w", encoding="utf-8") as output:
        json.dump({
            "orders asked for": len(customers.intents),
            "orders placed twice": len(orders) - len(customers.intents),
            "charges and refunds made twice": sum(count - 1 for count in booked.values()),
            "orders stuck": len(orders) - len(ended),
            "requests": customers.asked,
            "duplicates turned away": world.duplicates,
            "kills": chaos.kills,
            "answer to the customer, median ms": quantile(answered, 50),
            "answer to the customer, p99 ms": quantile(answered, 99),
            "end of the order, median ms": quantile(ended, 50),
            "end of the order, p99 ms": quantile(ended, 99),
            "lines of the services": lines_of(*(HERE / name for name in PARTS)),
            "lines of the shop's own for idempotency": lines_of(BY_HAND) if world.by_hand else 0,
            "servers beside PostgreSQL and RabbitMQ": "Redis" if world.by_hand else "none",
        }, output)


def add_deaths(file, world, deaths, asked):
    """The figures of a run in which the orders service died at each statement and each message in turn."""
    with open(file, encoding="utf-8") as known:
        figures = json.load(known)
    placed, = world.query("orders", "SELECT count(*) FROM orders")[0]
    figures["deaths of orders, one at each point"] = deaths
    figures["orders placed twice by these"] = placed - asked
    with open(file, "w", encoding="utf-8") as output:
        json.dump(figures, output)


def quantile(seconds, percent):
    """In milliseconds."""
    return round(1000 * statistics.quantiles(seconds, n=100, method="inclusive")[percent - 1])


def lines_of(*places):
    """Of source code, without the page and packages."""
    files = {file for place in places for file in ([place] if place.is_file() else place.rglob("*"))}
    return sum(len(file.read_text().splitlines()) for file in files
               if file.suffix in OURS and not {"node_modules", "page"} & set(file.parts))


def main():
    """Prints one table."""
    runs = []
    for name in sys.argv[1:]:
        with open(name, encoding="utf-8") as file:
            runs.append(json.load(file))
    print(f'\n{"":42}{"extension":>12}{"by hand":>12}')
    for what in runs[0]:
        print(f"{what:42}" + "".join(f"{run[what]:>12}" for run in runs))


if __name__ == "__main__":
    main()
