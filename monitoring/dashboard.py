"""Draws the dashboard of grafana.json without Grafana: its panels where it has them, with
its titles, units and names of lines, as one SVG for light and dark pages."""

import html
import math
import re

STEP = 1                        # seconds from one figure to the next
COLUMN, ROW = 45, 20            # pixels for a step of Grafana's grid
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 36, 28        # around the curves of a panel
LIGHT = ('#1f77b4', '#2ca02c', '#d62728', '#b35900', '#9467bd')
DARK = ('#6cb6ff', '#57c460', '#ff7b72', '#f0a14a', '#c297ff')
STYLE = '''
    text { font: 11px system-ui, sans-serif; fill: #57606a } .t { font-size: 13px; font-weight: bold; fill: #1f2328 }
    .n { text-anchor: end } rect { fill: none; stroke: #d0d7de }
    line { stroke: #d8dee4 } path { fill: none; stroke-width: 1.5 }
''' + ''.join(f'    .l{i} {{ stroke: {c} }} .k{i} {{ fill: {c} }}\n' for i, c in enumerate(LIGHT)) + '''
    @media (prefers-color-scheme: dark) {
    text { fill: #9198a1 } .t { fill: #e6edf3 } rect { stroke: #3d444d } line { stroke: #2f353d }
''' + ''.join(f'    .l{i} {{ stroke: {c} }} .k{i} {{ fill: {c} }}\n' for i, c in enumerate(DARK)) + '    }\n'


def draw(dashboard, ask, seconds):
    """The SVG; ask(expression) gives the series of the time that is drawn, as Prometheus does."""
    panels = dashboard['panels']
    width, height = (max(p['gridPos'][at] + p['gridPos'][size] for p in panels) * step
                     for at, size, step in (('x', 'w', COLUMN), ('y', 'h', ROW)))
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
    yield f'  <title>{html.escape(dashboard["title"])}</title>\n  <style>{STYLE}  </style>'
    for panel in panels:
        at, target = panel['gridPos'], panel['targets'][0]
        yield f'  <g transform="translate({at["x"] * COLUMN} {at["y"] * ROW})">'
        yield from draw_panel(panel, ask(target['expr']), target['legendFormat'], seconds)
        yield '  </g>'
    yield '</svg>'


def draw_panel(panel, series, legend, seconds):
    width, height = panel['gridPos']['w'] * COLUMN - 8, panel['gridPos']['h'] * ROW - 8
    across, down = width - LEFT - RIGHT, height - TOP - BOTTOM
    points = [[(float(time), float(value)) for time, value in one['values'] if math.isfinite(float(value))]
              for one in series]
    top = round_up(max((value for one in points for _, value in one), default=0))
    end = max((time for one in points for time, _ in one), default=0)
    yield f'    <rect width="{width}" height="{height}" rx="3"/>'
    yield f'    <text class="t" x="10" y="19">{html.escape(panel["title"])}</text>'
    for part in (0, 0.5, 1):
        y = TOP + down * (1 - part)
        yield f'    <line x1="{LEFT}" x2="{width - RIGHT}" y1="{y:.0f}" y2="{y:.0f}"/>'
        yield (f'    <text class="n" x="{LEFT - 5}" y="{y + 4:.0f}">'
               f'{readable(top * part, panel["fieldConfig"]["defaults"]["unit"])}</text>')
    at = 10
    for number, (one, line) in enumerate(zip(series, points)):
        # where there is no figure the line is interrupted
        where = ''.join(f'{"M" if time - before > 1.5 * STEP else "L"}'
                        f'{LEFT + across * (1 - (end - time) / seconds):.1f},{TOP + down * (1 - value / top):.1f}'
                        for (before, _), (time, value) in zip([(0, 0), *line], line))
        name = re.sub(r'\{\{(\w+)\}\}', lambda label: one['metric'][label.group(1)], legend)
        yield f'    <path class="l{number}" d="{where}"/>'
        yield f'    <text class="k{number}" x="{at}" y="{height - 8}">{html.escape(name)}</text>'
        at += 7 * len(name) + 8


def round_up(value):
    """The next one of 1, 2, 5, 10, 20, ...; 1 for nothing."""
    if value <= 0:
        return 1
    power = 10 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value)


def readable(value, unit):
    if unit == 'percentunit':
        return f'{value:.0%}'
    if unit == 'bytes':
        return f'{value / 1000:,g} kB'
    return f'{value:,g}' + {'ops': '/s', 's': ' s'}.get(unit, '')
