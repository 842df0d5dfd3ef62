#!/usr/bin/env python3
"""Compares every mention of the project's addresses with the file PROJECT.

    test/lint-home.py DIRECTORY

An address is what ends like this project's: HOST/.../idempotency, with what follows,
maintainers at HOST, and a groupId of Maven. It is right if PROJECT has it, or what it begins with.
"""
import os
import re
import sys

MENTION = re.compile(r'(?:https://)?(?:[\w-]+\.)+[a-z]{2,}/(?:[\w-]+/)*idempotency(?:[/.]\w+)*'
                     r'|maintainers@[\w.-]*\w|(?<=<groupId>)[\w.]+\.idempotency')
PRODUCTS = {'.git', 'node_modules', 'types', 'dist', '__pycache__'}


def wrong(text, allowed):
    for match in MENTION.finditer(text):
        if not any(re.match(re.escape(value) + r'(?![\w-])', match.group()) for value in allowed):
            yield text.count('\n', 0, match.start()) + 1, match.group()


def main(root):
    with open(os.path.join(root, 'PROJECT'), encoding='utf-8') as file:
        values = dict(line.split() for line in file if line.strip() and not line.startswith('#'))
    # what pages and tests use for the service of a reader
    allowed = ['https://example.com/docs', *(values[name] for name in ('home', 'source', 'contact', 'module', 'group'))]
    found, failed = 0, False
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(set(folders) - PRODUCTS)
        for path in sorted(os.path.join(folder, name) for name in names):
            try:
                with open(path, encoding='utf-8') as file:
                    text = file.read()
            except (UnicodeDecodeError, OSError):
                continue
            found += len(MENTION.findall(text))
            for line, mention in wrong(text, allowed):
                print(f'{os.path.relpath(path, root)}:{line}: PROJECT does not have {mention}')
                failed = True
    if found < 50:
        print(f'only {found} mentions of an address were found')
        failed = True
    return failed


sys.exit(main(sys.argv[1]))
