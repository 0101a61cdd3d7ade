"""Everything the SDK raises, in one tree.

    OrbitError
    ├── InvalidConfiguration   a URL, credentials file or variable is wrong (also a ValueError)
    ├── InvalidRequest         an argument is wrong; nothing was sent (also a ValueError)
    ├── Refused                the platform understood and said no; carries the public code
    │   ├── HTTPError          ... to an HTTP request, or to the upgrade of a WebSocket
    │   └── SessionRefused     ... on an open WebSocket
    │       └── WorkerError         ... to a worker: its hello, one operation, or its whole session
    ├── TransportError         no answer to an HTTP request, or no connection
    │   └── InvalidResponse    an answer that cannot be read
    ├── Disconnected           an open WebSocket has ended
    │   ├── NoAnswer           ... because a request had no answer in time
    │   └── WorkerDisconnected      ... a worker's
    │       └── WorkerTimeout       ... because an operation had no answer in time (also a TimeoutError)
    ├── ProtocolMismatch       the other end does not speak the subprotocol
    │   └── WorkerProtocolError     ... or broke it on a worker's connection
    ├── NotSent                a request was not sent, the connection is as before
    │   ├── DuplicateMessage        ... one with its message id is in flight
    │   └── WorkerBusy              ... as many of a worker's as allowed are
    ├── WorkerClosed           the worker's connection was closed by its owner
    ├── WorkerBackpressure     the worker's connection was ended: too much on it was not read
    ├── WrongQueue             the subscription is not bound to the configured queue
    └── Unavailable            raised by a handler: what it needs is away, deliver nothing for now

`str` shows classes, codes, ids and fixed phrases only: never a token, a proof, a body or a text of the other end's.
`temporary` says whether the same call may succeed later with nothing changed; the dial loop goes on only then.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from orbit.protocol import strict_json
from orbit.protocol.errors import HTTP_STATUS, ErrorCode, InvalidJSON
from orbit.protocol.http_v1 import ErrorBody

ERROR_BODY_BYTES: Final = 16 * 1024
"""A longer body of a refusal is not read: the platform's own are a few hundred bytes."""

_CODE: Final = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
_REQUEST_ID: Final = re.compile(r"[0-9A-Za-z._-]{1,64}")
_TEMPORARY_STATUS: Final = frozenset({408, 425, 429})


class OrbitError(Exception):
    """Base of everything the SDK raises."""

    temporary: bool = False


class InvalidConfiguration(OrbitError, ValueError):
    """A URL, credentials file or environment variable is wrong; says which and why, never the value."""


class InvalidRequest(OrbitError, ValueError):
    """An argument breaks a rule that can be checked here; nothing was sent."""


class Refused(OrbitError):
    """The platform understood and said no. `code` is the public code, None when the answer carried none."""

    code: str | None


class HTTPError(Refused):
    """An HTTP request, or a WebSocket's upgrade, was answered with a status that is no success.

    `message` is the platform's sentence for people; it is not part of `str`. `request_id` is what to quote to the
    platform's operators. `outcome_unknown` is true for 5xx: the request may have been carried out all the same.
    """

    def __init__(
        self, status: int, code: str | None = None, request_id: str | None = None, message: str | None = None
    ) -> None:
        super().__init__(status, code, request_id)
        self.status = status
        self.code = code
        self.request_id = request_id
        self.message = message
        self.outcome_unknown = status >= 500
        self.temporary = status >= 500 or status in _TEMPORARY_STATUS

    def __str__(self) -> str:
        words = [f"HTTP {self.status}"]
        if self.code is not None:
            words.append(self.code)
        if self.request_id is not None:
            words.append(f"request_id={self.request_id}")
        return " ".join(words)


