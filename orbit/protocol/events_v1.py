"""Bodies of the subprotocol `pulse.events.v1`, by which a consumer takes deliveries and acknowledges them.

| frame             | direction | body                                   | answered by                   |
| ----------------- | --------- | -------------------------------------- | ----------------------------- |
| consumer.hello    | client    | `Hello`                                | consumer.welcome: `Welcome`   |
| consumer.capacity | client    | `Capacity`                             | ack: `Welcome`                |
| event.deliver     | server    | `Delivery`: `delivery` and the `event` | nothing                       |
| event.ack         | client    | `Ack`: 1 to 64 proofs                  | ack: `Verdicts`, one a proof  |
| event.release     | client    | `Release`: 1 to 64 proofs, `started`   | ack: `Verdicts`, one a proof  |

A parser takes an untrusted body and raises `InvalidValue` with the member's path. `to_body` gives the wire's form.
Unknown members are refused where `lenient` is false; the SDK passes true for what a newer server sends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Self

import msgspec

from orbit.protocol.errors import InvalidValue
from orbit.protocol.frame import parse_code
from orbit.protocol.members import read_flag, read_list, read_object, read_word
from orbit.protocol.strict_json import as_int
from orbit.protocol.values import COUNT_MAX, Secret, format_time, parse_counter, parse_id, parse_time
from orbit.protocol.vocabulary import Pushed, Request, Vocabulary

SUBPROTOCOL: Final = "pulse.events.v1"
PATH: Final = "/v1/events"
CAPACITY_MAX: Final = 1_000
BATCH_MAX: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Who wants to consume what. `consumer_id` names one running consumer and is kept over its reconnects."""

    subscription_id: str
    consumer_id: str

    @classmethod
    def parse(cls, body: object, path: str = "body", *, lenient: bool = False) -> Self:
        """Read an untrusted body; raises InvalidValue."""
        members = read_object(body, path, frozenset({"subscription_id", "consumer_id"}), lenient=lenient)
        return cls(
            subscription_id=parse_id(members["subscription_id"], f"{path}.subscription_id"),
            consumer_id=parse_id(members["consumer_id"], f"{path}.consumer_id"),
        )

    def to_body(self) -> dict[str, Any]:
        """The body as it goes on the wire."""
        return {"subscription_id": self.subscription_id, "consumer_id": self.consumer_id}


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """The session as the server has it: answer to hello (no capacity confirmed yet) and to every capacity."""

    subscription_id: str
    queue_id: str
    server_time: datetime
    sequence: int | None = None
    capacity: int = 0

    @classmethod
    def parse(cls, body: object, path: str = "body", *, lenient: bool = False) -> Self:
        """Read an untrusted body; raises InvalidValue."""
        required = frozenset({"subscription_id", "queue_id", "server_time", "capacity"})
        members = read_object(body, path, required, frozenset({"sequence"}), lenient=lenient)
        sequence = members.get("sequence")
        return cls(
            subscription_id=parse_id(members["subscription_id"], f"{path}.subscription_id"),
            queue_id=parse_id(members["queue_id"], f"{path}.queue_id"),
            server_time=parse_time(members["server_time"], f"{path}.server_time"),
            sequence=parse_counter(sequence, f"{path}.sequence") if "sequence" in members else None,
            capacity=as_int(members["capacity"], f"{path}.capacity", 0, CAPACITY_MAX),
        )

    def to_body(self) -> dict[str, Any]:
        """The body as it goes on the wire."""
        body: dict[str, Any] = {
            "subscription_id": self.subscription_id,
            "queue_id": self.queue_id,
            "server_time": format_time(self.server_time),
            "capacity": self.capacity,
        }
        if self.sequence is not None:
            body["sequence"] = str(self.sequence)
        return body


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """How many deliveries the consumer holds at most, in all: an absolute value, zero stops new ones.

    `sequence` starts at 1 on each connection and grows; the same sequence must carry the same capacity.
    """

    sequence: int
    capacity: int

    @classmethod
    def parse(cls, body: object, path: str = "body", *, lenient: bool = False) -> Self:
        """Read an untrusted body; raises InvalidValue."""
        members = read_object(body, path, frozenset({"sequence", "capacity"}), lenient=lenient)
        return cls(
            sequence=parse_counter(members["sequence"], f"{path}.sequence"),
            capacity=as_int(members["capacity"], f"{path}.capacity", 0, CAPACITY_MAX),
        )

    def to_body(self) -> dict[str, Any]:
        """The body as it goes on the wire."""
        return {"sequence": str(self.sequence), "capacity": self.capacity}


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The right to end one lease of one delivery. The secret stays out of repr."""

    delivery_id: str
    epoch: int
    lease_secret: Secret = field(repr=False)

    @classmethod
    def parse(cls, body: object, path: str = "body", *, lenient: bool = False) -> Self:
        """Read an untrusted body; raises InvalidValue."""
        members = read_object(body, path, frozenset({"delivery_id", "epoch", "lease_secret"}), lenient=lenient)
        return cls(
            delivery_id=parse_id(members["delivery_id"], f"{path}.delivery_id"),
            epoch=parse_counter(members["epoch"], f"{path}.epoch"),
            lease_secret=Secret.parse(members["lease_secret"], f"{path}.lease_secret"),
        )

    def to_body(self) -> dict[str, Any]:
        """The body as it goes on the wire, with the secret."""
        return {
            "delivery_id": self.delivery_id,
            "epoch": str(self.epoch),
            "lease_secret": self.lease_secret.reveal(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One leased delivery of one event.

    `event` is the uninterpreted JSON object: a bad event fails its own delivery, never the frame or the connection.
    `attempt` counts from 1; `lease_until` and `server_time` are the database's clock, to be used only as a difference.
    """

    proof: Proof
    attempt: int
    attempt_budget: int
    lease_until: datetime
    server_time: datetime
    event: dict[str, Any] | msgspec.Raw = field(repr=False)

    @classmethod
    def parse(cls, body: object, path: str = "body", *, lenient: bool = False) -> Self:
        """Read an untrusted body; raises InvalidValue. The event is only checked to be an object."""
        members = read_object(body, path, frozenset({"delivery", "event"}), lenient=lenient)
        where = f"{path}.delivery"
        proof_names = frozenset({"delivery_id", "epoch", "lease_secret"})
        head_names = proof_names | {"attempt", "attempt_budget", "lease_until", "server_time"}
        head = read_object(members["delivery"], where, head_names, lenient=lenient)
        event = members["event"]
        # Raw is a number where it was received and the platform's frozen text where it is sent.
        spliced = isinstance(event, msgspec.Raw) and bytes(memoryview(event)[:1]) == b"{"
        if not spliced and not isinstance(event, dict):
            raise InvalidValue(f"{path}.event", "must be an object")
        return cls(
            proof=Proof.parse({name: head[name] for name in proof_names}, where),
            attempt=as_int(head["attempt"], f"{where}.attempt", 1, COUNT_MAX),
            attempt_budget=as_int(head["attempt_budget"], f"{where}.attempt_budget", 1, COUNT_MAX),
            lease_until=parse_time(head["lease_until"], f"{where}.lease_until"),
            server_time=parse_time(head["server_time"], f"{where}.server_time"),
            event=event,
        )

    def to_body(self) -> dict[str, Any]:
        """The body as it goes on the wire; the event is spliced where it is `msgspec.Raw`."""
        head = self.proof.to_body()
        head["attempt"] = self.attempt
        head["attempt_budget"] = self.attempt_budget
        head["lease_until"] = format_time(self.lease_until)
        head["server_time"] = format_time(self.server_time)
        return {"delivery": head, "event": self.event}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """The business work of these deliveries is committed."""

    deliveries: tuple[Proof, ...]

    @classmethod
    def parse(cls, body: object, path: str = "body", *, lenient: bool = False) -> Self:
        """Read an untrusted body; raises InvalidValue."""
        members = read_object(body, path, frozenset({"deliveries"}), lenient=lenient)
        return cls(deliveries=read_list(members["deliveries"], f"{path}.deliveries", Proof.parse, most=BATCH_MAX))

    def to_body(self) -> dict[str, Any]:
        """The body as it goes on the wire."""
        return {"deliveries": [proof.to_body() for proof in self.deliveries]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """One delivery given up. `started=False` gives its attempt back; `started=True` leaves it spent."""

    proof: Proof
    started: bool

    @classmethod
    def parse(cls, body: object, path: str = "body", *, lenient: bool = False) -> Self:
        """Read an untrusted body; raises InvalidValue."""
        names = frozenset({"delivery_id", "epoch", "lease_secret", "started"})
        members = read_object(body, path, names, lenient=lenient)
        return cls(
            proof=Proof.parse({name: members[name] for name in names if name != "started"}, path),
            started=read_flag(members["started"], f"{path}.started"),
        )

    def to_body(self) -> dict[str, Any]:
        """The body as it goes on the wire."""
        return {**self.proof.to_body(), "started": self.started}


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """These deliveries will not be acknowledged under their present lease."""

    deliveries: tuple[Released, ...]

    @classmethod
    def parse(cls, body: object, path: str = "body", *, lenient: bool = False) -> Self:
        """Read an untrusted body; raises InvalidValue."""
        members = read_object(body, path, frozenset({"deliveries"}), lenient=lenient)
        return cls(deliveries=read_list(members["deliveries"], f"{path}.deliveries", Released.parse, most=BATCH_MAX))

    def to_body(self) -> dict[str, Any]:
        """The body as it goes on the wire."""
        return {"deliveries": [one.to_body() for one in self.deliveries]}


class Disposition(StrEnum):
    """What became of one proof."""

    ACKED = "ACKED"
    RELEASED = "RELEASED"
    REFUSED = "REFUSED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The receipt for one proof: `acked_at` with ACKED (the same proof gets the same receipt), `code` with REFUSED.

    `code` is an `ErrorCode` or one that only a newer server knows; compare with `==`.
    """

    delivery_id: str
    epoch: int
    disposition: Disposition
    acked_at: datetime | None = None
    code: str | None = None

    @classmethod
    def parse(cls, body: object, path: str = "body", *, lenient: bool = False) -> Self:
        """Read an untrusted body; raises InvalidValue."""
        names = frozenset({"delivery_id", "epoch", "disposition"})
        members = read_object(body, path, names, frozenset({"acked_at", "code"}), lenient=lenient)
        disposition = read_word(Disposition, members["disposition"], f"{path}.disposition")
        if (disposition is Disposition.REFUSED) != ("code" in members):
            raise InvalidValue(f"{path}.code", "goes with REFUSED and only with it")
        if (disposition is Disposition.ACKED) != ("acked_at" in members):
            raise InvalidValue(f"{path}.acked_at", "goes with ACKED and only with it")
        return cls(
            delivery_id=parse_id(members["delivery_id"], f"{path}.delivery_id"),
            epoch=parse_counter(members["epoch"], f"{path}.epoch"),
            disposition=disposition,
            acked_at=parse_time(members["acked_at"], f"{path}.acked_at") if "acked_at" in members else None,
            code=parse_code(members["code"], f"{path}.code") if "code" in members else None,
        )

    def to_body(self) -> dict[str, Any]:
        """The body as it goes on the wire."""
        body: dict[str, Any] = {
            "delivery_id": self.delivery_id,
            "epoch": str(self.epoch),
            "disposition": str(self.disposition),
        }
        if self.acked_at is not None:
            body["acked_at"] = format_time(self.acked_at)
        if self.code is not None:
            body["code"] = str(self.code)
        return body


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """One verdict for each proof of the request, in its order."""

    verdicts: tuple[Verdict, ...]

    @classmethod
    def parse(cls, body: object, path: str = "body", *, lenient: bool = False) -> Self:
        """Read an untrusted body; raises InvalidValue."""
        members = read_object(body, path, frozenset({"verdicts"}), lenient=lenient)
        verdicts = read_list(
            members["verdicts"],
            f"{path}.verdicts",
            lambda one, at: Verdict.parse(one, at, lenient=lenient),
            most=BATCH_MAX,
        )
        return cls(verdicts=verdicts)

    def to_body(self) -> dict[str, Any]:
        """The body as it goes on the wire."""
        return {"verdicts": [one.to_body() for one in self.verdicts]}


def _check_welcome(hello: Hello, welcome: Welcome) -> None:
    if welcome.subscription_id != hello.subscription_id:
        raise InvalidValue("body.subscription_id", "is not the one of the hello")
    if welcome.sequence is not None or welcome.capacity != 0:
        raise InvalidValue("body.capacity", "was not announced yet")


def _check_capacity(capacity: Capacity, welcome: Welcome) -> None:
    if (welcome.sequence, welcome.capacity) != (capacity.sequence, capacity.capacity):
        raise InvalidValue("body.capacity", "is not the one that was announced")


def _check_verdicts(proofs: tuple[Proof, ...], verdicts: Verdicts, granted: Disposition) -> None:
    asked = [(proof.delivery_id, proof.epoch) for proof in proofs]
    if [(verdict.delivery_id, verdict.epoch) for verdict in verdicts.verdicts] != asked:
        raise InvalidValue("body.verdicts", "must hold one verdict for each proof, in their order")
    if any(verdict.disposition not in (granted, Disposition.REFUSED) for verdict in verdicts.verdicts):
        raise InvalidValue("body.verdicts", "holds a disposition of another request")


def _check_ack(ack: Ack, verdicts: Verdicts) -> None:
    _check_verdicts(ack.deliveries, verdicts, Disposition.ACKED)


def _check_release(release: Release, verdicts: Verdicts) -> None:
    _check_verdicts(tuple(one.proof for one in release.deliveries), verdicts, Disposition.RELEASED)


VOCABULARY: Final = Vocabulary(
    subprotocol=SUBPROTOCOL,
    path=PATH,
    hello="consumer.hello",
    welcome="consumer.welcome",
    greeting=Request(Hello, Welcome, _check_welcome),
    capacity="consumer.capacity",
    requests={
        "consumer.capacity": Request(Capacity, Welcome, _check_capacity),
        "event.ack": Request(Ack, Verdicts, _check_ack),
        "event.release": Request(Release, Verdicts, _check_release),
    },
    pushes={"event.deliver": Pushed(Delivery)},
)
"""The subprotocol as data, for `ClientSession` and `ServerSession`."""
