"""The client's half: keeps one key per intent, and repeats a request until it has an answer.

The key is stored before the request is sent. So a program that dies and starts
again sends the same key, and what it asked for takes effect once.
"""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import math
import os
import pathlib
import re
import urllib.error
import urllib.parse
import urllib.request
import uuid
from dataclasses import dataclass
from typing import Any, Callable, Dict, Mapping, Optional, Protocol, Tuple

from . import steps
from .clock import Clock
from .drive import AsyncDriver, Driver, awaited
from .errors import BadArgument
from .retry import Retry, seconds_until
from .steps import Flow

AGAIN = frozenset({409, 425, 429, 502, 503, 504})
LOST = (OSError, http.client.BadStatusLine, http.client.IncompleteRead)     # the latter are none, but broken answers as well


@dataclass(frozen=True)
class Answer:
    """What a server answered. Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class GaveUp(Exception):
    """No end within the tries that are allowed. The key stays: call again for the same intent.

    ``answer``: the last answer, or None where it was lost.
    """

    def __init__(self, answer: Optional[Answer]) -> None:
        super().__init__("no answer" if answer is None else f"the last answer was {answer.status}")
        self.answer = answer


class KeyStore(Protocol):
    """Where keys are kept. ``add`` must be durable when it returns."""

    def get(self, intent: str) -> Optional[str]: ...
    def add(self, intent: str, key: str) -> None: ...
    def remove(self, intent: str) -> None: ...


class DictStore:
    """Keys in memory: for tests, and for intents that die with the process."""

    def __init__(self) -> None:
        self.keys: Dict[str, str] = {}

    def get(self, intent: str) -> Optional[str]:
        """The key of an intent, or None."""
        return self.keys.get(intent)

    def add(self, intent: str, key: str) -> None:
        """Keeps a key; the first one to add a key wins."""
        self.keys.setdefault(intent, key)

    def remove(self, intent: str) -> None:
        """Forgets the key of an intent, if there is one."""
        self.keys.pop(intent, None)


class FileStore:
    """Keys in files of a directory, one for each intent. Several processes may use it."""

    def __init__(self, directory: Any) -> None:
        self.directory = pathlib.Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)

    def path(self, intent: str) -> pathlib.Path:
        """The file of an intent, whatever characters that has."""
        return self.directory / hashlib.sha256(intent.encode()).hexdigest()

    def get(self, intent: str) -> Optional[str]:
        """The key of an intent, or None. Raises OSError for a file that cannot be read."""
        try:
            key = self.path(intent).read_text(encoding="ascii")
        except FileNotFoundError:
            return None
        sync_directory(self.directory)      # who has added it may have died before
        return key

    def add(self, intent: str, key: str) -> None:
        """Keeps a key; the first one to add a key wins. The file has its whole content when it gets its name."""
        path = self.path(intent)
        draft = path.with_suffix(f".{uuid.uuid4().hex}")
        with open(draft, "w", encoding="ascii") as file:
            file.write(key)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
        sync_directory(self.directory)

    def remove(self, intent: str) -> None:
        """Forgets the key of an intent, if there is one."""
        self.path(intent).unlink(missing_ok=True)
        sync_directory(self.directory)


def sync_directory(directory: pathlib.Path) -> None:
    """Makes the names in a directory durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a redirect that keeps the method and stays with its origin.

    Any other one is the answer: urllib would follow it as a GET, without the effect, and the key is not for another origin.
    """

    def redirect_request(self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any,
                         newurl: str) -> Optional[urllib.request.Request]:
        """The request to send there; None: none."""
        method = req.get_method()
        keeps_method = code in (307, 308) or method in ("GET", "HEAD")
        if not keeps_method or origin(newurl) != origin(req.full_url):
            return None
        return urllib.request.Request(newurl, data=req.data, headers=req.headers, method=method)

    http_error_308 = urllib.request.HTTPRedirectHandler.http_error_302      # of Python 3.11 on


def origin(url: str) -> Tuple[str, str]:
    """Scheme, host and port of a URL."""
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.netloc


def fetch_by_urllib(method: str, url: str, headers: Mapping[str, str], body: Optional[bytes],
                    timeout: float = 30) -> Answer:
    """Sends one request with the standard library. Raises one of LOST when the server sends nothing for ``timeout`` seconds."""
    request = urllib.request.Request(url, data=body, headers=dict(headers), method=method)
    try:
        with urllib.request.build_opener(Redirects).open(request, timeout=timeout) as response:
            return Answer(response.status, lower(response.headers), response.read())
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, lower(error.headers), error.read())


async def fetch_in_thread(*given: Any) -> Answer:
    """The same for asyncio."""
    return await asyncio.to_thread(fetch_by_urllib, *given)


def check_url(url: str) -> None:
    """Raises BadArgument for what urllib can send no request to. It takes some of these for a lost answer."""
    try:
        parts = urllib.parse.urlsplit(url)
        is_sendable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_sendable = False
    if not is_sendable or re.search(r"[\x00-\x20\x7f]", url) or not (parts.path + parts.query).isascii():
        raise BadArgument("the URL is none that a request can be sent to")


def lower(headers: Any) -> Dict[str, str]:
    """Headers with names in lower case."""
    return {name.lower(): value for name, value in headers.items()}


def is_final(answer: Answer) -> bool:
    """Whether another try gives no other answer. A replay is final whatever its status, unless it names a time."""
    is_replay = "true" in (answer.headers.get("idempotency-replayed"), answer.headers.get("idempotent-replayed"))
    return answer.status not in AGAIN or (is_replay and "retry-after" not in answer.headers)


class BaseCaller:
    """What both callers share; does no I/O but that of the store."""

    def __init__(self, store: KeyStore, fetch: Callable[..., Any] = fetch_by_urllib, *,
                 clock: Optional[Clock] = None, retry: Optional[Retry] = None, header: str = "Idempotency-Key",
                 longest_wait: float = 60, deadline: Optional[float] = None, lost: Any = LOST) -> None:
        self.store = store
        self.fetch = fetch
        self.clock = clock or Clock()
        self.retry = retry or Retry(attempts=8, base=0.5, cap=30)
        self.header = header
        self.longest_wait = longest_wait
        self.deadline = deadline
        self.lost = lost

    def key_of(self, intent: str) -> str:
        """The key of an intent, which is stored when this returns."""
        while True:
            key = self.store.get(intent)
            if key is not None:
                return key
            self.store.add(intent, str(uuid.uuid4()))

    def forget(self, intent: str) -> None:
        """The intent is over. The same intent later is a new one, with a new key."""
        self.store.remove(intent)

    def flow(self, intent: str, method: str, url: str, headers: Mapping[str, str], body: Optional[bytes]) -> Flow:
        """Sends until there is an end. Result: an Answer. A fetch of the caller's own may know what to make of any URL."""
        end = math.inf if self.deadline is None else self.clock.now() + self.deadline
        if not isinstance(intent, str) or not intent:
            raise BadArgument("an intent is a string that is not empty")    # all others would have one key
        if self.fetch in (fetch_by_urllib, fetch_in_thread):
            check_url(url)
        sent = {**headers, self.header: f'"{self.key_of(intent)}"'}
        answer: Optional[Answer] = None
        for tries in range(1, self.retry.attempts + 1):
            try:
                answer = yield steps.call(self.fetch, method, url, sent, body)
            except self.lost:
                answer = None
            if answer is not None and is_final(answer):
                return answer
            wait = self.wait(tries, answer)
            if tries == self.retry.attempts or self.clock.now() + wait > end:
                break
            yield steps.sleep(wait)
        raise GaveUp(answer)

    def wait(self, tries: int, answer: Optional[Answer]) -> float:
        """Seconds until the next try: what Retry-After asks for, or the backoff where that is longer."""
        asked = seconds_until(answer.headers.get("retry-after", "")) if answer else None
        return max(min(asked or 0.0, self.longest_wait), self.retry.delay(tries))


