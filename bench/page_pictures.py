#!/usr/bin/env python3
"""Draws the pictures of docs/performance.md from the tables of that page:

    bench/page_pictures.py [DIRECTORY]        docs/images by default

A table is known by the words before it. Each picture is for light and dark pages.
"""
import html
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# file: (words before the table, column, title)
PICTURES = {
    'fresh-throughput.svg': ('**Fresh keys**', 'a second', 'Fresh keys: operations a second, 8 clients'),
    'fresh-wal.svg': ('**Fresh keys**', 'WAL bytes', 'Fresh keys: bytes of write-ahead log for an operation, with the payment'),
    'gateway-throughput.svg': ('**With a gateway call', 'a second',
                               'With a gateway call of 20 ms: operations a second, 64 clients'),
    'replay-throughput.svg': ('**Other workloads**', 'replay', 'Replays: operations a second'),
}
NAMES, BARS, FIGURES, ROW = 160, 460, 70, 22
STYLE = '''
    text { font: 13px system-ui, sans-serif; fill: #1f2328 } .t { font-weight: bold }
    .n { text-anchor: end } .o { fill: #8c959f } .e { fill: #0969da }
    @media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .o { fill: #6e7681 } .e { fill: #4493f8 } }
'''


def read_table(page, words, column):
    """Returns [(name, figure)] of the first table after the words."""
    rows = [[cell.strip() for cell in row.strip('|').split('|')]
            for row in re.search(r'(?:^\|.*\n)+', page[page.index(words):], re.M).group().splitlines()]
    at = rows[0].index(column)
    return [(row[0].strip('`'), float(row[at].replace(',', ''))) for row in rows[2:] if row[at] != '–']


def draw(title, rows):
    """Bars, those of the extension in colour."""
    most, width, height = max(figure for _, figure in rows), NAMES + BARS + FIGURES, (len(rows) + 2) * ROW
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">'
    yield f'  <title>{html.escape(title)}</title>\n  <style>{STYLE}  </style>'
    yield f'  <text class="t" x="0" y="16">{html.escape(title)}</text>'
    for number, (name, figure) in enumerate(rows):
        y, length = (number + 1.5) * ROW, figure / most * BARS
        yield f'  <text class="n" x="{NAMES - 8}" y="{y + 13:.0f}">{html.escape(name)}</text>'
        yield (f'  <rect class="{"e" if name.startswith("ext") else "o"}" x="{NAMES}" y="{y:.0f}"'
               f' width="{length:.1f}" height="{ROW - 6}" rx="2"/>')
        yield f'  <text x="{NAMES + length + 6:.1f}" y="{y + 13:.0f}">{figure:,.0f}</text>'
    yield '</svg>'


def main():
    with open(os.path.join(ROOT, 'docs', 'performance.md'), encoding='utf-8') as file:
        page = file.read()
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, 'docs', 'images')
    for name, (words, column, title) in PICTURES.items():
        with open(os.path.join(folder, name), 'w', encoding='utf-8') as file:
            file.write('\n'.join(draw(title, read_table(page, words, column))) + '\n')


main()
