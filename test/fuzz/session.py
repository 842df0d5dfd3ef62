"""
Connections for fuzzing, on libpq itself: parameters go as bytes, every field
of an error comes back, and nothing is interpreted on the way.
"""
from dataclasses import dataclass, field

from psycopg import pq

FIELDS = [name for name in pq.DiagnosticField]
TEXT, BINARY = 0, 1


class Crash(AssertionError):
    """The connection was lost: the server or the backend has gone."""


@dataclass
class Result:
    """What one statement was answered."""
    sqlstate: str = None  # None: no error
    message: str = ''
    texts: list = field(default_factory=list)  # every field of the error
    rows: list = field(default_factory=list)  # of bytes or None


def describe(result):
    """The fields of an error or a notice, as texts."""
    values = (result.error_field(name) for name in FIELDS)
    return [value.decode('utf-8', 'replace') for value in values if value is not None]


class Session:
    """One backend."""

    def __init__(self, database, options=''):
        self.connection = pq.PGconn.connect(
            f"dbname='{database}' user=postgres application_name=fuzz client_encoding=UTF8 options='{options}'".encode())
        if self.connection.status != pq.ConnStatus.OK:
            raise Crash(self.connection.error_message.decode('utf-8', 'replace'))
        self.notices = []
        self.to_undo = False  # the transaction did what must not be committed
        self.connection.notice_handler = self._notice
        self.pid = self.connection.backend_pid

    def _notice(self, result):
        severity = result.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED)
        self.notices.append(((severity or b'').decode(), describe(result)))

    def take_notices(self):
        notices, self.notices = self.notices, []
        return notices

    @property
    def in_transaction(self):
        return self.connection.transaction_status != pq.TransactionStatus.IDLE

    @property
    def in_error(self):
        return self.connection.transaction_status == pq.TransactionStatus.INERROR

    def reported(self, setting):
        """A setting that the server tells its clients."""
        return self.connection.parameter_status(setting.encode()).decode()

    def run(self, sql, parameters=()):
        """One statement; parameters are (bytes or None, format) or (.., .., type)."""
        values = [parameter[0] for parameter in parameters]
        formats = [parameter[1] for parameter in parameters]
        types = [parameter[2] if len(parameter) > 2 else 0 for parameter in parameters]
        return self._result(self.connection.exec_params(
            sql.encode(), values, param_formats=formats, param_types=types))

    def script(self, sql):
        """Statements without parameters, as one string; must succeed."""
        result = self._result(self.connection.exec_(sql.encode()))
        if result.sqlstate is not None:
            raise RuntimeError(f'{result.message}: {sql}')
        return result.rows

    def value(self, sql):
        rows = self.script(sql)
        return rows[0][0].decode() if rows and rows[0][0] is not None else None

    def send(self, sql):
        """Start a statement; collect() has its result."""
        self.connection.send_query(sql.encode())

    def collect(self):
        last = None
        while (result := self.connection.get_result()) is not None:
            if last is None or last.status != pq.ExecStatus.FATAL_ERROR:
                last = result
        return self._result(last)

    def _result(self, result):
        if self.connection.status != pq.ConnStatus.OK or result is None:
            raise Crash('connection lost: '
                + self.connection.error_message.decode('utf-8', 'replace'))
        if result.status == pq.ExecStatus.FATAL_ERROR:
            state = result.error_field(pq.DiagnosticField.SQLSTATE)
            message = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY)
            return Result((state or b'?????').decode(), (message or b'').decode('utf-8', 'replace'),
                describe(result))
        rows = [[result.get_value(row, column) for column in range(result.nfields)]
            for row in range(result.ntuples)]
        return Result(rows=rows)

    def close(self):
        self.connection.finish()
