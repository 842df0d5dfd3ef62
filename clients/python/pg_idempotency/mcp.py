"""Calls of tools by agents (Model Context Protocol): the same key, tool and principal is one operation.

Each end of it is an answer. Answers are results of tools/call as JSON has them, so this needs no SDK: give it the function
that makes the result of yours, ``CallToolResult.model_validate``.
clients/conformance/tools.json has what the packages for all languages write alike.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import struct
import sys
from typing import Any, Callable, Dict, Generic, Mapping, Optional, TypeVar

from . import steps
from .client import AsyncIdempotency, Idempotency
from .drive import awaited
from .errors import BadArgument, BadOption, Declined, KeyReused, NotDone, Unknown, Unstorable
from .hooks import logger
from .http.core import escaped, scope_within
from .model import (FAILED, IN_PROGRESS, NOT_DONE, UNKNOWN, Completion, Done, Duration, Json, Operation, Result, as_response,
                    is_text)
from .steps import Flow

Answer = TypeVar("Answer")

MESSAGES = {
    "FAILED": "The operation has failed.",
    "IN_PROGRESS": "Another call with this key is at work. Call again with the same key and arguments to get its answer.",
    "KEY_REUSED": "This key was used before with other arguments. Nothing was done. Use a new key only for another operation.",
    "UNKNOWN": "Nobody knows whether an attempt with this key took effect. Do not use a new key. Call again later with the same"
               " key and arguments, or ask a person.",
    "BAD_ARGUMENT": "Nothing was done. A key is a string of 1 to 255 characters, and key and arguments are text and numbers"
                    " that can be stored.",
    "ERROR": "The call failed. Call again with the same key and arguments: it takes effect once.",
}


class Call:
    """One call, checked. ``began``: whether the work, or the question about an earlier attempt, has begun."""

    def __init__(self, key: str, request: Json, scope: str) -> None:
        self.key = key
        self.request = request
        self.scope = scope
        self.began = False
        self.found: Any = None

    def entering(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """The work, which notes that it has begun."""
        def run(*arguments: Any) -> Any:
            self.began = True
            return then(declining, work(*arguments) if self.found is None else self.found)

        return run

    def asking(self, reconcile: Callable[[Operation], Any]) -> Callable[[Operation], Any]:
        """The question, which notes the same. A failure that it finds is stored as one of the work, which does not run."""
        def note(answer: Any) -> Any:
            if not (isinstance(answer, Done) and failure_of(answer.response)):
                return answer
            self.found = answer.response
            return NOT_DONE

        def ask(operation: Operation) -> Any:
            self.began = True
            return then(note, reconcile(operation))

        return ask


class ToolBase(Generic[Answer]):
    """What both kinds share: the arguments of a call, and what its end is for an agent."""

    def __init__(self, idempotency: Any, result: Callable[[Dict[str, Any]], Answer],
                 on_error: Optional[Callable[[BaseException], Any]] = None) -> None:
        self.idempotency = idempotency
        self.space = idempotency.scope
        self.result = result
        self.on_error = on_error or log_error

    def call(self, name: str, principal: str, key: Any, arguments: Optional[Mapping[str, Any]]) -> Optional[Call]:
        """None: the key cannot be stored. Raises TypeError for a mistake of the server."""
        if not is_name(name):
            raise TypeError("the name of a tool is a string that is not empty")
        if not is_name(principal):
            raise TypeError("the principal of a call is a string that is not empty: who asks, as you have authenticated it")
        if arguments is not None and not isinstance(arguments, Mapping):
            raise TypeError("the arguments of a call are a mapping")
        if not is_name(key) or "\0" in key:
            return None
        scope = scope_within(self.space, f"tool {escaped(name)} {escaped(principal)}")
        # what JSON does not have, such as NaN, the database refuses
        return Call(key, Json(json.dumps(dict(arguments or {}))), scope)

    def answering(self, call: Optional[Call], start: Callable[[Call], Any], *, leased: bool) -> Flow:
        """Starts the operation of a call. Result: the answer."""
        if call is None:
            return self.problem("BAD_ARGUMENT")
        try:
            return self.answer((yield steps.call(start, call)))
        except Exception as error:
            return self.failure(error, call, leased=leased)

    def answer(self, result: Result) -> Answer:
        payload, replayed = result.payload, result.replayed
        if result.outcome == IN_PROGRESS or (result.outcome == FAILED and payload is None):
            return self.problem(result.outcome, result.retry_after, replayed)
        is_error = result.outcome == FAILED
        meta = meta_of(result.outcome, result.retry_after, replayed)
        if is_tool_result(payload):
            return self.result({**payload, "isError": is_error, "_meta": {**(payload.get("_meta") or {}), **meta}})
        # jsonb has another order of members than the work had: the text of a replay would not be that of the first answer
        text = json.dumps(payload, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
        return self.result({
            "content": [{"type": "text", "text": text}],
            "structuredContent": payload if isinstance(payload, dict) else {"result": payload},
            "isError": is_error, "_meta": meta})

    def failure(self, error: Exception, call: Call, *, leased: bool) -> Answer:
        """What an error is for an agent. Those that it does not show are told to ``on_error``."""
        if isinstance(error, KeyReused):
            return self.problem("KEY_REUSED")
        if isinstance(error, BadArgument) and not isinstance(error, BadOption) and not call.began:
            return self.problem("BAD_ARGUMENT")
        if isinstance(error, Unknown):
            if error.__cause__ is not None:     # what reconcile raised
                self.on_error(error.__cause__)
            return self.problem("UNKNOWN", error.retry_after)
        self.on_error(error)
        unknown = isinstance(error, Unstorable) or leased and call.began and not isinstance(error, NotDone)
        return self.problem("UNKNOWN" if unknown else "ERROR")

    def problem(self, outcome: str, retry_after: Optional[float] = None, replayed: bool = False) -> Answer:
        """An end without an answer of the work."""
        message = MESSAGES[outcome]
        content: Dict[str, Any] = {"outcome": outcome, "message": message}
        if retry_after is not None:
            content["retryAfterSeconds"] = whole(retry_after)
        return self.result({"content": [{"type": "text", "text": message}], "structuredContent": content, "isError": True,
                            "_meta": meta_of(outcome, retry_after, replayed)})


class Tools(ToolBase[Answer]):
    """Runs the work of tools once for each key of a principal, for blocking code.

    ``result``: makes the result of your SDK from its JSON, such as ``CallToolResult.model_validate``.
    ``on_error``: told of errors that no answer shows; by default they are logged.
    """

    def __init__(self, idempotency: Idempotency, result: Callable[[Dict[str, Any]], Answer],
                 on_error: Optional[Callable[[BaseException], Any]] = None) -> None:
        super().__init__(idempotency, result, on_error)

    def transaction(self, name: str, principal: str, key: Any, arguments: Optional[Mapping[str, Any]],
                    work: Callable[[Any, Operation], Any], *, wait: Duration = 0, max_attempts: Optional[int] = None,
                    max_lost_attempts: Optional[int] = None, retention: Optional[Duration] = None) -> Answer:
        """Runs ``work(tx, operation)`` in one transaction, as ``Idempotency.transaction``.

        ``name``: of the tool. ``principal``: who asks, as you have authenticated it; not empty. ``key``: as the caller has
        chosen it, an argument of the tool or a field of _meta. ``arguments``: a repeat with others is refused. The payload
        of what ``work`` gives back is the answer; a dict with a list ``content`` is the answer as it is, and one with
        ``isError`` a failure: its writes are undone. Other arguments: see ``Idempotency.transaction``.
        Raises TypeError where name, principal or arguments are none: a mistake of the server.
        """
        def start(call: Call) -> Any:
            return self.idempotency.transaction(
                call.key, call.request, call.entering(work), scope=call.scope, wait=wait, max_attempts=max_attempts,
                max_lost_attempts=max_lost_attempts, retention=retention)

        call = self.call(name, principal, key, arguments)
        answer: Answer = self.idempotency.driver.run(self.answering(call, start, leased=False))
        return answer

    def lease(self, name: str, principal: str, key: Any, arguments: Optional[Mapping[str, Any]],
              work: Callable[[Operation, Any], Any], *, lease: Optional[Duration] = None,
              reconcile: Optional[Callable[[Operation], Any]] = None, wait: Duration = 0,
              max_attempts: Optional[int] = None, retention: Optional[Duration] = None) -> Answer:
        """Runs ``work(operation, signal)`` outside of a transaction, as ``Idempotency.lease``.

        After an attempt without an end ``reconcile`` is asked; where there is none, the answer is UNKNOWN, and the work does
        not run. NotDone of the work frees the key; any other error but Declined is answered UNKNOWN.
        """
        def start(call: Call) -> Any:
            return self.idempotency.lease(
                call.key, call.request, call.entering(work), lease=lease, reconcile=call.asking(reconcile or nobody_knows),
                scope=call.scope, wait=wait, max_attempts=max_attempts, retention=retention)

        call = self.call(name, principal, key, arguments)
        answer: Answer = self.idempotency.driver.run(self.answering(call, start, leased=True))
        return answer


class AsyncTools(ToolBase[Answer]):
    """The same for asyncio, over an AsyncIdempotency: ``work`` and ``reconcile`` may be coroutine functions."""

    def __init__(self, idempotency: AsyncIdempotency, result: Callable[[Dict[str, Any]], Answer],
                 on_error: Optional[Callable[[BaseException], Any]] = None) -> None:
        super().__init__(idempotency, result, on_error)

    transaction = awaited(Tools[Answer].transaction)
    lease = awaited(Tools[Answer].lease)


def key_of_arguments(arguments: Mapping[str, Any]) -> str:
    """A key that is made from arguments, in whatever order and spelling they come.

    Only for tools of which nobody ever wants the same thing twice. Raises TypeError where they are no JSON.
    """
    return "sha256:" + hashlib.sha256(canonical(dict(arguments)).encode()).hexdigest()


def canonical(value: Any) -> str:
    """JSON with members in the order of their UTF-16, without blanks, and each number as the bytes of a double in hexadecimal."""
    if isinstance(value, dict) and all(map(is_text, value)):
        names = sorted(value, key=lambda name: name.encode("utf-16-be"))
        return "{" + ",".join(f"{canonical(name)}:{canonical(value[name])}" for name in names) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(canonical, value)) + "]"
    if value is None or isinstance(value, bool) or is_text(value):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, (int, float)) and abs(value) <= sys.float_info.max:
        return struct.pack(">d", value + 0.0).hex()
    raise TypeError("arguments are JSON")


def is_name(value: Any) -> bool:
    """Whether it is text, and not empty."""
    return is_text(value) and value != ""


def is_tool_result(value: Any) -> bool:
    """Whether it is a result of tools/call, and no other answer."""
    return isinstance(value, dict) and isinstance(value.get("content"), list)


def failure_of(value: Any) -> Optional[Dict[str, Any]]:
    """The error result in what work gave back, if it is one."""
    result = as_response(value.response if isinstance(value, Completion) else value).payload
    return result if is_tool_result(result) and result.get("isError") else None


def declining(value: Any) -> Any:
    """What work gave back. An error result is a failure: the writes of its work are undone."""
    failure = failure_of(value)
    if failure is not None:
        raise Declined(payload=failure)
    return value


def then(function: Callable[[Any], Any], value: Any) -> Any:
    """The function of the value, which may still have to come."""
    async def later() -> Any:
        return function(await value)

    return later() if inspect.isawaitable(value) else function(value)


def nobody_knows(operation: Operation) -> Any:
    """In place of ``reconcile``."""
    return UNKNOWN


def log_error(error: BaseException) -> None:
    """In place of ``on_error``."""
    logger.error("a tool failed", exc_info=error)


def meta_of(outcome: str, retry_after: Optional[float], replayed: bool) -> Dict[str, Any]:
    """What programs are told beside the answer."""
    meta: Dict[str, Any] = {"pg-idempotency/outcome": outcome}
    if replayed:
        meta["pg-idempotency/replayed"] = True
    if retry_after is not None:
        meta["pg-idempotency/retryAfterSeconds"] = whole(retry_after)
    return meta


def whole(seconds: float) -> int:
    """Whole seconds, one at least."""
    return max(1, math.ceil(seconds))
