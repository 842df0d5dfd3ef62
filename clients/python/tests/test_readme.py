"""Runs each Python block of the README, as a reader would copy it."""

import pathlib
import re

import psycopg
import pytest

README = pathlib.Path(__file__).parent.parent / "README.md"
TEXT = README.read_text(encoding="utf-8")
BLOCKS = re.findall(r"^## ([^\n]+)$|^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
[TABLES] = re.findall(r"^```sql\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def named_blocks():
    """Each block with the title that it stands under."""
    title = ""
    for heading, block in BLOCKS:
        if heading:
            title = heading
        else:
            yield pytest.param(block, id=title)


@pytest.fixture(scope="module", autouse=True)
def tables():
    with psycopg.connect("", autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS account, card_payment, shipment; DELETE FROM idempotency_store")
        connection.execute(TABLES)
        yield
        balances = dict(connection.execute("SELECT id, balance::int FROM account").fetchall())
        connection.execute("DROP TABLE account, card_payment, shipment")
    assert balances == {"alice": 70, "bob": 101, "carol": 106, "dave": 105, "erin": 105, "frank": 101}


@pytest.mark.parametrize("block", list(named_blocks()))
def test_a_block(block):
    exec(compile(block, str(README), "exec"), {"__name__": "example"})
