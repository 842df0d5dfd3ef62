#!/usr/bin/python3
"""Measure the extension against hand-written SQL, on the server that PGHOST and
PGPORT name. bench/run starts one; workloads.py says what is measured, peers/ puts
what people would use instead beside it, packages/ compares the packages of
clients/, collection.py measures the removal of expired records, and partitions.py a
store with a ring of tables.

Runs of a workload's variants alternate, forwards and backwards, and only runs of
one round are divided by each other: what the machine does meanwhile hits both.
A missed target is told and fails nothing; a wrong result fails the run.
"""

import argparse
import contextlib
import datetime
import os
import sys
import time

import collection
import packages
import partitions
import peers
import report
import server
from workloads import COMPARISONS, COSTS, WORKLOADS

COUNTED = 1000      # transactions of a run that is counted, not timed
COUNTS = 3          # such runs; whatever else the server writes only adds


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--quick', action='store_true', help='short runs, two minutes in all')
    parser.add_argument('--rounds', type=int, help='rounds of each workload (default 7, quick 3; peers have their own)')
    parser.add_argument('--seconds', type=int, help='length of a run (default 5, packages 3, quick 1)')
    names = [w.name for w in WORKLOADS] + [partitions.NAME, peers.NAME, packages.NAME, collection.NAME]
    parser.add_argument('--only', nargs='+', metavar='WORKLOAD', choices=names,
                        help=f'measure only these: {", ".join(names)}')
    parser.add_argument('--postgresql', type=int, metavar='VERSION', help='a server of this version, in a chroot; needs root')
    parser.add_argument('--json', metavar='FILE', help='write all raw figures to FILE')
    peers.add_arguments(parser)
    packages.add_arguments(parser)
    partitions.add_arguments(parser)
    options = parser.parse_args()
    options.rounds = options.rounds or (3 if options.quick else 7)
    options.only = options.only or (names[:-2] if options.quick else names)
    return options


class Bench:
    def __init__(self, options):
        self.options = options
        self.features = server.features()
        self.comparisons = [c for c in COMPARISONS if c.workload in options.only
                            and not (options.quick and c.at_least is None)]
        self.costs = [c for c in COSTS if c.workload in options.only
                      and not (options.quick and c.at_most is None)]
        self.raw = []
        self.peers = None       # their figures
        self.counted = {}

    def present(self, variant):
        return not variant.needs or variant.needs in self.features

    def timed(self, workload):
        """The variants of the comparisons that can run."""
        named = {name for c in self.comparisons if c.workload == workload.name and not self.absent(c)
                 for name in (c.of, c.to)}
        return [v for v in workload.variants if v.name in named]

    def seconds(self):
        return self.options.seconds or (1 if self.options.quick else 5)

    def measure(self, workload):
        """All rounds of a workload; operations a second by variant and round."""
        variants = self.timed(workload)
        self.warm_up(workload, variants)
        for number, variant in server.turns(variants, self.options.rounds, workload.name, tell):
            self.one_run(workload, variant, number)

    def warm_up(self, workload, variants):
        server.reset()      # a workload that only reads is not reset again
        if self.options.quick and self.raw:
            return
        tell(f'{workload.name}: warming up')
        for variant in variants:
            server.pgbench(workload, variant, workload.clients, '--time=1')

    def one_run(self, workload, variant, number):
        if not workload.read_only:
            server.reset()
        result = server.pgbench(workload, variant, workload.clients, f'--time={self.seconds()}')
        self.raw.append({'workload': workload.name, 'variant': variant.name, 'round': number,
                         'seconds': self.seconds(), 'clients': workload.clients,
                         'throughput': result['tps'] * variant.operations, **result})

    def compare(self, comparison):
        absent = self.absent(comparison)
        if absent:
            return report.skipped(comparison.title, absent)
        of, to = (self.series(comparison.workload, name) for name in (comparison.of, comparison.to))
        return report.row(comparison.title, [a / b for a, b in zip(of, to)], comparison.at_least)

    def absent(self, comparison):
        workload = next(w for w in WORKLOADS if w.name == comparison.workload)
        return ', '.join(sorted({v.needs for v in workload.variants
                                 if v.name in (comparison.of, comparison.to) and not self.present(v)}))

    def series(self, workload, variant):
        runs = [r for r in self.raw if (r['workload'], r['variant']) == (workload, variant) and 'round' in r]
        return [r['throughput'] for r in sorted(runs, key=lambda r: r['round'])]

    def cost(self, cost):
        """What an operation costs over the floor."""
        of, to, floor = (self.spent(cost.workload, name)[cost.measure] if name else 0
                         for name in (cost.of, cost.to, cost.floor))
        return report.row(cost.title, [(of - floor) / (to - floor if cost.to else COUNTED)],
                          cost.at_most, at_most=True)

    def spent(self, name, variant_name):
        """The minimum of some counts; the same random numbers for every variant."""
        if (name, variant_name) not in self.counted:
            tell(f'{name}: counting {variant_name}')
            workload = next(w for w in WORKLOADS if w.name == name)
            variant = next(v for v in workload.variants if v.name == variant_name)
            counts = [self.count(workload, variant) for _ in range(COUNTS)]
            self.counted[name, variant_name] = {key: min(c[key] for c in counts) for key in counts[0]}
        return self.counted[name, variant_name]

    def count(self, workload, variant):
        server.reset()
        before = server.costs()
        server.pgbench(workload, variant, 1, f'--transactions={COUNTED}', '--random-seed=1')
        spent = {measure: value - before[measure] for measure, value in server.costs().items()}
        self.raw.append({'workload': workload.name, 'variant': variant.name, 'transactions': COUNTED, 'spent': spent})
        return spent


def tell(text):
    if sys.stderr.isatty():
        print(f'\r\033[K{text}', end='', file=sys.stderr, flush=True)


def measure_all(options):
    server.create_schema()
    bench = Bench(options)
    for workload in WORKLOADS:
        if workload.name in options.only:
            bench.measure(workload)
    entries = [bench.compare(c) for c in bench.comparisons]
    entries += [bench.cost(c) for c in bench.costs]
    if peers.NAME in options.only:
        more, bench.peers = peers.measure(options, tell)
        entries += more
    for name, part in ((packages.NAME, packages.measure), (collection.NAME, collection.measure),
                       (partitions.NAME, partitions.measure)):
        if name in options.only:
            more, raw = part(options, tell)
            entries += more
            bench.raw += raw
    tell('')
    return bench, entries


def main():
    options = arguments()
    started = time.monotonic()
    began_at = datetime.datetime.now(datetime.timezone.utc)
    try:
        with contextlib.ExitStack() as held:
            if options.postgresql:
                os.environ.update(held.enter_context(server.of_version(options.postgresql)))
            bench, entries = measure_all(options)
            environment = server.environment()
    except server.BenchError as error:
        sys.exit(f'bench: {error}')
    report.show(f'PostgreSQL {environment["server"]}', entries)
    if options.json:
        results = {
            'date': began_at.isoformat(timespec='seconds'), 'took_seconds': round(time.monotonic() - started),
            'quick': options.quick, **environment, 'measures': entries, 'runs': bench.raw, 'peers': bench.peers}
        report.save(options.json, results)


if __name__ == '__main__':
    main()
