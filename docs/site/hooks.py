"""What MkDocs does not do by itself for a tree that is read on a code host, too."""
import logging
import os
import re
from pathlib import Path, PurePosixPath
from posixpath import join, normpath

LOG = logging.getLogger('mkdocs.plugins')
LINK = re.compile(r'\]\(([^)\s#]+)(#[^)\s]*)?\)')
INFO_STRING = re.compile(r'^( *```[a-z]+) [^`\n]+$', re.MULTILINE)


def on_config(config):
    """Take the navigation from the table of docs/README.md."""
    config.nav = navigation(Path(config.docs_dir, 'docs/README.md').read_text(encoding='utf-8'))
    project = Path(config.docs_dir, '../PROJECT').read_text(encoding='utf-8')
    config.site_url = re.search(r'^home +(\S+)', project, re.MULTILINE)[1]
    config.extra['source'] = re.search(r'^source +(\S+)', project, re.MULTILINE)[1]
    return config


def navigation(contents):
    """A row in bold letters begins a section; each link of another row is a page."""
    nav = []
    section = nav
    for row in re.findall(r'^\| (.+?) \|', contents, re.MULTILINE):
        if row.startswith('**'):
            section = []
            nav.append({row.strip('*'): section})
        for title, target in re.findall(r'\[([^]]+)\]\(([^)]+)\)', row):
            section.append({title: normpath(join('docs', target))})
    return nav


def on_page_markdown(markdown, page, config, files):
    """Let links to folders lead to their pages, and those to other files to the source."""
    here = PurePosixPath(page.file.src_uri).parent

    def lead(link):
        target, anchor = link[1], link[2] or ''
        if ':' in target:
            return link[0]
        path = normpath(join(here, target))
        if files.get_file_from_path(join(path, 'README.md')):
            return f'](/{join(path, "README.md")}{anchor})'
        if files.get_file_from_path(path) or path.endswith('.md'):
            return link[0]
        if not Path(os.environ['TREE'], path).exists():
            LOG.warning('%s: a link to %s, which the tree does not have', page.file.src_uri, path)
        return f']({config.extra["source"]}/{path})'

    # the file that a block of code belongs to is for the tests
    return LINK.sub(lead, INFO_STRING.sub(r'\1', markdown))
