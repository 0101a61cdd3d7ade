"""What a consumer holds: every leased delivery's way from receipt to its end, as data. No I/O, no clock, no tasks.

    WAITING ──start──▶ RUNNING ──finish──▶ FINISHED ──ACKED or REFUSED──▶ gone
       │                  └──fail──▶ gone (released, its attempt spent)
       └──give back──▶ gone (released, its attempt returned)

One delivery has one entry whatever its epoch: a newer lease replaces the proof of the entry and never starts a second
handler. What is to be reported lies in a queue of its own, since a release outlives its entry. A report stays until
its verdict has come: `lost()` puts the unanswered ones back, with the same proofs, before everything else.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, TypeAlias

from orbit.protocol.errors import ErrorCode
from orbit.protocol.event import Event
from orbit.protocol.events_v1 import Disposition, Proof, Verdict

FINISHED_REMEMBERED: Final = 1_024
"""Deliveries whose handler is done but whose ACK came too late; they are acknowledged, not handled, if they return."""

Key: TypeAlias = tuple[str, int]
"""Delivery id and epoch: the name of one lease."""


class Stage(StrEnum):
    """How far a held delivery has got."""

    WAITING = "WAITING"
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One lease of one delivery. `deadline` is its local end, `start_by` the last moment worth starting, monotonic."""

    proof: Proof
    event: Event
    attempt: int
    attempt_budget: int
    deadline: float
    start_by: float


@dataclass(slots=True)
class Held:
    """A delivery in the book; `lease` is the newest one and `session` the connection that brought it."""

    lease: Lease
    stage: Stage
    session: int


@dataclass(frozen=True, slots=True)
class Report:
    """What the platform is to be told about one lease: an ACK, or, where `started` says something, a release."""

    proof: Proof
    started: bool | None = None

    @property
    def key(self) -> Key:
        """The lease it is about."""
        return self.proof.delivery_id, self.proof.epoch

    @property
    def gives_back(self) -> bool:
        """Whether it returns an attempt, so that the platform may deliver it again at once."""
        return self.started is False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerCounts:
    """What became of every lease received so far, and where the held ones are now.

    Each lease that was received counts in exactly one of acknowledged, failed, invalid, released, refused, superseded,
    waiting, running, pending; `reconnects` counts connections after the first.
    """

    received: int = 0
    acknowledged: int = 0
    """The platform confirmed the ACK."""
    failed: int = 0
    """The handler raised or was cancelled."""
    invalid: int = 0
    """The event could not be accepted."""
    released: int = 0
    """Given back before it was started; costs no attempt."""
    refused: int = 0
    """The platform refused the ACK; the delivery is another consumer's, or will come again."""
    superseded: int = 0
    """A newer lease of the same delivery came while this one was held."""
    waiting: int = 0
    running: int = 0
    pending: int = 0
    """The handler is done and the ACK has no verdict yet."""
    reconnects: int = 0


