"""Pictures of the figures, drawn by gnuplot: bench/plots/*.gp into *.svg."""

import os
import statistics
import tempfile

import server

PLOTS = os.path.join(server.FOLDER, 'plots')
OURS, THEIRS = '0x1f6f8b', '0xb0b7bd'


def draw(folder, results):
    """The pictures of all measured parts."""
    if results['peers']:
        peers = Peers(results['peers'])
        for workload in peers.workloads():
            name = workload.replace(' ', '-')
            peers.bars(folder, f'throughput-{name}', workload, 'operations a second', throughput)
            peers.bars(folder, f'server-time-{name}', workload,
                       'seconds of PostgreSQL and of Redis (red) for 1000 operations', server_time)
        peers.by_clients(folder)
        peers.by_size(folder)
        peers.counted_bars(folder)
    growth(folder, [r for r in results['runs'] if r.get('part') == 'large'])


class Peers:
    def __init__(self, figures):
        self.runs, self.counted, self.titles = figures['runs'], figures['counted'], figures['titles']

    def workloads(self):
        """The workloads that are no point of a line."""
        return [w for w in unique(r['workload'] for r in self.runs) if not w.endswith((' client', ' clients', ' kB'))]

    def of(self, workload, peer):
        return [r for r in self.runs if (r['workload'], r['peer']) == (workload, peer)]

    def names(self, workload):
        """In the order of the plan, whichever order they ran in."""
        present = {r['peer'] for r in self.runs if r['workload'] == workload}
        return [name for name in self.titles if name in present]

    def bars(self, folder, picture, workload, unit, figures):
        lines = [bar(self.titles[name], name, *figures(self.of(workload, name))) for name in self.names(workload)]
        plot(folder, 'bars', picture, lines, heading=workload, unit=unit, rows=len(lines))

    def counted_bars(self, folder):
        """The writes of each fresh operation."""
        fresh = [c for c in self.counted if c['workload'] == 'fresh']
        for measure, unit in (('wal', 'bytes of write-ahead log, and of that of Redis (red), for an operation'),
                              ('trips', 'round trips of an operation')):
            lines = [bar(self.titles[c['peer']], c['peer'], c[measure], c['redis_log'] if measure == 'wal' else 0)
                     for c in sorted(fresh, key=lambda c: list(self.titles).index(c['peer']))]
            if lines:
                plot(folder, 'bars', f'fresh-{measure}', lines, heading='fresh', unit=unit, rows=len(lines))

    def by_clients(self, folder):
        points = {w: r['clients'] for r in self.runs for w in [r['workload']]
                  if w.endswith((' client', ' clients')) or w == 'fresh'}
        self.lines(folder, 'clients', points, 'fresh, median and range', 'clients', 0)

    def by_size(self, folder):
        points = {w: r['size'] for r in self.runs for w in [r['workload']] if w.endswith(' kB') or w == 'fresh'}
        self.lines(folder, 'payload', points, 'fresh, median and range', 'bytes of the request and of the answer', 1)

    def lines(self, folder, picture, points, heading, xunit, logarithmic):
        """A line for each peer that has all points."""
        names = [name for name in self.titles if all(self.of(w, name) for w in points)]
        if len(points) < 2 or not names:
            return
        blocks = []
        for name in names:
            rows = sorted((x, *spread([r['throughput'] for r in self.of(w, name)])) for w, x in points.items())
            blocks += [quoted(self.titles[name]), *(' '.join(map(str, row)) for row in rows), '', '']
        plot(folder, 'lines', picture, blocks, heading=heading, unit='operations a second', xunit=xunit,
             rows=len(names), logarithmic=logarithmic)


def growth(folder, runs):
    """Begin and complete, on stores of different sizes."""
    sizes = sorted({r['rows'] for r in runs})
    lines = [bar(f'{rows:,} rows', 'ext', statistics.median(r['tps'] for r in runs if r['rows'] == rows), 0)
             for rows in sizes]
    if lines:
        plot(folder, 'bars', 'growth', lines, heading='growth of the store', unit='begin and complete a second',
             rows=len(lines))


def throughput(runs):
    return statistics.median(r['throughput'] for r in runs), 0


def server_time(runs):
    return statistics.median(r['cpu_postgres'] for r in runs), statistics.median(r['cpu_redis'] for r in runs)


def bar(title, name, value, on_top):
    return f'{quoted(title)} {value} {on_top} {OURS if name.startswith("ext") else THEIRS}'


def spread(values):
    return statistics.median(values), min(values), max(values)


def quoted(text):
    return '"' + text.replace('_', '\\\\_') + '"'


def unique(values):
    return list(dict.fromkeys(values))


def plot(folder, script, picture, lines, **variables):
    with tempfile.NamedTemporaryFile('w', suffix='.dat') as data:
        data.write('\n'.join(lines) + '\n')
        data.flush()
        values = {**variables, 'data': data.name, 'picture': os.path.join(folder, f'{picture}.svg')}
        settings = ';'.join(f"{name}={value}" if isinstance(value, int) else f"{name}='{value}'"
                            for name, value in values.items())
        server.run(['gnuplot', '-e', settings, os.path.join(PLOTS, f'{script}.gp')])
