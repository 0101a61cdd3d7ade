"""Random reports, expiries, cancellations and restarts over the real services: after each step the rules hold."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from orbit.protocol.attempt_v1 import Attempt, CommandResult, Disposition, Finish, Outcome
from orbit.protocol.errors import ApiError, ErrorCode
from orbit.protocol.values import new_id
from orbit.server.services import cancel
from tests.support.deliveries import fresh_platform, open_node
from tests.support.worker_client import report
from tests.support.workshop import Hand, Workshop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orbit.mysql.dsn import DSN
    from orbit.sandbox import MySQLServer

T = TypeVar("T")
FINAL = {"SUCCEEDED", "FAILED", "CANCELLED"}
MOST_TASKS = 40
WORKER = st.integers(min_value=0, max_value=1)
WHICH = st.integers(min_value=0, max_value=10_000)

met: set[str] = set()
"""What the runs came across, so that a run that does nothing cannot pass."""


class Machine(RuleBasedStateMachine):
    """Two workers and a few tasks of one queue. Everything is looked up in the database after each step."""

    database: DSN

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.shop: Workshop = self.run(self._open())
        self.hands: list[Hand] = [self.run(self.shop.hire()) for _ in range(2)]
        self.tasks: list[str] = []
        self.attempts: list[tuple[int, Attempt]] = []
        """(number of the worker, attempt), as they were handed out."""
        self.active: list[tuple[int, Attempt]] = []
        """Those of them that may act, after the last step."""
        self.over: set[str] = set()
        """Attempts whose lease has run out, which nothing prolongs any more."""
        self.told: list[tuple[int, str, Finish, CommandResult]] = []
        """Every report that was recorded, with its message id and answer."""
        self.before: dict[str, dict[str, Any]] = {}

    def run(self, what: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(what)

    async def _open(self) -> Workshop:
        return await Workshop.open(open_node(self.database, lanes=2), self.database)

    def teardown(self) -> None:
        self.run(self.shop.platform.pool.close())
        self.runner.close()

    def allowed(self, what: Coroutine[Any, Any, T], *codes: ErrorCode) -> T | None:
        """The answer, or None for a refusal that may be."""
        try:
            return self.run(what)
        except ApiError as refusal:
            if refusal.code not in codes:
                raise
            met.add(refusal.code.value)
            return None

    @initialize()
    def open_in_the_middle(self) -> None:
        """What random steps seldom come to: a task that waits with an uncertain effect, one that runs on though it is
        to end."""
        for _ in range(2):
            self.submit(attempts=3, idempotent=True)
        self.claim(worker=0, start=True)
        (_, doubtful), (_, unwanted) = self.attempts
        self.tell(0, new_id(), report(doubtful, Outcome.UNKNOWN))
        self.run(cancel.cancel(self.shop.platform, self.shop.caller, unwanted.task_id))

    @precondition(lambda self: len(self.tasks) < MOST_TASKS)
    @rule(attempts=st.sampled_from([3, 2, 1]), idempotent=st.sampled_from([True, True, False]))
    def submit(self, attempts: int, idempotent: bool) -> None:
        retry = {"max_attempts": attempts, "initial_delay_ms": 1, "max_delay_ms": 1}
        self.tasks.append(self.run(self.shop.submit(retry=retry, idempotent=idempotent)))

    @precondition(lambda self: self.tasks)
    @rule(worker=WORKER, start=st.booleans())
    def claim(self, worker: int, start: bool) -> None:
        """A worker takes what there is, and starts it or not."""
        self.run(self.shop.sql("UPDATE tasks SET available_at = created_at WHERE queue_id = :q", q=self.shop.queue_id))
        for assignment in self.run(self.hands[worker].claim()):
            self.attempts.append((worker, assignment.attempt))
            met.add("claimed again" if assignment.task.attempt_number > 1 else "claimed")
            if start:
                self.run(self.hands[worker].start(assignment.attempt))

    @precondition(lambda self: self.attempts)
    @rule(which=WHICH)
    def start(self, which: int) -> None:
        worker, attempt = self.chosen(which)
        self.allowed(self.hands[worker].start(attempt), ErrorCode.STATE_CONFLICT, ErrorCode.STALE_EPOCH)

    @precondition(lambda self: self.attempts)
    @rule(which=WHICH)
    def renew(self, which: int) -> None:
        worker, attempt = self.chosen(which)
        self.allowed(self.hands[worker].renew(attempt), ErrorCode.STATE_CONFLICT, ErrorCode.STALE_EPOCH)

    @precondition(lambda self: self.attempts)
    @rule(which=WHICH, outcome=st.sampled_from(Outcome), retryable=st.booleans(), result=st.sampled_from(["1", "2"]))
    def finish(self, which: int, outcome: Outcome, retryable: bool, result: str) -> None:
        """Some attempt's report, whatever became of it."""
        worker, attempt = self.chosen(which)
        finish = report(attempt, outcome, result=result, retryable=retryable and outcome is Outcome.FAILED)
        self.tell(worker, new_id(), finish)

    @precondition(lambda self: self.active)
    @rule(which=WHICH, outcome=st.sampled_from([Outcome.UNKNOWN, Outcome.SUCCEEDED, Outcome.FAILED]))
    def work(self, which: int, outcome: Outcome) -> None:
        """An attempt that may act is started, if it was not, and reported as its worker should."""
        worker, attempt = self.active[which % len(self.active)]
        self.allowed(self.hands[worker].start(attempt), ErrorCode.STATE_CONFLICT)
        lease = self.run(self.hands[worker].resume(attempt))
        if lease.cancel_requested_at is not None and which % 2:
            outcome = Outcome.CANCELLED
        self.tell(worker, new_id(), report(attempt, outcome, result="3", retryable=outcome is Outcome.FAILED))

    @precondition(lambda self: self.told)
    @rule(which=WHICH, anew=st.booleans())
    def repeat(self, which: int, anew: bool) -> None:
        """The same report again: its message's first receipt, or under a new message id what `tell` says."""
        worker, message_id, finish, first = self.told[which % len(self.told)]
        met.add("repeated")
        if anew:
            self.tell(worker, new_id(), finish)
            return
        again = self.run(self.hands[worker].tell(finish, message_id))
        assert again.receipt == first.receipt
        assert not again.lease.active or first.disposition is Disposition.EVIDENCE_ONLY

    @precondition(lambda self: self.active_where("effect_uncertain"))
    @rule(which=WHICH)
    def succeed(self, which: int) -> None:
        """An attempt of a task with an uncertain effect brings it to its end."""
        self.bring(self.active_where("effect_uncertain"), which, Outcome.SUCCEEDED)

    @precondition(lambda self: self.active_where("cancel_requested_at"))
    @rule(which=WHICH)
    def heed(self, which: int) -> None:
        """An attempt of a task whose cancellation was asked for stops."""
        self.bring(self.active_where("cancel_requested_at"), which, Outcome.CANCELLED)

    def active_where(self, column: str) -> list[tuple[int, Attempt]]:
        """Attempts that may act, of tasks that have something in this column."""
        return [(worker, one) for worker, one in self.active if self.before[one.task_id][column]]

    def bring(self, among: list[tuple[int, Attempt]], which: int, outcome: Outcome) -> None:
        """Start one of the attempts, if it was not, and report."""
        worker, attempt = among[which % len(among)]
        self.allowed(self.hands[worker].start(attempt), ErrorCode.STATE_CONFLICT)
        self.tell(worker, new_id(), report(attempt, outcome, result="4"))

    def tell(self, worker: int, message_id: str, finish: Finish) -> None:
        """Report. A report that was applied has its receipt for good; one that was not may count later."""
        known = [one for _, _, told, one in self.told if told == finish]
        answer = self.allowed(
            self.hands[worker].tell(finish, message_id), ErrorCode.STATE_CONFLICT, ErrorCode.RESOURCE_EXHAUSTED
        )
        if answer is None:
            return
        applied = [one for one in known if one.disposition is Disposition.APPLIED]
        if applied or (known and answer.disposition is Disposition.EVIDENCE_ONLY):
            assert answer.receipt == (applied or known)[0].receipt
        if finish.attempt.attempt_id in self.over and not applied:
            assert answer.disposition is Disposition.EVIDENCE_ONLY
            met.add("too late")
        met.add(f"{finish.outcome} {answer.disposition}")
        self.told.append((worker, message_id, finish, answer))

    @precondition(lambda self: self.tasks)
    @rule(which=WHICH, noticed=st.booleans())
    def lapse(self, which: int, noticed: bool) -> None:
        """The leases of one task run out; the sweeper notices, or not yet."""
        task_id = self.some_task(which)
        self.run(self.shop.lapse(task_id))
        self.over |= {one.attempt_id for _, one in self.attempts if one.task_id == task_id}
        if noticed:
            self.run(self.shop.sweep())

    @precondition(lambda self: self.tasks)
    @rule(what=st.sampled_from(["grow old", "cancel", "cancel", "reconnect", "restart"]), which=WHICH, worker=WORKER)
    def disturb(self, what: str, which: int, worker: int) -> None:
        """What is rarer: a deadline passes, somebody cancels, a worker's process dials again, the node starts anew."""
        task_id = self.some_task(which)
        match what:
            case "grow old":
                self.run(self.shop.sql("UPDATE tasks SET deadline_at = UTC_TIMESTAMP(6) WHERE task_id = :i", i=task_id))
                self.run(self.shop.sweep())
            case "cancel":
                asking = cancel.cancel(self.shop.platform, self.shop.caller, task_id)
                self.allowed(asking, ErrorCode.STATE_CONFLICT)
            case "reconnect":
                old = self.hands[worker]
                self.hands[worker] = self.run(self.shop.hire(old.hello))
                assert self.allowed(old.claim(), ErrorCode.SESSION_FENCED) is None
            case "restart":
                self.run(self.shop.platform.pool.close())
                self.shop = self.shop.through(open_node(self.database, lanes=2))
                self.hands = [one.through(self.shop.platform) for one in self.hands]

    def some_task(self, which: int) -> str:
        """Mostly one that a worker is at."""
        if self.active and which % 4:
            return self.active[which % len(self.active)][1].task_id
        return self.tasks[which % len(self.tasks)]

    def chosen(self, which: int) -> tuple[int, Attempt]:
        """Mostly one that may act, or one of the newest."""
        among = (self.active or self.attempts) if which % 2 else self.attempts[-4:]
        return among[which % len(among)]

    @invariant()
    def what_must_hold(self) -> None:
        tasks = {row["task_id"]: row for row in self.run(self.shop.table("tasks", queue_id=self.shop.queue_id))}
        attempts = self.run(self.shop.table("attempts", queue_id=self.shop.queue_id))
        events = self.run(self.shop.table("events", queue_id=self.shop.queue_id))
        assert set(tasks) == set(self.tasks)
        for task_id, task in tasks.items():
            own = [row for row in attempts if row["task_id"] == task_id]
            told = [row["task_version"] for row in events if row["task_id"] == task_id]
            assert_sound(task, own, sorted(told))
            assert_follows(self.before.get(task_id), task)
            met.add(task["state"])
        # One authority: of all attempts that were ever handed out, one for each task at most may still act.
        rows = {row["attempt_id"]: row for row in attempts}
        held = [(worker, one) for worker, one in self.attempts if rows[one.attempt_id]["state"] != "ENDED"]
        self.active = [(worker, one) for worker, one in held if self.may_act(worker, one)]
        assert len(self.active) == len({one.task_id for _, one in self.active})
        self.assert_nothing_lost(tasks, rows)
        self.before = tasks

    def may_act(self, worker: int, attempt: Attempt) -> bool:
        return self.run(self.hands[worker].resume(attempt)).active

    def assert_nothing_lost(self, tasks: dict[str, Any], attempts: dict[str, Any]) -> None:
        """Every report that was answered is where its receipt says, and an applied success is the task's result."""
        evidence = self.run(
            self.shop.sql(
                "SELECT e.attempt_id, e.outcome, e.result FROM evidence e JOIN attempts a USING (attempt_id)"
                " WHERE a.queue_id = :q",
                q=self.shop.queue_id,
            )
        )
        for _, _, finish, answer in self.told:
            row = attempts[finish.attempt.attempt_id]
            said = (finish.outcome.value, finish.result)
            if answer.disposition is Disposition.EVIDENCE_ONLY:
                assert (row["attempt_id"], *said) in evidence
                continue
            assert (row["outcome"], row["result"]) == said
            if finish.outcome is Outcome.SUCCEEDED:
                task = tasks[finish.attempt.task_id]
                assert (task["state"], task["result"]) == ("SUCCEEDED", finish.result)