class SessionRefused(Refused):
    """The platform refused the hello or a request on an open WebSocket, or ended the session with an error."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code: str = code
        # A fenced session is followed by the next dial; an unknown code is a newer server's.
        status = HTTP_STATUS[ErrorCode(code)] if code in HTTP_STATUS else 500
        self.temporary = status >= 500 or status in _TEMPORARY_STATUS or code == ErrorCode.SESSION_FENCED

    def __str__(self) -> str:
        return f"the session was refused: {self.code}"


class TransportError(OrbitError):
    """No answer to an HTTP request, or no connection to dial.

    `outcome_unknown` says whether the request may have been carried out. It is false only where nothing of it was
    sent; where it is true, repeating the call with the same operation key settles it.
    """

    temporary = True

    def __init__(self, reason: str, *, outcome_unknown: bool) -> None:
        super().__init__(reason, outcome_unknown)
        self.reason = reason
        self.outcome_unknown = outcome_unknown

    def __str__(self) -> str:
        fate = "the outcome is unknown" if self.outcome_unknown else "nothing was sent"
        return f"{self.reason}; {fate}"


class InvalidResponse(TransportError):
    """A success whose body cannot be read: too large, compressed, not strict JSON or of another shape."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, outcome_unknown=True)


class Disconnected(OrbitError):
    """An open WebSocket has ended. `close_code` is RFC 6455's when there was one."""

    temporary = True

    def __init__(self, reason: str, close_code: int | None = None) -> None:
        super().__init__(reason, close_code)
        self.reason = reason
        self.close_code = close_code

    def __str__(self) -> str:
        return self.reason if self.close_code is None else f"{self.reason} (close code {self.close_code})"


class NoAnswer(Disconnected):
    """A request had no answer in time; its fate is open, and so the connection was cut."""


class ProtocolMismatch(OrbitError):
    """The other end does not speak the subprotocol: it did not select it, or answered the hello with something else."""


class NotSent(OrbitError):
    """A request was not sent, and the connection is as before: too many are in flight, or its turn did not come."""

    temporary = True


class DuplicateMessage(NotSent):
    """A request with this message id is in flight; a second waiter for its answer is refused."""

    def __init__(self, message_id: str) -> None:
        super().__init__(message_id)
        self.message_id = message_id

    def __str__(self) -> str:
        return f"request {self.message_id} is in flight"


class WrongQueue(OrbitError):
    """The subscription is bound to another queue than the credentials; nothing was taken."""

    def __init__(self, subscription_id: str, queue_id: str, expected: str) -> None:
        super().__init__(subscription_id, queue_id, expected)
        self.subscription_id = subscription_id
        self.queue_id = queue_id
        self.expected = expected

    def __str__(self) -> str:
        return f"subscription {self.subscription_id} is bound to queue {self.queue_id}, configured is {self.expected}"


class Unavailable(OrbitError):
    """Raised by a handler when something it needs is away: the consumer pauses until `resume()`."""

    temporary = True


class WorkerError(SessionRefused):
    """The platform refused a worker's hello or operation, or ended its session. Branch on `code`.

    UNAVAILABLE and INTERNAL leave open whether the operation was carried out: repeat it with the same id and content.
    """

    def __str__(self) -> str:
        return f"the platform refused it: {self.code}"


class WorkerDisconnected(Disconnected):
    """A worker's connection has ended. The outcome of what was sent and not answered is unknown."""


class WorkerTimeout(WorkerDisconnected, TimeoutError):
    """A worker's operation, or the welcome, had no answer in time; the connection was cut."""

    errno = None  # TimeoutError is an OSError, which would take the reason for one

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


class WorkerProtocolError(ProtocolMismatch):
    """The two ends of a worker's connection do not understand each other; dialling again would not change it."""


class WorkerBusy(NotSent):
    """An operation was not sent: 32 are in flight, or its turn to be sent did not come in time."""


class WorkerClosed(OrbitError):
    """The worker's connection was closed by `close()`. The outcome of what was under way is unknown."""


class WorkerBackpressure(OrbitError):
    """The worker's connection was ended by this end, because too much of what was pushed was not read.

    The platform gives the work to somebody when its lease is over. The outcome of what was under way is unknown.
    """

    temporary = True


def http_error(status: int, body: bytes) -> HTTPError:
    """Return the error for a refusal; a body that is not the platform's leaves code, id and message None."""
    try:
        strict_json.parse(body, max_bytes=ERROR_BODY_BYTES)
        error = msgspec.json.decode(body, type=ErrorBody)
    except (InvalidJSON, msgspec.ValidationError):
        return HTTPError(status)
    code = error.code if _CODE.fullmatch(error.code) else None
    request_id = error.request_id if _REQUEST_ID.fullmatch(error.request_id) else None
    return HTTPError(status, code, request_id, error.message)
