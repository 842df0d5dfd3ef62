"""Peers: the alternatives to the extension, compared with it.

All of it runs through one driver, in Node. Every peer is first held to the same
test of duplicate deliveries; what fails it is timed all the same, and told.
"""

import os
import statistics

import report
import server

from . import plan, services

NAME = 'peers'
KEYS = 20               # deliveries of each kind that the test of duplicates makes
COUNTS = 3              # runs that are counted, of each workload
CASES = ('in turn', 'at once', 'declined', 'killed', 'stalled')


def add_arguments(parser):
    group = parser.add_argument_group(NAME, 'takes a quarter of an hour; --quick makes a small selection')
    group.add_argument('--peer', nargs='+', metavar='PEER', choices=[p.name for p in plan.PEERS],
                       help=f'only these: {", ".join(p.name for p in plan.PEERS)}')


def measure(options, tell):
    """The entries of the table, and every raw figure; tables are shown as they come."""
    services.link_modules()
    server.run(['psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-f', os.path.join(services.FOLDER, 'schema.sql')])
    with services.redis():
        peers = Peers(options, tell)
        peers.judge()
        for workload in peers.workloads:
            peers.time(workload)
            peers.count(workload)
            peers.show(workload)
        return peers.entries(), peers.raw()


class Peers:
    def __init__(self, options, tell):
        self.options, self.tell = options, tell
        self.rounds, self.seconds = (3, 0.7) if options.quick else (5, 2)
        chosen = options.peer or (plan.QUICK_PEERS if options.quick else [p.name for p in plan.PEERS])
        self.peers = [p for p in plan.PEERS if p.name in chosen]
        self.workloads = plan.WORKLOADS[:1] if options.quick else plan.WORKLOADS
        self.verdicts, self.runs, self.counted, self.failed = {}, [], {}, {}
        self.environment = services.environment()

    # ---- correctness ----

    def judge(self):
        for peer in self.peers:
            self.tell(f'{NAME}: duplicate deliveries to {peer.name}')
            reset()
            self.verdicts[peer.name] = services.driver(
                'judge', peer=peer.name, keys=KEYS, faults=not self.options.quick)
        self.table('duplicate deliveries; cases that ended in one payment and one answer',
                   ('peer', *CASES), [self.verdict_row(p) for p in self.peers])
        for name in plan.EXTENSION:
            if name in self.verdicts and self.remark(None, name):
                raise server.BenchError(f'{name} fails the test of duplicate deliveries: {self.verdicts[name]}')

    def is_right(self, name):
        return all(self.verdicts[name][case]['right'] for case in ('in turn', 'at once'))

    # ---- figures ----

    def members(self, workload):
        return [p for p in self.peers if p.name in workload.peers]

    def time(self, workload):
        for number, peer in server.turns(self.members(workload), self.rounds, f'{NAME}: {workload.name}', self.tell):
            result = self.run(peer, workload, seconds=self.seconds, warmup=min(0.5, self.seconds / 3))
            if result:
                self.runs.append({'peer': peer.name, 'workload': workload.name, 'round': number,
                                  'clients': workload.clients, **result})

    def count(self, workload):
        if self.options.quick:
            return
        for peer in self.members(workload):
            self.tell(f'{NAME}: {workload.name}, counting {peer.name}')
            results = [self.run(peer, workload, count=workload.count, one_client=True) for _ in range(COUNTS)]
            if all(results):
                self.counted[peer.name, workload.name] = {key: least_or_median(key, [r[key] for r in results])
                                                          for key in results[0] if key != 'effects'}

    def run(self, peer, workload, one_client=False, **length):
        """The result of the driver; None for a peer that failed in this workload."""
        if (peer.name, workload.name) in self.failed:
            return None
        reset()
        try:
            result = services.driver(
                'run', peer=peer.name, clients=1 if one_client else workload.clients,
                gateway=workload.gateway, **length)
            self.check(peer, workload, result['effects'])
            return result
        except server.BenchError as error:
            if peer.name in plan.EXTENSION:
                raise
            self.failed[peer.name, workload.name] = str(error)
            return None

    def check(self, peer, workload, effects):
        """An error if accounts are wrong, or payments of a peer that passed the test of duplicates."""
        expected = server.ACCOUNTS * 1_000_000
        if effects['money'] != expected:
            raise server.BenchError(f'{peer.name}, {workload.name}: the accounts do not match the payments')
        if self.is_right(peer.name) and not effects['payments'] == effects['keys'] == effects['accepted']:
            raise server.BenchError(f'{peer.name}, {workload.name}: {effects}')

    # ---- results ----

    def series(self, workload, name, measure):
        runs = [r for r in self.runs if (r['workload'], r['peer']) == (workload, name)]
        values = {r['round']: r['cpu_postgres'] + r['cpu_redis'] if measure == 'cpu' else r[measure] for r in runs}
        return [values[number] for number in sorted(values)]

    def median(self, workload, name, measure):
        values = self.series(workload, name, measure)
        return statistics.median(values) if values else None

    def entries(self):
        return [self.compare(c) for c in plan.COMPARISONS if self.has(c.workload, c.of) and self.has(c.workload, c.to)]

    def has(self, workload, name):
        return bool(self.series(workload, name, 'throughput'))

    def compare(self, comparison):
        of, to = (self.series(comparison.workload, name, comparison.measure) for name in (comparison.of, comparison.to))
        if comparison.measure == 'cpu':
            of, to = to, of         # less is better: turned round, so that more is
        return report.row(comparison.title, [a / b for a, b in zip(of, to)], comparison.at_least)

    def raw(self):
        return {'environment': self.environment, 'verdicts': self.verdicts, 'runs': self.runs,
                'failed': [{'peer': peer, 'workload': workload, 'error': error}
                           for (peer, workload), error in self.failed.items()],
                'counted': [{'peer': peer, 'workload': workload, **figures}
                            for (peer, workload), figures in self.counted.items()]}

    def show(self, workload):
        self.table(f'{workload.name}, {workload.clients} clients', FIGURES,
                   [self.figures_row(workload, p) for p in self.members(workload)])

    def table(self, title, headings, rows):
        self.tell('')
        report.show_table(f'{NAME}: {title}', headings, rows)
        print(flush=True)

    def verdict_row(self, peer):
        verdict = self.verdicts[peer.name]
        return (peer.title, *(told(verdict[case]) if case in verdict else '–' for case in CASES))

    def figures_row(self, workload, peer):
        name, counted = peer.name, self.counted.get((peer.name, workload.name), {})
        redis = counted.get('redis_memory', 0)
        return (peer.title,
                number(self.median(workload.name, name, 'throughput'), 0),
                number(self.median(workload.name, name, 'p50'), 1), number(self.median(workload.name, name, 'p99'), 1),
                number(counted.get('trips'), 1),
                number(self.median(workload.name, name, 'cpu_postgres'), 2),
                number(self.median(workload.name, name, 'cpu_redis'), 2),
                number(self.median(workload.name, name, 'cpu_client'), 2),
                number(counted.get('wal'), 0), number(counted.get('dead'), 1),
                number(counted.get('stored'), 0) + (f' + {redis:.0f}' if redis else ''),
                self.remark(workload.name, name))

    def remark(self, workload, name):
        if (name, workload) in self.failed:
            return 'broke down'
        verdict = self.verdicts.get(name, {})
        return '' if all(case['right'] for case in verdict.values()) else 'fails duplicates'


FIGURES = ('peer', 'a second', 'p50 ms', 'p99 ms', 'trips', 's/1000 PostgreSQL', 'Redis', 'client', 'WAL bytes', 'dead',
           'stored bytes', '')


def least_or_median(measure, values):
    """The minimum, as other writes of the server only add; for sizes, which are whole pages, the median."""
    return max(statistics.median(values), 0) if measure in ('stored', 'redis_memory') else min(values)


def told(case):
    if case['right']:
        return f'{case["cases"]} of {case["cases"]}'
    wrong = [f'{case[name]} {name}' for name in ('twice', 'lost', 'stuck') if case[name]]
    return f'{", ".join(wrong) or "other answers"} of {case["cases"]}'


def number(value, digits):
    return '' if value is None else f'{value:.{digits}f}'


def reset():
    """The same tables before every run, and an empty Redis."""
    server.sql('TRUNCATE peer_payments RESTART IDENTITY')
    server.reset()
    server.sql('VACUUM (ANALYZE) peer_payments')
    services.redis_command('flushall')
