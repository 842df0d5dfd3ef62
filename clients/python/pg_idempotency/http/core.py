"""The core of all HTTP adapters. It knows no framework, and does no I/O.

An adapter reads a request, asks ``admit``, runs the handler inside of a transaction
or a lease, and answers with what ``answer`` or ``refusal`` gives.
"""

from __future__ import annotations

import contextvars
import hashlib
import inspect
import re
from dataclasses import dataclass, field, replace
from datetime import datetime
from email.utils import format_datetime
from typing import Any, Callable, Dict, List, Mapping, NoReturn, Optional, Tuple, TypeVar, Union

from ..errors import Declined, NotDone, TooLarge
from ..hooks import logger
from ..model import (COMPLETED, FAILED, IN_PROGRESS, Completion, Duration, Json, Operation, Response, Result,
                     check_count, maybe_seconds, seconds, to_json)
from ..retry import seconds_until
from .fingerprint import NotJson, fingerprint
from .key import BadKey, read_key
from .problem import Problem, ResponseTooLarge, document, in_progress, problem_of, whole_seconds

Headers = List[Tuple[str, str]]
End = TypeVar("End", Response, Declined)
MEGABYTE = 1 << 20
ALWAYS_STORED = ("content-type", "content-encoding")


@dataclass(frozen=True)
class Request:
    """A request as the core sees it. ``route`` is the route's template. ``native``: the framework's own request."""

    method: str
    target: str
    route: str
    headers: Headers
    body: bytes = b""
    native: Any = None

    def values(self, name: str) -> List[str]:
        """All values of a header."""
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def value(self, name: str) -> Optional[str]:
        """The first value of a header, or None."""
        values = self.values(name)
        return values[0] if values else None


@dataclass(frozen=True)
class Reply:
    """An answer: status, headers, and the whole body."""

    status: int
    headers: Headers = field(default_factory=list)
    body: bytes = b""


@dataclass(frozen=True)
class Store:
    """What becomes of a status. ``end`` is "complete", "fail" (the work is rolled back, the answer is stored),
    "release" (all is rolled back, nothing is stored, the key is free), or "leave" (the same, but a lease is left to run
    out: nobody knows what its work has done). ``retention``: seconds to keep it; None: the default.
    """

    end: str
    retention: Optional[Duration] = None

    def __post_init__(self) -> None:
        if self.end not in ("complete", "fail", "release", "leave"):
            raise ValueError(f"no such end: {self.end}")
        maybe_seconds("retention", self.retention, positive=True)


# A refusal of the moment, which says nothing of the operation: who asks, how often, and when. Nor does it say that a leased
# handler has done nothing outside before.
PASSING = ("401", "403", "408", "409", "425", "429")
STATUSES: Mapping[str, Store] = {
    "2xx": Store("complete"), "3xx": Store("complete"), "4xx": Store("fail"), "5xx": Store("leave"),
    **{status: Store("leave") for status in PASSING}}