def assert_sound(task: dict[str, Any], attempts: list[dict[str, Any]], versions: list[int]) -> None:
    """What holds of a task at any time."""
    assert versions == list(range(1, task["version"] + 1))
    assert task["attempt_count"] == len(attempts) <= task["retry_max_attempts"]
    assert sorted(row["epoch"] for row in attempts) == list(range(1, len(attempts) + 1))
    unended = [row["state"] for row in attempts if row["state"] != "ENDED"]
    assert unended == ([task["state"]] if task["state"] in {"LEASED", "RUNNING"} else [])
    assert (task["completed_at"] is not None) is (task["state"] in FINAL)
    assert task["result"] is None or task["state"] in FINAL
    assert (task["error_code"] is not None) >= (task["state"] in {"FAILED", "NEEDS_REVIEW"})
    if task["state"] == "NEEDS_REVIEW":
        assert task["effect_uncertain"]
    # Once an effect is unknown, only an idempotent task has another attempt.
    assert not task["effect_uncertain"] or task["state"] != "WAITING" or task["recovery_safety"] == "IDEMPOTENT"


def assert_follows(before: dict[str, Any] | None, after: dict[str, Any]) -> None:
    """What holds of a step of a task."""
    if before is None:
        return
    assert after["version"] >= before["version"]
    assert after["attempt_count"] >= before["attempt_count"]
    if before["state"] in FINAL:
        assert after | {"deadline_at": 0, "start_before": 0, "available_at": 0} == before | {
            "deadline_at": 0,
            "start_before": 0,
            "available_at": 0,
        }
    if before["effect_uncertain"] and not after["effect_uncertain"]:
        assert after["state"] == "SUCCEEDED"
        met.add("certain again")
    if before["cancel_requested_at"] is not None:
        assert after["attempt_count"] == before["attempt_count"]
        assert after["cancel_requested_at"] == before["cancel_requested_at"]
        assert after["state"] != "WAITING"


@pytest.fixture(scope="module")
def dsn(mysql: MySQLServer) -> Iterator[DSN]:
    """A platform without any node but the test's own."""
    with fresh_platform(mysql) as fresh:
        yield fresh


def test_what_must_hold_holds_whatever_happens(dsn: DSN) -> None:
    met.clear()

    class OnThisPlatform(Machine):
        database = dsn

    run_state_machine_as_test(
        OnThisPlatform,
        settings=settings(
            max_examples=12,
            stateful_step_count=60,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert met >= {
        *("claimed", "claimed again", "repeated", "certain again", "too late"),
        *("SUCCEEDED APPLIED", "FAILED APPLIED", "UNKNOWN APPLIED", "CANCELLED APPLIED", "SUCCEEDED EVIDENCE_ONLY"),
        *("WAITING", "LEASED", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED", "NEEDS_REVIEW"),
        *("STALE_EPOCH", "STATE_CONFLICT", "SESSION_FENCED"),
    }, sorted(met)
