"""The packages of clients/, compared with what people write by hand in the same language.

node.mjs, python.py, java/Payments.java and clients/go/internal/tests/bench do the same payments. Each variant is a
process of its own, which says how many operations have ended, and how many a second:

    package   a transaction by the package
    glue      the same by hand: idem_begin, the payment, idem_complete, a statement at a time
    hand      SELECT FOR UPDATE, INSERT, the payment, UPDATE, in a table of one's own
    bare      BEGIN, the payment, COMMIT. No protection

Sides by hand have their driver's defaults: psycopg, pgx and pgjdbc prepare what is repeated, node-postgres does not.
pgjdbc sends BEGIN along with the first statement, so its bare transaction has a round trip less than the others.
A run in Java or Node.js is timed when its compiler rests.
"""

import contextlib
import json
import os
import subprocess
import tempfile
from dataclasses import dataclass

import report
import server
import workloads

NAME = 'packages'
FOLDER = os.path.dirname(os.path.abspath(__file__))
PATIENCE = 120      # seconds, for one run
LANGUAGES = {
    'node': ('Node.js', ['node', os.path.join(FOLDER, 'node.mjs')]),
    'python': ('Python', [os.environ.get('BENCH_PYTHON', ''), os.path.join(FOLDER, 'python.py')]),
    'go': ('Go', [os.environ.get('BENCH_GO', '')]),
    'java': ('Java', ['java', '-cp', os.environ.get('BENCH_JAVA', ''), 'Payments']),
}
VARIANTS = {
    'package': workloads.Variant('package', workloads.PAID_AND_STORED),
    'glue': workloads.Variant('glue', workloads.PAID_AND_STORED),
    'hand': workloads.Variant('hand', workloads.PAID_BY_HAND),
    'bare': workloads.Variant('bare', workloads.PAID),
}


@dataclass(frozen=True)
class Network:
    name: str
    trip: float         # milliseconds of a round trip that are added
    clients: int
    warmup: float       # seconds, at most as long as the run: compilers work on what has run often
    comparisons: tuple  # title, what the package is compared with, at least


# With eight clients the processors are busy, with one the network is waited for.
NETWORKS = (
    Network('here', 0, 8, 0.5, (('{}: the package / the same by hand', 'glue', 0.95),)),
    Network('1 ms', 1, 1, 3, (('{}, network of 1 ms: the package / SELECT FOR UPDATE, INSERT, UPDATE', 'hand', 1.3),
                              ('{}, network of 1 ms: the package / the bare transaction', 'bare', 0.95))),
)


def add_arguments(parser):
    group = parser.add_argument_group(NAME, 'takes a quarter of an hour; --quick leaves it out, or with --only makes it short')
    group.add_argument('--language', nargs='+', choices=list(LANGUAGES), default=list(LANGUAGES),
                       help=f'only these: {", ".join(LANGUAGES)}')
    group.add_argument('--network', nargs='+', choices=[n.name for n in NETWORKS], default=[n.name for n in NETWORKS],
                       help='only these: here (no delay), 1 ms')


def measure(options, tell):
    """The entries of the table, and every raw figure."""
    seconds = options.seconds or (1 if options.quick else 3)
    entries, raw = [], []
    for network in NETWORKS:
        for language in options.language if network.name in options.network else ():
            with connection(network) as environment:
                runs = alternate(language, network, environment, options.rounds, seconds, tell)
            raw += runs
            entries += [compare(comparison, language, runs) for comparison in network.comparisons]
    return entries, raw


def alternate(language, network, environment, rounds, seconds, tell):
    """All rounds of a language, forwards and backwards."""
    names = ['package', *(to for _, to, _ in network.comparisons)]
    return [{'workload': NAME, 'language': language, 'network': network.name, 'variant': name, 'round': number,
             'clients': network.clients, 'seconds': seconds, **run(language, VARIANTS[name], network, environment, seconds)}
            for number, name in server.turns(names, rounds, f'{NAME}: {language}, {network.name}', tell)]


def run(language, variant, network, environment, seconds):
    """One process; the tables must have what it says it has done."""
    server.reset()
    before = server.counters()
    order = {'variant': variant.name, 'clients': network.clients, 'seconds': seconds, 'warmup': min(network.warmup, seconds),
             'accounts': server.ACCOUNTS, 'request': json.loads(server.REQUEST), 'response': json.loads(server.RESPONSE)}
    try:
        output = server.run([*LANGUAGES[language][1], json.dumps(order)], timeout=PATIENCE, env=environment)
    except subprocess.TimeoutExpired:
        raise server.BenchError(f'{language} hangs: {variant.name}') from None
    result = json.loads(output.splitlines()[-1])
    server.check(variant, result['transactions'], before)
    return result


@contextlib.contextmanager
def connection(network):
    """The environment by which a program reaches the server: by a proxy, where there is a delay."""
    if not network.trip:
        yield os.environ
        return
    with tempfile.TemporaryDirectory() as folder:
        proxy = subprocess.Popen(
            ['/usr/bin/python3', os.path.join(FOLDER, 'delay.py'), folder, os.environ['PGPORT'], str(network.trip)],
            stdout=subprocess.PIPE, text=True)
        try:
            if proxy.stdout.readline() != 'ready\n':
                raise server.BenchError('the proxy did not start')
            yield {**os.environ, 'PGHOST': folder}
        finally:
            proxy.terminate()
            proxy.wait()


def compare(comparison, language, runs):
    title, to, at_least = comparison
    of, to = ([r['throughput'] for r in sorted(runs, key=lambda r: r['round']) if r['variant'] == name]
              for name in ('package', to))
    return report.row(title.format(LANGUAGES[language][0]), [a / b for a, b in zip(of, to)], at_least)