@dataclass(frozen=True)
class Options:
    """How routes treat keys. Each may be given for a route alone, by ``routes``.

    ``header``: name of the header. ``required``: without a key the answer is 400; otherwise the handler runs
    unprotected: it has no ``current()``, and a Declined is an error like any other.
    ``make_key(request)``: the key of a request that has none, or None. ``strict``: only quoted keys.
    ``methods``: of which methods. ``principal(request)``: who asks, a part of the scope. The middleware stands before
    the application, so this function has to authenticate the request: it gives a string that is not empty, None for a
    stranger (the answer is 401), or a Reply to answer with; anything else raises TypeError. A coroutine under ASGI.
    It has to be given, or ``scope``: ``lambda request: "anyone"`` where all clients are one.
    ``scope(request)``: in place of method, route and principal. The scope of the Idempotency stands before it.
    ``fingerprint(request)``: a JSON value that is compared in place of the body, beside method and target.
    ``statuses``: a Store by status ("404") or class ("4xx").
    ``stored_headers``: which response headers are stored; one that ends with "*" counts for all that begin so.
    Content-Type and Content-Encoding always are: without them the body is another one. Set-Cookie never is.
    ``max_request``, ``max_response``: bytes. ``skip(request)``: true where keys do not matter.
    ``wait``: seconds to wait for a request in progress; ``max_wait``: how many a client may ask for by Prefer: wait.
    ``marker``: name of the header that says of an answer that it is a replay.
    ``lifetime``: name of a header with the time until which an answer is kept; None: no such header, and no look for it.
    ``describedby``: address of your documentation. ``problem(problem)``: a Reply of your own for errors.
    ``timeout``: seconds for a handler, under asyncio only; 0: no limit. ``lease``: seconds; None: one transaction.
    ``reconcile(operation)``: see ``Idempotency.lease``. ``routes``: options of single routes, by template.
    """

    header: str = "Idempotency-Key"
    required: bool = True
    make_key: Optional[Callable[[Request], Optional[str]]] = None
    strict: bool = False
    methods: Tuple[str, ...] = ("POST", "PATCH")
    principal: Optional[Callable[[Request], Any]] = None
    scope: Optional[Callable[[Request], str]] = None
    fingerprint: Optional[Callable[[Request], Any]] = None
    statuses: Mapping[str, Store] = field(default_factory=dict)
    stored_headers: Tuple[str, ...] = ("content-type", "location", "etag", "content-language")
    max_request: int = MEGABYTE
    max_response: int = MEGABYTE
    skip: Optional[Callable[[Request], bool]] = None
    wait: Duration = 0
    max_wait: Duration = 10
    marker: str = "Idempotency-Replayed"
    lifetime: Optional[str] = None
    describedby: Optional[str] = None
    problem: Optional[Callable[[Problem], Reply]] = None
    timeout: Optional[Duration] = None
    lease: Optional[Duration] = None
    reconcile: Optional[Callable[[Operation], Any]] = None
    max_attempts: Optional[int] = None
    routes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.principal is None and self.scope is None:
            raise ValueError("the option principal is missing: a function of a request that says who asks, as clients must"
                             ' not get the answers of others. Give lambda request: "anyone" where all clients are one')
        if isinstance(self.methods, str) or isinstance(self.stored_headers, str):
            raise ValueError("the options methods and stored_headers are tuples: of a string each character would count")
        if not all(isinstance(status, str) and re.fullmatch("[1-5]([0-9]{2}|xx)", status) for status in self.statuses):
            raise ValueError('the option statuses has a status ("404") or a class ("4xx") for each Store')
        maybe_seconds("lease", self.lease, positive=True)
        check_count("max_attempts", self.max_attempts)
        for name in ("wait", "max_wait", "timeout"):
            maybe_seconds(name, getattr(self, name), endless=True)
        check_headers([*((name, "") for name in (self.header, self.marker, self.lifetime) if name is not None),
                       ("Link", self.describedby or "")])


@dataclass(frozen=True)
class NoReply(Reply):
    """Where a framework could make no answer of what a handler gave back. ``error``: why."""

    status: int = 0
    error: Exception = field(kw_only=True)


class Exchange:
    """What a handler may use of its operation.

    ``tx``: the connection in the open transaction; None under a lease, and in what comes behind the answer.
    ``operation``: attempt, fence, taken_over.
    ``signal``: under a lease, an event that is set when the lease is lost.
    """

    def __init__(self, tx: Any, operation: Operation, signal: Any = None) -> None:
        self.tx = tx
        self.operation = operation
        self.signal = signal
        self.writes: Optional[Callable[[Any], Any]] = None

    def complete_with(self, writes: Callable[[Any], Any]) -> None:
        """Under a lease: ``writes(tx)`` runs in the transaction that stores the response."""
        self.writes = writes


active: contextvars.ContextVar[Optional[Exchange]] = contextvars.ContextVar("pg_idempotency_exchange", default=None)


def current() -> Exchange:
    """The Exchange of the request that is being handled. Raises LookupError where there is none."""
    exchange = active.get()
    if exchange is None:
        raise LookupError("this request has no idempotency key, or its route is not covered")
    return exchange


class NotStored(Exception):
    """Inside of the package: the handler answered with a status that rolls everything back."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(f"status {reply.status}")
        self.reply = reply


class Released(NotStored, NotDone):
    """The same of which the operation is free at once: it is no lost attempt."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply)
        self.retry_after = None


class Unsendable(Json):
    """A payload that cannot be stored, so that a lease ends without an answer. ``error``: what is wrong with the answer."""

    error: Exception

    def __init__(self, error: Exception) -> None:
        object.__setattr__(self, "error", error)

    @property
    def text(self) -> str:
        raise self.error


@dataclass(frozen=True)
class Admitted:
    """A request with a key, and all that a transaction or a lease needs."""

    key: str
    scope: str
    request: Any
    wait: float
    options: Options


