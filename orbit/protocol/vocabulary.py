"""What one subprotocol consists of: names and bodies as data, for the one session machine.

`pulse.events.v1` is `events_v1.VOCABULARY`, `pulse.worker.v1` is `worker_v1.VOCABULARY`. A subprotocol is added by
writing such a value, not by changing `session`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self


class Body(Protocol):
    """A frame's body: a dataclass that reads and writes its wire form."""

    @classmethod
    def parse(cls, body: object, path: str = "body", *, lenient: bool = False) -> Self:
        """Read an untrusted body; raises InvalidValue."""
        ...

    def to_body(self) -> dict[str, Any]:
        """The body as it goes on the wire."""
        ...


@dataclass(frozen=True, slots=True)
class Request:
    """A request's body, the body that answers it, and `check(request, reply)`, which raises InvalidValue."""

    body: type[Body]
    reply: type[Body]
    check: Callable[[Any, Any], None]


def _suits(_hello: Any, _push: Any) -> None:
    """Accept every push: what its client said in the hello does not matter to it."""


@dataclass(frozen=True, slots=True)
class Pushed:
    """A push's body, and `check(hello, push)`, which raises InvalidValue for what this client did not ask for."""

    body: type[Body]
    check: Callable[[Any, Any], None] = _suits


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """What one subprotocol says: names and bodies, no behaviour.

    `greeting` is the exchange of `hello` and `welcome`; `capacity` names the request, among `requests`, whose first
    confirmation lets the server push. Its body has a `sequence`.
    """

    subprotocol: str
    path: str
    hello: str
    welcome: str
    greeting: Request
    capacity: str
    requests: Mapping[str, Request]
    pushes: Mapping[str, Pushed]