class Caller(BaseCaller):
    """Sends requests that take effect once.

    ``store``: a KeyStore. ``fetch(method, url, headers, body)``: gives an Answer, and raises ``lost`` (a class,
    or a tuple of them; LOST) where no answer came. ``retry``: how often; the wait is at least what Retry-After says, but
    at most ``longest_wait`` seconds. ``deadline``: seconds from the call on; a wait that would outlast it is GaveUp at
    once. ``clock``: a Clock. ``header``: the name of the key's header.
    """

    driver = Driver

    def call(self, intent: str, method: str, url: str, body: Optional[bytes] = None,
             headers: Optional[Mapping[str, str]] = None) -> Answer:
        """Sends the request under the key of ``intent``, a name of yours for what is to happen once.

        ``method``, ``url``, ``body`` (bytes, or None) and ``headers`` are sent each time, with the key's header. Repeats
        after 409, 425, 429, 502, 503, 504 and lost answers, always with the same key. Any other answer is final, 422
        among them: it is given back. So is a redirect, but one that keeps the method (307 and 308, for GET and HEAD 301
        to 303) and stays with its origin is followed by the fetch of the package. Raises GaveUp, and BadArgument at once
        for what is no URL. Call ``forget`` when the intent is over.
        """
        answer: Answer = self.driver(NO_SOURCE, self.clock).run(self.flow(intent, method, url, headers or {}, body))
        return answer


class AsyncCaller(BaseCaller):
    """The same for asyncio; ``fetch`` is a coroutine function."""

    driver = AsyncDriver

    def __init__(self, store: KeyStore, fetch: Callable[..., Any] = fetch_in_thread, **options: Any) -> None:
        super().__init__(store, fetch, **options)

    call = awaited(Caller.call)


NO_SOURCE: Any = None   # a caller has no database
