"""
Which SQLSTATEs a function may raise: read from docs/reference, so that what is
not documented there fails, and what is documented and never seen fails too.
"""
import re
from pathlib import Path

CODE = re.compile(r'`([0-9A-Z]{5})`')
SECTION = re.compile(r'^## (.+)$', re.M)


def sections(text):
    """Heading -> what stands below it."""
    parts = SECTION.split(text)
    return dict(zip(parts[1::2], parts[2::2]))


def codes(text):
    """The SQLSTATEs in the first column of the tables of a text."""
    found = set()
    for line in text.splitlines():
        if line.startswith('|'):
            found.update(CODE.findall(line.split('|')[1]))
    return found


def general(text):
    """SQLSTATEs that any function may raise, and those whose line begins with the functions that may."""
    anybody, restricted = set(), {}
    for line in text.splitlines():
        when = line.split('|')[2].strip() if line.startswith('|') else ''
        functions = set(re.findall(r'`(idem_\w+)', when)) if when.startswith('`idem_') else set()
        for code in codes(line):
            anybody.discard(code) if functions else anybody.add(code)
            if functions:
                restricted[code] = functions
    return anybody, restricted


class Documentation:
    """What docs/reference says."""

    def __init__(self, directory):
        self.pages = {page.stem: page.read_text('utf-8') for page in Path(directory).glob('*.md')}
        errors = sections(self.pages['errors'])
        self.own = codes(errors['Errors of the extension'])
        self.general, self.restricted = general(errors['Errors of PostgreSQL'])
        if len(self.own) < 7 or len(self.general) < 8:
            raise ValueError('docs/reference/errors.md does not read as expected')

    def page_of(self, function):
        """The name of the page that has the function's signature; None without one."""
        if function in self.pages:
            return function
        for name, text in self.pages.items():
            if re.search(rf'^{function}\(', text, re.M):
                return name
        return None

    def _of_page(self, page):
        errors = sections(self.pages[page]).get('Errors', '')
        found = codes(errors)
        others = set()
        for line in errors.splitlines():
            if re.match(r'\|\s*others\b', line):
                for other in re.findall(r'\]\((idem_\w+)\.md\)', line):
                    others |= self._of_page(other)[0]
        return found, others

    def specific(self, function):
        """What the function's own page lists: each of them is to be seen."""
        page = self.page_of(function)
        return self._of_page(page)[0] if page else set()

    def allowed(self, function):
        """
        What it may raise: its page, the pages that this refers to, PostgreSQL's.
        Without a page everything that is documented anywhere.
        """
        page = self.page_of(function)
        own, others = self._of_page(page) if page else (self.own, set())
        named = {code for code, functions in self.restricted.items() if function in functions}
        return own | others | self.general | named
