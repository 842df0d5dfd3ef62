#!/usr/bin/env python3
"""Compares what names versions of PostgreSQL with the lists in dev/common.sh.

    test/lint-versions.py DIRECTORY

A list has to be where it is expected, and to have the versions that are supported, or
those that Debian packages are made for.
"""
import os
import re
import sys

# (file, what stands around its list, which list): the parentheses are around the list
PLACES = [
    ('README.md', r'^\* \*\*PostgreSQL\*\* (.*) are tested by each change', 'supported'),
    ('README.md', r'^packaging/deb 15 .*/deb/(15/.* # Debian 12; .* also .*)$', 'packaged'),
    ('Makefile', r'^check-all: ## every test on PostgreSQL (.*), and pg_upgrade', 'supported'),
    ('Makefile', r'^deb: ## for Debian: PostgreSQL (.*) \(root', 'packaged'),
    ('META.json', r'^ +"PostgreSQL": "(.*)\.0\.0"', 'oldest'),
    ('debian/pgversions', r'^(.*)\+$', 'oldest'),
    ('src/base/compat.h', r'^#if PG_VERSION_NUM < (.*)0000$', 'oldest'),
    ('managed/idempotency.sql', r"'PostgreSQL (.*) or newer is needed'", 'oldest'),
    ('docs/support.md', r'^The extension supports each major version of PostgreSQL from (.*) on for', 'oldest'),
    ('docs/support.md', r'^\| PostgreSQL \| tested on \|\n\|-.*\n((?:\|.*\n)*)', 'supported'),
    ('docs/support.md', r'`pg_upgrade` from each version to the next \((.*)\)', 'supported'),
    ('docs/packages.md', r'^\| Debian \|.*?(`deb/.*): `postgresql-15', 'packaged'),
]
# a version that the list has, and not the number of a Debian release, of a minor one or of tests
VERSION = re.compile(r'(?<![\d.(+-])(?<!Debian )(1[5-9]|[2-9]\d)(?!\d)')
FIRST_OF_ROW = re.compile(r'^\| (\d+)', re.MULTILINE)


def read(root, path):
    with open(os.path.join(root, path), encoding='utf-8') as file:
        return file.read()


def lists_of(text):
    lists = {name: re.search(rf'^{name}=\(([\d ]+)\)', text, re.MULTILINE).group(1).split()
             for name in ('supported', 'packaged')}
    return {**lists, 'oldest': lists['supported'][:1]}


def named_in(part):
    names = (FIRST_OF_ROW if part.startswith('|') else VERSION).findall(part)
    return sorted(set(names), key=int)


def complaints(root):
    lists = lists_of(read(root, 'dev/common.sh'))
    for path, pattern, name in PLACES:
        match = re.search(pattern, read(root, path), re.MULTILINE)
        if not match:
            yield f'{path}: no list of versions where {pattern} is expected'
        elif named_in(match.group(1)) != lists[name]:
            yield f'{path}: {", ".join(named_in(match.group(1)))}, not {", ".join(lists[name])} as dev/common.sh has it'


found = list(complaints(sys.argv[1]))
print('\n'.join(found), end='\n' if found else '')
sys.exit(bool(found))
