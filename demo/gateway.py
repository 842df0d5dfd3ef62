"""The shop's client of the card gateway; see gateway.sql for the other side."""

import time

import psycopg

LATENCY = 0.003


class GatewayError(Exception):
    """There was no answer: the card may have been charged, or not."""


class StaleFence(Exception):
    """A newer owner of this payment has called the gateway."""


class Gateway:
    """A connection of its own, in autocommit: a charge stays, even if the caller's
    transaction is rolled back."""

    def __init__(self, database):
        self.connection = connect(database)

    def find_charge(self, reference, fence):
        """The number of the charge made under this reference, or None. From
        now on the gateway refuses callers with an older fence."""
        return self.ask("SELECT * FROM find_charge(%s, %s)", (reference, fence))

    def charge(self, reference, amount, fence=None):
        """Charges the card and returns the charge's number."""
        return self.ask("SELECT * FROM charge_card(%s, %s, %s)", (reference, amount, fence))

    def ask(self, statement, arguments):
        """One request, with a network's delay."""
        time.sleep(LATENCY)
        result, charge = self.connection.execute(statement, arguments).fetchone()
        if result == "stale fence":
            raise StaleFence(result)
        if result not in ("found", "charged"):
            raise GatewayError(result)
        return charge


def connect(database):
    """A connection on which every wait ends after some seconds."""
    return psycopg.connect(dbname=database, autocommit=True, connect_timeout=10,
                           options="-c statement_timeout=20s -c client_min_messages=warning")