class Served:
    """One request's way: the replies of its handler, of which the last one counts.

    ``ends``: the outcome of the operation that has this reply. Writes of a lease that decline have another one.
    ``is_kept``: the reply is stored, by a COMMIT that is known. ``declined``: the headers of a Declined, of which no cookie is
    stored.
    """

    def __init__(self, core: "Core", admitted: Admitted) -> None:
        self.core = core
        self.admitted = admitted
        self.options = admitted.options
        self.reply: Optional[Reply] = None
        self.ends = COMPLETED
        self.is_kept = False
        self.declined: Optional[Mapping[str, Any]] = None

    def outcome(self, exchange: Exchange, reply: Reply) -> Any:
        """The reply as work gives it back. Raises Declined, NotStored or ResponseTooLarge."""
        self.reply = reply
        store = store_of(self.options, reply.status)
        try:
            check_reply(reply, self.options.max_response)
        except Exception as error:
            # A lease that would not be left ends: its handler is done.
            if self.options.lease is None or is_final(reply.status) and store.end not in ("complete", "fail"):
                raise
            none = Response(payload=Unsendable(error), retention=store.retention)
            return none if store.end == "fail" else self.ending(exchange, none)
        if store.end in ("release", "leave"):
            # In a transaction an answer below 500 is a refusal: its rollback is no lost attempt.
            released = reply.status < 500 if self.options.lease is None else store.end == "release"
            raise Released(reply) if released else NotStored(reply)
        headers = kept_headers(self.options, reply.headers)
        self.ends = FAILED if store.end == "fail" else COMPLETED
        if store.end == "fail":
            raise Declined(reply.status, headers=headers, body=reply.body, retry_after=retry_after_of(reply.headers),
                           retention=maybe_seconds("retention", store.retention))
        return self.ending(exchange, Response(reply.status, headers, body=reply.body, retention=store.retention))

    @staticmethod
    def ending(exchange: Exchange, response: Response) -> Union[Response, Completion]:
        """The response, with the writes of a lease."""
        return response if exchange.writes is None else Completion(response, exchange.writes)

    def refuse(self, error: Exception) -> None:
        """Raises what an error of the handler stands for, if that is another one: as ``decline_done``, and Released for one in a
        transaction that is answered below 500: it is a refusal, too.
        """
        if isinstance(error, Declined):
            self.decline_done(error)
        problem = problem_of(error)
        if problem.status < 500 and self.options.lease is None:
            raise Released(self.core.problem_reply(problem, self.options)) from error

    def decline_done(self, declined: Declined) -> NoReturn:
        """The same as ``decline``, but that a lease ends: its handler is done."""
        try:
            self.decline(declined)
        except Declined:
            raise
        except Exception as wrong:
            raise Declined(None, Unsendable(wrong)) from wrong

    def decline(self, declined: Declined) -> NoReturn:
        """Raises what is stored of it, ValueError for one that is none of HTTP, and ResponseTooLarge."""
        stored = storable(declined, self.options)
        self.declined = declined.headers
        raise stored

    def answer(self, result: Result) -> Reply:
        """The answer to the client: the handler's own where it ran to its end, else what is stored."""
        if result.outcome == IN_PROGRESS:
            return self.core.problem_reply(in_progress(result.retry_after), self.options)
        if not result.replayed and self.reply is not None and result.outcome == self.ends:
            self.is_kept = True
            return self.reply
        check_end(result)
        if not result.replayed and self.declined is not None:
            result = replace(result, headers=self.declined)
        return stored_reply(result, self.options.marker)

    def lasting(self, reply: Reply, until: Optional[datetime]) -> Reply:
        """The answer with the time until which it is kept."""
        name = self.options.lifetime
        if name is None or until is None:
            return reply
        return replace(reply, headers=[*reply.headers, (name, format_datetime(until, usegmt=True))])

    def refusal(self, error: Exception) -> Reply:
        """The answer to the client after an error. The error itself goes to the log."""
        if isinstance(error, NotStored):
            return error.reply
        if isinstance(error, TooLarge) and self.options.lease is not None:
            # To a client a 413 says that nothing was done.
            problem = problem_of(ResponseTooLarge())
        else:
            problem = problem_of(error)
        if problem.status >= 500:
            logger.error("a request failed with %d", problem.status, exc_info=error)
        return self.core.problem_reply(problem, self.options)