@dataclass(slots=True)
class Book:
    """The held deliveries of one consumer and the reports it owes. At most `concurrency` run, `prefetch` more wait."""

    concurrency: int
    prefetch: int
    taking: bool = True
    session: int = 0
    running: int = 0
    _counts: ConsumerCounts = ConsumerCounts()
    _held: dict[str, Held] = field(default_factory=dict)
    _waiting: dict[str, Held] = field(default_factory=dict)
    _unsent: dict[Key, Report] = field(default_factory=dict)
    _sent: dict[Key, Report] = field(default_factory=dict)
    _finished: OrderedDict[str, None] = field(default_factory=OrderedDict)

    @property
    def counts(self) -> ConsumerCounts:
        """A snapshot of the counts."""
        waiting = len(self._waiting)
        return replace(
            self._counts, waiting=waiting, running=self.running, pending=len(self._held) - waiting - self.running
        )

    @property
    def capacity(self) -> int:
        """What to announce: all places but those of deliveries that earlier connections brought; 0 when not taking.

        The platform counts what it has sent on this connection, so what is held from before must be taken off here.
        """
        if not self.taking:
            return 0
        carried = sum(held.session != self.session for held in self._held.values())
        return max(0, self.concurrency + self.prefetch - carried)

    @property
    def settled(self) -> bool:
        """Whether every report has its verdict."""
        return not self._unsent and not self._sent

    @property
    def next_start_by(self) -> float | None:
        """The earliest moment at which a waiting delivery is no longer worth starting."""
        return min((held.lease.start_by for held in self._waiting.values()), default=None)

    def take(self, lease: Lease) -> None:
        """Enter a lease. A lease that is not newer than the held one of the same delivery is ignored."""
        delivery_id = lease.proof.delivery_id
        held = self._held.get(delivery_id)
        if held is not None and lease.proof.epoch <= held.lease.proof.epoch:
            return
        self._count(received=1)
        if held is not None:
            self._count(superseded=1)
            self._withdraw(held.lease.proof)
            held.lease, held.session = lease, self.session
            if held.stage is Stage.FINISHED:
                self._owe(Report(lease.proof))
        elif delivery_id in self._finished:
            self._held[delivery_id] = Held(lease, Stage.FINISHED, self.session)
            self._owe(Report(lease.proof))
        elif not self.taking or len(self._held) >= self.concurrency + self.prefetch:
            self._count(released=1)
            self._owe(Report(lease.proof, started=False))
        else:
            self._waiting[delivery_id] = self._held[delivery_id] = Held(lease, Stage.WAITING, self.session)

    def reject(self, proof: Proof) -> None:
        """Enter a lease whose event cannot be accepted."""
        self._count(received=1, invalid=1)
        self._owe(Report(proof, started=True))

    def start(self, now: float) -> Held | None:
        """Return the next delivery to run, now RUNNING; None when none waits or all places are taken."""
        self.expire(now)
        if self.running >= self.concurrency or not self._waiting:
            return None
        held = self._waiting.pop(next(iter(self._waiting)))
        held.stage = Stage.RUNNING
        self.running += 1
        return held

    def finish(self, held: Held) -> None:
        """The handler has returned: the ACK is owed, under the newest proof."""
        self.running -= 1
        held.stage = Stage.FINISHED
        self._owe(Report(held.lease.proof))

    def fail(self, held: Held) -> None:
        """The handler has raised: the delivery comes again when its lease ends."""
        self.running -= 1
        del self._held[held.lease.proof.delivery_id]
        self._count(failed=1)
        self._owe(Report(held.lease.proof, started=True))

    def expire(self, now: float) -> None:
        """Give back what has waited too long to be worth starting."""
        self._give_back([held for held in self._waiting.values() if held.lease.start_by <= now])

    def stop_taking(self) -> None:
        """Give back everything that waits, and from now on everything that comes."""
        self.taking = False
        self._give_back(list(self._waiting.values()))

    def has_batch(self, *, give_back: bool) -> bool:
        """Whether `batch` would return something."""
        return any(give_back or not report.gives_back for report in self._unsent.values())

    def batch(self, size: int, *, give_back: bool) -> tuple[Report, ...]:
        """Return what to report next, oldest first: at most `size`, all ACKs or all releases; empty when nothing is.

        `give_back` false holds back what the platform might deliver again at once.
        """
        ready = [report for report in self._unsent.values() if give_back or not report.gives_back]
        batch = tuple(report for report in ready if (report.started is None) == (ready[0].started is None))[:size]
        for report in batch:
            self._sent[report.key] = self._unsent.pop(report.key)
        return batch

    def settle(self, verdicts: Sequence[Verdict]) -> list[Verdict]:
        """Enter the verdicts on reports that were sent; return those that refuse what still mattered."""
        refused = []
        for verdict in verdicts:
            report = self._sent.pop((verdict.delivery_id, verdict.epoch), None)
            if report is None:
                continue
            if report.started is None:
                self._settle_ack(verdict)
            if verdict.disposition is Disposition.REFUSED:
                refused.append(verdict)
        return refused

    def lost(self) -> None:
        """The connection is gone: what has no verdict is to be reported again, first, with the same proofs."""
        self.session += 1
        self._unsent = {**self._sent, **self._unsent}
        self._sent = {}

    def reconnected(self) -> None:
        """Count a connection after the first."""
        self._count(reconnects=1)

    def _settle_ack(self, verdict: Verdict) -> None:
        held = self._held.pop(verdict.delivery_id)
        assert held.stage is Stage.FINISHED, "an ACK is owed for nothing else, and withdrawn when a new lease comes"
        if verdict.disposition is Disposition.ACKED:
            self._count(acknowledged=1)
            self._finished.pop(verdict.delivery_id, None)
            return
        self._count(refused=1)
        if verdict.code == ErrorCode.STALE_EPOCH:
            self._remember(verdict.delivery_id)

    def _withdraw(self, proof: Proof) -> None:
        """Owe nothing more about a lease that a newer one has replaced; a verdict that is under way means nothing."""
        self._unsent.pop((proof.delivery_id, proof.epoch), None)
        self._sent.pop((proof.delivery_id, proof.epoch), None)

    def _give_back(self, waiting: Sequence[Held]) -> None:
        for held in waiting:
            delivery_id = held.lease.proof.delivery_id
            del self._waiting[delivery_id], self._held[delivery_id]
            self._count(released=1)
            self._owe(Report(held.lease.proof, started=False))

    def _owe(self, report: Report) -> None:
        self._unsent[report.key] = report

    def _remember(self, delivery_id: str) -> None:
        self._finished[delivery_id] = None
        if len(self._finished) > FINISHED_REMEMBERED:
            self._finished.popitem(last=False)

    def _count(self, **more: int) -> None:
        changed = {name: getattr(self._counts, name) + number for name, number in more.items()}
        self._counts = replace(self._counts, **changed)
