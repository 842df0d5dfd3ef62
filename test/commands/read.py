#!/usr/bin/env python3
"""Prints the commands of Markdown pages, each with its page and line, and a tab between.

Commands are the lines of all blocks marked "sh", and in the text what begins like the
installation of something, as `npm install pg`.  Comments are left out, and a line that
ends with a backslash goes on.  Other commands in the text, such as `make check` and
`dev/chroot 18`, are printed with "text" before the page: they have to exist.
"""
import re
import sys

FENCE = re.compile(r'^(?P<indent> *)```(?P<kind>\S*).*?\n(?P<text>.*?)^(?P=indent)```', re.M | re.S)
INSTALLS = re.compile(r'(npm|pip|go|cargo|gem|mvn|podman|docker|apt-get|pgxn|rpm) \S+ \S')
OTHERS = re.compile(r'([A-Z_]+=\S+ )*(make|(\.ci|bench|clients|demo|dev|examples|managed|monitoring|packaging|test)/\S+) \S')


def commands(text):
    """Yields (line, command, whether it must be a row of the list)."""
    def blank(match):
        return '\n' * match.group().count('\n')

    for fence in FENCE.finditer(text):
        if fence['kind'] == 'sh':
            first = text.count('\n', 0, fence.start('text')) + 1
            for line, command in in_block(fence['text']):
                yield first + line, command, True
    for span in re.finditer(r'`([^`\n]+)`', FENCE.sub(blank, text)):
        line = FENCE.sub(blank, text).count('\n', 0, span.start()) + 1
        command = span[1]
        if INSTALLS.match(command) or OTHERS.match(command):
            yield line, command, bool(INSTALLS.match(command))


def in_block(text):
    pending = ''
    for number, line in enumerate(text.split('\n')):
        line = pending + re.sub(r'(^|\s+)# .*', '', line).strip()
        if line.endswith('\\'):
            pending = line[:-1].rstrip() + ' '
            continue
        pending = ''
        if line:
            yield number, line


for page in sys.argv[1:]:
    with open(page, encoding='utf-8') as file:
        for line, command, listed in commands(file.read()):
            print(f'{"list" if listed else "text"}\t{page}:{line}\t{command}')
