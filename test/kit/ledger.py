"""An append-only file outside the database: what clients did, which answers they got, and when.

Every line is one write to a file opened for appending, so lines of several processes do
not mix, and no crash of the server takes one back. Times are of the machine's monotonic
clock, which no fault shifts and all processes share.
"""

import json
import os
import time


def now():
    """Seconds of the monotonic clock."""
    return time.monotonic()


class Ledger:
    """The file, to be written by any process after a fork."""

    def __init__(self, path):
        self.path = path
        self.file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)

    def write(self, event, **facts):
        os.write(self.file, (json.dumps({"event": event, **facts}) + "\n").encode())


def read(path):
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]
