"""The text of every SQL statement, for any driver.

Arguments are text, numbers and NULL, with a cast in the SQL, and columns are cast
to text where drivers differ. So neither the driver's adapters nor a user's
settings of them matter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from operator import index
from typing import Any, List, Optional, Sequence, Tuple

from .errors import BadOption, Declined, asked
from .model import Call, Operation, Response, as_stored, maybe_seconds, to_json

Statement = Tuple[str, Tuple[Any, ...]]

BEGIN = "BEGIN"
COMMIT = "COMMIT"
ROLLBACK = "ROLLBACK"
SAVEPOINT = "SAVEPOINT idem_work"
RELEASE = "RELEASE SAVEPOINT idem_work"
ROLLBACK_TO = "ROLLBACK TO SAVEPOINT idem_work"

COLUMNS = ("outcome::text, scope, idempotency_key, attempt, taken_over, replayed, fence,"
           " extract(epoch FROM lease_expires_at - clock_timestamp())::float8,"
           " extract(epoch FROM retry_after)::float8, response_code, response_headers::text,"
           " response_payload::text, encode(response_body, 'hex'), (extract(epoch FROM created_at) * 1000000)::bigint")


def plain(text: str) -> Statement:
    """A statement without arguments."""
    return text, ()


def begin_block(isolation: Optional[str]) -> Statement:
    """BEGIN, with an isolation level where one is asked for."""
    if isolation is None:
        return plain(BEGIN)
    level = isolation.upper().replace("_", " ")
    if level not in ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"):
        raise ValueError(f"no such isolation level: {isolation}")
    return plain(f"{BEGIN} ISOLATION LEVEL {level}")


def limit_lost(limit: Optional[int]) -> List[Statement]:
    """The limit of lost attempts for the rest of the transaction. SET takes no parameters, and no snapshot."""
    if limit is None:
        return []
    return [plain(f"SET LOCAL idempotency.max_lost_attempts = {int(limit)}")]


def interval(duration: Optional[float]) -> Optional[str]:
    """Seconds as PostgreSQL reads an interval."""
    return None if duration is None else f"{duration:.6f} seconds"


def integer(number: Optional[int]) -> Optional[int]:
    """A number of an enum as the number."""
    return None if number is None else index(number)


def hexadecimal(data: Optional[bytes]) -> Optional[str]:
    """Bytes as PostgreSQL reads a bytea."""
    return None if data is None else "\\x" + memoryview(data).hex()


def array(values: Optional[Sequence[Optional[str]]]) -> Optional[str]:
    """Texts as PostgreSQL reads a text[]."""
    if values is None:
        return None
    return "{" + ",".join("NULL" if value is None else
                          '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' for value in values) + "}"


@dataclass(frozen=True)
class Functions:
    """The extension's functions, found in ``schema``, or by the search_path where it is None."""

    schema: Optional[str] = None

    def name(self, function: str) -> str:
        """The function's name with its schema. A quote is doubled, and so is % for the driver."""
        if self.schema is None:
            return function
        quoted = self.schema.replace('"', '""').replace("%", "%%")
        return f'"{quoted}".{function}'

    def begin(self, call: Call) -> Statement:
        """idem_begin: one row of COLUMNS."""
        return (f"SELECT {COLUMNS} FROM {self.name('idem_begin')}(%s::text, %s::jsonb, %s::text, %s::bytea,"
                " %s::interval, %s::interval, %s::int)",
                (call.key, call.request, call.scope, hexadecimal(call.request_hash),
                 interval(call.lease), interval(call.wait), call.max_attempts))

    def lookup(self, call: Call) -> Statement:
        """idem_lookup: one row of COLUMNS, all NULL where there is no record."""
        return f"SELECT {COLUMNS} FROM {self.name('idem_lookup')}(%s::text, %s::text)", (call.key, call.scope)

    def expiry(self, call: Call) -> Statement:
        """When the record ends, in seconds since 1970. NULL where there is none, for a time without end, and for one
        that no date of HTTP can say."""
        return ("SELECT CASE WHEN expires_at < '10000-01-01Z' THEN extract(epoch FROM expires_at)::float8 END"
                f" FROM {self.name('idem_lookup')}(%s::text, %s::text)", (call.key, call.scope))

    def complete(self, call: Call, operation: Operation, response: Response) -> Statement:
        retention = maybe_seconds("retention", response.retention, positive=True)
        return (f"SELECT {self.name('idem_complete')}(%s::text, %s::jsonb, %s::text, %s::int, %s::jsonb, %s::bytea,"
                " %s::bigint, %s::interval)",
                (call.key, to_json(response.payload), call.scope, integer(response.code),
                 to_json(None if response.headers is None else dict(response.headers)), hexadecimal(response.body),
                 operation.fence, interval(call.retention if retention is None else retention)))

    def fail(self, call: Call, operation: Operation, declined: Declined) -> Statement:
        """idem_fail; retryable where the failure says when."""
        retention = maybe_seconds("retention", declined.retention, positive=True)
        retry_after = asked(declined.retry_after)
        return (f"SELECT {self.name('idem_fail')}(%s::text, %s::jsonb, %s::text, %s::int, %s::jsonb, %s::bytea,"
                " %s::bigint, %s::boolean, %s::interval, %s::interval)",
                (call.key, to_json(declined.payload), call.scope, integer(declined.code),
                 to_json(None if declined.headers is None else dict(declined.headers)), hexadecimal(declined.body),
                 operation.fence, retry_after is not None, interval(retry_after),
                 interval(call.retention if retention is None else retention)))

    def extend(self, call: Call, operation: Operation) -> Statement:
        """idem_extend by the lease of the call: how many seconds it has now, which a policy may have made fewer."""
        return (f"SELECT extract(epoch FROM {self.name('idem_extend')}(%s::text, %s::interval, %s::text, %s::bigint)"
                " - clock_timestamp())::float8",
                (call.key, interval(call.lease), call.scope, operation.fence))

    def progress(self, operation: Operation, note: Any) -> Statement:
        """idem_progress by fence; the lease ends when it would. A note that the next owner could not read is not stored."""
        if note is None:
            raise BadOption("a note is a JSON value, and not None")
        as_stored(note)
        return (f"SELECT {self.name('idem_progress')}(%s::text, %s::jsonb, %s::text, %s::bigint)",
                (operation.key, to_json(note), operation.scope, operation.fence))

    def release(self, call: Call, operation: Operation) -> Statement:
        """idem_release by fence."""
        return (f"SELECT {self.name('idem_release')}(%s::text, %s::text, %s::bigint)",
                (call.key, call.scope, operation.fence))

    def begin_many(self, keys: Sequence[str], requests: Optional[Sequence[Any]], scope: str,
                   hashes: Optional[Sequence[Optional[bytes]]], max_attempts: Optional[int]) -> Statement:
        """idem_begin_batch: a row of COLUMNS for each key, in order."""
        return (f"SELECT {COLUMNS} FROM {self.name('idem_begin_batch')}(%s::text[], %s::jsonb[], %s::text,"
                " %s::bytea[], %s::int)",
                (array(keys), array(json_texts(requests)), scope,
                 array(None if hashes is None else [hexadecimal(one) for one in hashes]), max_attempts))

    def complete_many(self, keys: Sequence[str], responses: Optional[Sequence[Any]], scope: str) -> Statement:
        """idem_complete_batch: how many it ended."""
        return (f"SELECT {self.name('idem_complete_batch')}(%s::text[], %s::jsonb[], %s::text)",
                (array(keys), array(json_texts(responses)), scope))


PLACEHOLDER = re.compile(r"%s(::(?!(?:int|bigint|boolean)\b|text\b(?!\[))[a-z]+(\[\])?)?|%%")


def numbered(text: str) -> str:
    """A statement with $1, $2 in place of %s. All but numbers goes as text, whatever codecs the user has set."""
    count = 0

    def replace(found: "re.Match[str]") -> str:
        nonlocal count
        if found[0] == "%%":
            return "%"
        count += 1
        return f"${count}" + (f"::text{found[1]}" if found[1] else "")

    return PLACEHOLDER.sub(replace, text)


def json_texts(values: Optional[Sequence[Any]]) -> Optional[List[Optional[str]]]:
    """Each value as JSON text."""
    return None if values is None else [to_json(value) for value in values]
