"""The table on the screen and the file of raw figures."""

import json
import statistics

HEADINGS = ('measure', 'median', 'quartiles', 'range', 'target', '')


def row(title, ratios, target, at_most=False):
    """One measure: the median of its pairwise ratios, their spread, the verdict."""
    median = statistics.median(ratios)
    quartiles = statistics.quantiles(ratios, n=4, method='inclusive') if len(ratios) > 1 else [median] * 3
    return {'title': title, 'median': median, 'ratios': ratios,
            'quartiles': [quartiles[0], quartiles[2]], 'range': [min(ratios), max(ratios)],
            'target': target, 'at_most': at_most, 'verdict': verdict(median, target, at_most)}


def skipped(title, why):
    return {'title': title, 'median': None, 'verdict': f'skipped: no {why}'}


def verdict(median, target, at_most):
    if target is None:
        return ''
    return 'met' if (median <= target if at_most else median >= target) else 'missed'


def cells(entry):
    if entry['median'] is None:
        return entry['title'], '', '', '', '', entry['verdict']
    target = entry['target']
    bound = '' if target is None else f'{"≤" if entry["at_most"] else "≥"} {target:.2f}'
    return (entry['title'], f'{entry["median"]:.3f}', spread(entry['quartiles']),
            spread(entry['range']), bound, entry['verdict'])


def spread(pair):
    return f'{pair[0]:.2f}–{pair[1]:.2f}'


def show(title, entries):
    show_table(title, HEADINGS, [cells(entry) for entry in entries])


def show_table(title, headings, rows):
    widths = [max(map(len, column)) for column in zip(headings, *rows)]
    print(title)
    for cell in (headings, *rows):
        print('  '.join(text.ljust(width) for text, width in zip(cell, widths)).rstrip())


def save(path, results):
    with open(path, 'w') as out:
        json.dump(results, out, indent=1)
        out.write('\n')
