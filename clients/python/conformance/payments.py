"""What the four conformance programs share: the two routes' work, and how to reach the database."""

import json
import os
import subprocess
import sys
import uuid

PACKAGE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
ENVIRONMENT = subprocess.check_output([os.path.join(PACKAGE, "venv")], text=True).strip()
if sys.prefix != ENVIRONMENT:
    # goes on in the environment, as the same process: a signal ends the program
    python = os.path.join(ENVIRONMENT, "bin", "python")
    os.execv(python, [python, os.path.abspath(sys.argv[0]), *sys.argv[1:]])
sys.path.insert(0, PACKAGE)

import psycopg      # noqa: E402

DATABASE_URL = os.environ["DATABASE_URL"]
PORT = int(os.environ["PORT"])
INSERT = "INSERT INTO payment (account, amount, kind) VALUES (%s, %s, %s)"
LIMIT = 1000

# Options that all frameworks take. A lease of 5 seconds: after a kill nobody waits for long.
OPTIONS = {
    "stored_headers": ("content-type", "location", "etag", "content-language", "x-payment"),
    "describedby": "https://example.com/docs/idempotency",
    "routes": {"/charges": {"lease": 5}},
}


class Crash(Exception):
    """What the handler raises when it is asked to."""


class Invalid(Exception):
    """The body is not a payment."""


def prepare():
    """Creates the table where the role may."""
    try:
        with psycopg.connect(DATABASE_URL, autocommit=True) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS payment (account text, amount integer, kind text)")
    except psycopg.Error as error:
        print(f"the table payment was not created: {error}", file=sys.stderr)


def read(body):
    """The payment of a request. Raises Invalid."""
    try:
        payment = json.loads(body)
    except ValueError as error:
        raise Invalid() from error
    if not isinstance(payment, dict):
        raise Invalid()
    amount = payment.get("amount", 0)
    if isinstance(amount, float) and amount.is_integer():
        amount = int(amount)
    if not isinstance(amount, int) or isinstance(amount, bool):
        raise Invalid()
    if not isinstance(payment.get("account"), str) and not payment.get("crash"):
        raise Invalid()
    return {**payment, "account": payment.get("account"), "amount": amount}


def row(payment, kind):
    """The arguments of INSERT."""
    return payment["account"], payment["amount"], kind


def pause(payment):
    """Seconds to sleep inside."""
    return payment.get("slow", 0) / 1000


def is_declined(payment):
    return payment["amount"] > LIMIT


def paid(payment):
    """Status, headers and JSON value of a payment that was made."""
    number = str(uuid.uuid4())
    return 201, {"X-Payment": number}, {"id": number, "account": payment["account"], "amount": payment["amount"]}


DECLINED = 402, {}, {"reason": "declined"}
INVALID = 400, {}, {"reason": "not a payment"}