class Core:
    """Decides for one application, by its Options. ``space()``: the scope of the Idempotency. ``blocking``: its handlers
    block, and cannot be given a timeout.
    """

    def __init__(self, options: Options, space: Callable[[], str] = str, *, blocking: bool = False) -> None:
        self.options = options
        self.space = space
        self.by_route: Dict[str, Options] = {
            route: replace(options, **changes) for route, changes in options.routes.items()}
        if blocking and any(one.timeout is not None for one in (options, *self.by_route.values())):
            raise ValueError("a blocking handler cannot be given a timeout; use that of the server's workers")

    def options_of(self, route: str) -> Options:
        """The options of a route."""
        return self.by_route.get(route, self.options)

    def covers(self, method: str, route: Optional[str]) -> bool:
        """Whether keys matter to this method and route. An unknown route is left to the framework's 404."""
        return route is not None and method.upper() in (one.upper() for one in self.options_of(route).methods)

    def admit(self, request: Request) -> Union[Admitted, Reply, None]:
        """What to do with a request that is covered: None: run the handler unprotected; a Reply: answer with it."""
        if self.is_skipped(request):
            return None
        return self.admit_from(request, self.asker(request))

    def is_skipped(self, request: Request) -> bool:
        """Whether keys do not matter to this request."""
        options = self.options_of(request.route)
        skipped = options.skip is not None and options.skip(request)
        if inspect.isawaitable(skipped):
            raise TypeError("the option skip is no coroutine function")     # whose coroutine counts as true
        # One over the limit has not been read to its end, so the application cannot have it.
        return bool(skipped) and len(request.body) <= options.max_request

    def asker(self, request: Request) -> Any:
        """What the option principal gives, or its coroutine."""
        principal = self.options_of(request.route).principal
        return "" if principal is None else principal(request)

    def admit_from(self, request: Request, who: Any) -> Union[Admitted, Reply, None]:
        """The same for a request of which is known who asks."""
        options = self.options_of(request.route)
        if isinstance(who, Reply):
            return who
        if who is None:
            return self.problem_reply(Problem(401, "Authentication is required", "It is not known who asks."), options)
        # Who cannot be told apart from others would get their answers.
        if not isinstance(who, str) or (who == "" and options.principal is not None):
            raise TypeError("the option principal has to give a string that is not empty")
        if len(request.body) > options.max_request:
            return self.too_large(options)
        try:
            key = read_key(request.values(options.header), options.strict)
        except BadKey as bad:
            return self.problem_reply(Problem(400, f"{options.header} is malformed", str(bad)), options)
        if key is None and options.make_key is not None:
            key = options.make_key(request)
        if key is None:
            missing = Problem(400, f"{options.header} is missing", "This request needs a key that is new for each new request.")
            return self.problem_reply(missing, options) if options.required else None
        try:
            compared = request_of(request, options)
        except NotJson:
            return self.problem_reply(Problem(400, "The body cannot be read", "It is not what its Content-Type says."), options)
        return Admitted(key, self.scope_of(request, who, options), compared, wait_of(request, options), options)

    def unreadable(self, options: Options, status: int = 400) -> Reply:
        """The answer to a request whose body did not come whole, or cannot be known to have."""
        return self.problem_reply(Problem(status, "The body cannot be read", "It did not come as a whole."), options)

    def too_large(self, options: Options) -> Reply:
        """The answer to a request over the limit."""
        return self.problem_reply(Problem(
            413, "The request is too large", f"It has more than {options.max_request} bytes."), options)

    def scope_of(self, request: Request, principal: str, options: Options) -> str:
        """One scope for each service, method, route and principal: keys of one client never meet those of another.

        The packages for all languages make the same, as clients/conformance/spellings.json has it.
        """
        own = (f"{request.method.upper()} {escaped(request.route)} {principal}" if options.scope is None
               else options.scope(request))
        if not isinstance(own, str) or own == "":
            raise TypeError("the option scope has to give a string that is not empty")
        return scope_within(self.space(), own)

    def problem_reply(self, problem: Problem, options: Options) -> Reply:
        if options.problem is not None:
            return options.problem(problem)
        headers, body = document(problem, options.describedby)
        return Reply(problem.status, headers, body)


def scope_within(service: str, own: str) -> str:
    """A scope behind that of the service. The server takes 255 characters and no NUL, so other text is hashed."""
    scope = own if service == "" else f"{escaped(service)} {own}"
    return scope if len(scope) <= 255 and "\0" not in scope else "sha256:" + hashlib.sha256(scope.encode()).hexdigest()


def escaped(text: str) -> str:
    """A part of a scope without spaces, which stand between the parts."""
    return text.replace("%", "%25").replace(" ", "%20")


def request_of(request: Request, options: Options) -> Json:
    """What is compared when the key comes again. Raises NotJson."""
    own = None if options.fingerprint is None else to_json(options.fingerprint(request)) or "null"
    return fingerprint(request.method, request.target, request.value("content-type"), request.values("content-encoding"),
                       request.body, own)


