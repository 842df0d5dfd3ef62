#!/usr/bin/python3
"""Measures begin and complete beside SELECT and INSERT by hand on every version of PostgreSQL
that is supported, and writes the table of docs/performance.md:

    bench/versions.py [--rounds NUMBER] [--transactions NUMBER] [--dry-run]

The servers of dev/chroot, which needs root, run side by side, one of them at work at a
time: runs alternate between the versions and between the two, forwards and backwards.
Commits do not wait for the disk. Throughput is the median of the rounds. Processor time is
the least of them: whatever else the machine does only adds.
"""

import argparse
import contextlib
import datetime
import glob
import os
import re
import statistics
import subprocess
import sys

import server
from workloads import WORKLOADS

ROOT = os.path.dirname(server.FOLDER)
PAGE = os.path.join(ROOT, 'docs', 'performance.md')
CLIENTS = 8
SETTINGS = ('fsync = off', 'synchronous_commit = off', 'autovacuum = off')
HEADINGS = ('PostgreSQL', 'begin, business, complete: a second', 'µs', 'SELECT, business, INSERT: a second', 'µs', 'µs: ratio')


def supported():
    script = f'. {ROOT}/dev/common.sh && echo "${{supported[@]}}"'
    return server.run(['bash', '-c', script]).split()


def processor_time():
    """Seconds that the server has spent: its processes, and those that have ended."""
    with open(os.path.join(os.environ['PGDATA'], 'postmaster.pid'), encoding='ascii') as file:
        postmaster = file.readline().strip()
    ticks = 0
    for stat in glob.glob('/proc/[0-9]*/stat'):
        with contextlib.suppress(OSError), open(stat, encoding='utf-8', errors='replace') as file:
            pid, values = stat.split('/')[2], file.read().rpartition(') ')[2].split()
            if pid == postmaster:
                ticks += int(values[13]) + int(values[14])
            elif values[1] == postmaster:
                ticks += int(values[11]) + int(values[12])
    return ticks / os.sysconf('SC_CLK_TCK')


def run(options, variant):
    """Operations a second, and microseconds of the server's processors for one."""
    server.reset()
    before, spent = server.counters(), processor_time()
    result = server.load(f'txn/{variant.name}', CLIENTS, f'--transactions={options.transactions // CLIENTS}')
    spent = processor_time() - spent
    server.check(variant, result['transactions'], before)
    return result['tps'], spent / result['transactions'] * 1e6


def measure(options, environments):
    """The figures of the runs: by version and variant, a list by round."""
    txn = next(w for w in WORKLOADS if w.name == 'txn')
    variants = [v for v in txn.variants if v.name in ('extension', 'plain')]
    runs = [(version, variant) for version in environments for variant in variants]
    figures = {(version, variant.name): [] for version, variant in runs}
    for number in range(options.rounds):
        for version, variant in runs if number % 2 == 0 else reversed(runs):
            os.environ.update(environments[version])
            figures[version, variant.name].append(run(options, variant))
    return figures


def table(figures, names):
    yield '| ' + ' | '.join(HEADINGS) + ' |'
    yield '|---' * len(HEADINGS) + '|'
    for version, name in names.items():
        ours, theirs = (figures[version, variant] for variant in ('extension', 'plain'))
        a_second, spent = zip(*((statistics.median(tps), min(spent)) for tps, spent in (zip(*ours), zip(*theirs))))
        yield (f'| {name} | {a_second[0]:,.0f} | {spent[0]:,.0f} | {a_second[1]:,.0f} | {spent[1]:,.0f} |'
               f' {spent[0] / spent[1]:.2f} |')


def write(options, lines):
    """In the place of the table that is there."""
    today = datetime.datetime.now(datetime.timezone.utc).date()
    head = (f'{today.day} {today:%B %Y}, {options.rounds} rounds of {options.transactions:,} transactions, {CLIENTS} clients,'
            f' load of the machine meanwhile {os.getloadavg()[1]:.0f}:')
    text = '\n'.join([head, '', *lines])
    print(text)
    with open(PAGE, encoding='utf-8') as file:
        page = file.read()
    page, found = re.subn(r'(<!-- bench/versions.py writes -->\n).*?(?=\n\n<!-- to here -->)',
                          lambda at: at[1] + text, page, flags=re.S)
    if not found:
        raise server.BenchError('docs/performance.md has no place for the table')
    if not options.dry_run:
        with open(PAGE, 'w', encoding='utf-8') as file:
            file.write(page)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--transactions', type=int, default=4000)
    parser.add_argument('--dry-run', action='store_true', help='only print the table')
    options = parser.parse_args()
    subprocess.run([os.path.join(ROOT, 'dev', 'provision')], check=True)
    os.environ['PATH'] = server.run(['pg_config', '--bindir']).strip() + os.pathsep + os.environ['PATH']
    try:
        with contextlib.ExitStack() as held:
            environments, names = {}, {}
            for version in supported():
                environments[version] = held.enter_context(server.of_version(version, *SETTINGS))
                os.environ.update(environments[version])
                server.create_schema()
                names[version] = server.sql('SHOW server_version')[0].split()[0]
            write(options, list(table(measure(options, environments), names)))
    except server.BenchError as error:
        sys.exit(f'bench/versions.py: {error}')


main()
