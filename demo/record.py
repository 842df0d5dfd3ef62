#!/usr/bin/env python3
"""Records a command as a picture:

    demo/record.py FILE.svg COMMAND [ARG...]       demo/record.py docs/images/demo.svg make demo

The command runs at a terminal of its own. The picture shows the lines that are on this
terminal at the end, in their colours, for light and dark pages; each appears when it
appeared in the run, which is shortened to ten seconds. Cursor movements are followed as
far as a progress bar needs them.
"""
import html
import os
import pty
import re
import struct
import sys
import termios
import time
from fcntl import ioctl

COLUMNS = 82
SECONDS = 10
WIDTH, HEIGHT = 8.4, 18
PIECE = re.compile(r'\x1b\[([?\d;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)')
STYLES = {'1': 'b', '2': 'd', '31': 'r', '32': 'g'}
STYLE = '''
    text { font: 14px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #1f2328 }
    rect { fill: #f6f8fa; stroke: #d1d9e0 }
    .b { font-weight: bold } .d { fill: #59636e } .r { fill: #c21c2c } .g { fill: #1a7f37 }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3 } rect { fill: #0d1117; stroke: #3d444d }
      .d { fill: #9198a1 } .r { fill: #ff7b72 } .g { fill: #3fb950 }
    }
    @media (prefers-reduced-motion: no-preference) {
      text { animation: appear 0.1s both } @keyframes appear { from { opacity: 0 } }
    }
'''


def run(command):
    """Returns [(seconds, text)] and the exit code."""
    started, output = time.monotonic(), []
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM='xterm-256color', COLUMNS=str(COLUMNS))
        os.execvp(command[0], command)
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack('HHHH', 60, COLUMNS, 0, 0))
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:
            break
        if not data:
            break
        output.append((time.monotonic() - started, data))
        os.write(sys.stderr.fileno(), data)
    return output, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def screen(output):
    """Returns the lines: [seconds of the first character, {column: (character, classes)}]."""
    lines, row, column, classes = [[0, {}]], 0, 0, ''
    for seconds, data in output:
        for match in PIECE.finditer(data.decode(errors='replace')):
            argument, letter, control, text = match.groups()
            if letter == 'm':
                classes = ' '.join(STYLES[code] for code in argument.split(';') if code in STYLES)
            elif letter == 'A':
                row -= int(argument or 1)
            elif letter == 'K':
                lines[row][1].clear()
            elif control == '\r':
                column = 0
            elif control == '\n':
                row += 1
                column = 0
                if row == len(lines):
                    lines.append([seconds, {}])
            for character in text or '':
                if not lines[row][1]:
                    lines[row][0] = lines[row][0] or seconds
                lines[row][1][column] = (character, classes)
                column += 1
    return lines


def pieces(cells):
    """Yields (column, classes, text) for each stretch of one style."""
    found = []
    for column in sorted(cells):
        character, classes = cells[column]
        if found and found[-1][1] == classes and found[-1][0] + len(found[-1][2]) == column:
            found[-1][2] += character
        else:
            found.append([column, classes, character])
    # not every viewer keeps blanks
    return [(column + len(text) - len(text.lstrip()), classes, text.strip().replace(' ', '\xa0'))
            for column, classes, text in found if text.strip()]


def draw(command, lines):
    """Returns the picture."""
    while lines and not lines[-1][1]:
        lines.pop()
    scale = SECONDS / max(1, lines[-1][0])
    title = html.escape(' '.join(command))
    width, height = (COLUMNS + 2) * WIDTH, (len(lines) + 2.5) * HEIGHT
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" role="img">'
    yield f'  <title>A recording of {title}</title>\n  <style>{STYLE}  </style>'
    yield f'  <rect x="0.5" y="0.5" width="{width - 1:.0f}" height="{height - 1:.0f}" rx="6"/>'
    yield f'  <text x="{WIDTH}" y="{1.3 * HEIGHT:.1f}"><tspan class="d">$</tspan> {title}</text>'
    for row, (seconds, cells) in enumerate(lines):
        spans = ''.join(
            f'<tspan x="{(column + 1) * WIDTH:.1f}" textLength="{len(text) * WIDTH:.1f}"'
            + (f' class="{classes}"' if classes else '') + f'>{html.escape(text)}</tspan>'
            for column, classes, text in pieces(cells))
        if spans:
            yield f'  <text y="{(row + 2.3) * HEIGHT:.1f}" style="animation-delay: {seconds * scale:.1f}s">{spans}</text>'
    yield '</svg>'


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    output, status = run(sys.argv[2:])
    if status:
        sys.exit(f'{sys.argv[2]} ended with status {status}')
    with open(sys.argv[1], 'w', encoding='utf-8') as file:
        file.write('\n'.join(draw(sys.argv[2:], screen(output))) + '\n')


main()