def wait_of(request: Request, options: Options) -> float:
    """Seconds to wait for a request in progress: the route's, or the client's by Prefer (RFC 7240)."""
    for value in request.values("prefer"):
        for preference in value.split(","):
            match = re.fullmatch(r'\s*wait\s*=\s*"?(\d{1,9})"?\s*(;.*)?', preference, re.IGNORECASE)
            if match:
                return min(float(match[1]), seconds("max_wait", options.max_wait, endless=True))
    return seconds("wait", options.wait, endless=True)


def store_of(options: Options, status: int) -> Store:
    """What becomes of a status."""
    names = (str(status), f"{status // 100}xx")
    for statuses in (options.statuses, STATUSES):
        for name in names:
            if name in statuses:
                return statuses[name]
    return Store("leave")       # a class of its own is no refusal


def retry_after_of(headers: Headers) -> Optional[float]:
    """Seconds of the handler's own Retry-After, as a number or a date; None: it has none, the answer is final."""
    for name, value in headers:
        if name.lower() == "retry-after":
            return seconds_until(value)
    return None


WITHOUT_LENGTH = (204, 304)     # a Content-Length of theirs would be wrong, or that of another answer


def is_final(status: int) -> bool:
    """Whether HTTP can send it, as the last status of an answer."""
    return 200 <= status <= 999


def check_reply(reply: Reply, limit: int) -> None:
    """Raises ResponseTooLarge, ValueError for what HTTP cannot send, and the error of a NoReply."""
    if isinstance(reply, NoReply):
        raise reply.error
    if len(reply.body) > limit:
        raise ResponseTooLarge()
    check_status(reply.status)
    check_headers(reply.headers)


def check_status(status: int) -> None:
    """Raises ValueError for what HTTP cannot send as the last status of an answer."""
    if not is_final(status):
        raise ValueError(f"an answer cannot have the status {status}")


def check_headers(headers: Headers) -> None:
    """Raises ValueError for what HTTP cannot carry: after COMMIT it would be too late to say so."""
    for name, value in headers:
        if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) or not re.fullmatch(r"[\t\x20-\x7e\x80-\xff]*", value):
            raise ValueError(f"the header {name!r} has a character that HTTP does not carry")


def check_end(end: Union[Result, Response, Declined]) -> None:
    """Raises ValueError for an end that HTTP cannot send."""
    check_status(end.code or 200)
    check_headers(sent_headers(end.headers))


def storable(end: End, options: Options) -> End:
    """What is declined, or what reconcile has found, as it is stored: without Set-Cookie. Raises ValueError for what HTTP cannot
    send, and ResponseTooLarge."""
    check_end(end)
    if len((to_json(end.payload) or "").encode() if end.body is None else end.body) > options.max_response:
        raise ResponseTooLarge()
    headers = end.headers and {name: value for name, value in end.headers.items() if name.lower() != "set-cookie"}
    if isinstance(end, Response):
        return replace(end, headers=headers)
    # the work may raise the same object again
    return Declined(end.code, end.payload, headers=headers, retry_after=end.retry_after, body=end.body, retention=end.retention)


def kept_headers(options: Options, headers: Headers) -> Dict[str, Any]:
    """The headers that are stored: a text, or a list where one came more than once. Never Set-Cookie."""
    kept: Dict[str, Any] = {}
    for name, value in headers:
        low = name.lower()
        if low == "set-cookie" or not any(
                low in ALWAYS_STORED or low == one.lower() or (one.endswith("*") and low.startswith(one[:-1].lower()))
                for one in options.stored_headers):
            continue
        before = kept.get(name)
        kept[name] = value if before is None else [*(before if isinstance(before, list) else [before]), value]
    return kept


def sent_headers(stored: Optional[Mapping[str, Any]]) -> Headers:
    """Headers that are stored, as they are sent: one that has a list comes more than once."""
    return [(name, str(one)) for name, value in (stored or {}).items()
            for one in (value if isinstance(value, list) else [value])]


def stored_reply(result: Result, marker: str) -> Reply:
    """A stored end as an answer."""
    headers = sent_headers(result.headers)
    body = result.body
    if body is None:
        body = ("null" if result.is_null else to_json(result.payload) or "").encode()
        if body and not any(name.lower() == "content-type" for name, _ in headers):
            headers.append(("Content-Type", "application/json"))
    if result.retry_after is not None:      # in place of the one that was right when it was stored
        headers = [(name, value) for name, value in headers if name.lower() != "retry-after"]
        headers.append(("Retry-After", whole_seconds(result.retry_after)))
    if result.replayed:
        headers.append((marker, "true"))
    default = 200 if result.outcome == COMPLETED else 422
    return Reply(result.code or default, headers, body)
