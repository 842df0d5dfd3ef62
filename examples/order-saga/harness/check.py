"""Tests one mode of the saga: the page in a browser, then a death at each statement and message.

    check.py MODE [--seconds N] [--seed N] [--no-page] [--only-scenes]

--seconds: begin no more rounds of deaths after that time. --only-scenes: until the first thing that is wrong.
Ends with "N passed, N failed".
"""

import argparse
import os
import re
import subprocess
import time

from books import audit
from crash import Crash
from points import Wiretap, stand_before
from scenes import play_scenes
from verdict import Verdict
from world import HERE, World

SETTINGS = {"AGAIN_AFTER": "1 s", "LEASE": "1s"}
STOCK = {"mug": 10_000, "kettle": 100, "beans": 100, "grinder": 0}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=("orchestrated", "choreographed"))
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 1_000_000)
    parser.add_argument("--no-page", action="store_true")
    parser.add_argument("--only-scenes", action="store_true")
    options = parser.parse_args()
    with Verdict() as verdict:
        taps = {}
        world = World(options.mode, options.seed, STOCK, gateway_faults=0, settings=SETTINGS,
                      proxied=lambda *where: through_proxy(taps, *where))
        try:
            world.start()
            for name, tap in taps.items():
                tap.kill = world.programs[name].kill
            started = {name: set(tap.seen) for name, tap in taps.items()}
            if not (options.no_page or options.only_scenes):
                look_at_page(verdict, world)
            play_scenes(verdict, world, taps, hasty=options.only_scenes)
            if not options.only_scenes:
                die_everywhere(verdict, world, Crash(world, taps, options.seed, started), options)
        finally:
            world.stop()
            if verdict.failed:
                print((world.work / "log").read_text()[-5000:])


def through_proxy(taps, name, kind, address):
    """The address of a proxy that stands before the database or the broker."""
    tap = taps.setdefault(name, Wiretap())
    if kind == "database":
        port = stand_before(f'{os.environ["PGHOST"]}/.s.PGSQL.{os.environ["PGPORT"]}', kind, tap)
        user = re.match(r"postgres://(\w+)@", address).group(1)
        return f"postgres://{user}@127.0.0.1:{port}/{user}?sslmode=disable"
    upstream = re.search(r"@([\d.]+:\d+)", address).group(1)
    return address.replace(upstream, f"127.0.0.1:{stand_before(upstream, kind, tap)}")


def look_at_page(verdict, world):
    """The page in a browser has a verdict of its own."""
    done = subprocess.run(["node", HERE / "harness/page.mjs", world.address], text=True, stdout=subprocess.PIPE, check=False)
    lines = done.stdout.rstrip().splitlines() or [""]
    print("\n".join(lines[:-1]), flush=True)
    sums = re.fullmatch(r"(\d+) passed, (\d+) failed", lines[-1])
    verdict.count(*map(int, sums.groups()) if sums else (0, 1))
    for good, what, details in audit(world):
        verdict.check(good, f"after the page: {what}", details)


def die_everywhere(verdict, world, crash, options):
    """The rounds, and the books after them."""
    try:
        hit, missed, every = crash.run(options.seconds)
    except RuntimeError as error:
        verdict.check(False, f"{options.mode}, seed {options.seed}: {error}", world.query(
            "orders", "SELECT id, state, placed_at FROM orders WHERE state NOT IN ('CONFIRMED', 'CANCELLED')"))
        return
    print(f"{options.mode}, seed {options.seed}: {crash.rounds} rounds, killed at {len(hit)} of {len(every)} points", flush=True)
    for name in crash.taps:
        deaths = sum(1 for program, _ in hit if program == name)
        verdict.check(deaths > 0, f"{name} was killed at {deaths} of {sum(1 for program, _ in every if program == name)} points")
    verdict.check(not missed, "each death that was asked for has happened", missed)
    for good, what, details in audit(world, crash.intents):
        verdict.check(good, f"after the deaths: {what}", details)


if __name__ == "__main__":
    main()
