"""Cancellations, reports, sweeps and persons at the same task at the same time, in random order.

Whoever comes first, each outcome is one that the tables allow for that order, written down here by hand, and the
task's history is a chain: versions without a gap, at most one end, an attempt that ended once.
"""

from __future__ import annotations

import asyncio
import random
from enum import Enum
from typing import TYPE_CHECKING, Any

import pytest

from orbit.protocol.attempt_v1 import Disposition, Outcome
from orbit.server.services import expiry
from tests.support.platform import Api
from tests.support.reviews import AGAIN_LATER, Floor, resolve, retry
from tests.support.rows import rows
from tests.support.wire_client import Refusal
from tests.support.worker_client import report

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

    from orbit.protocol.assignment_v1 import Assignment
    from orbit.protocol.attempt_v1 import CommandResult
    from tests.support.platform import Node

SEEDS = [1, 2]
TASKS = 20
ENDS = {"task.succeeded", "task.failed", "task.cancelled"}


@pytest.fixture
async def floor(node: Node, api: Api) -> AsyncIterator[Floor]:
    """A queue and one worker with room for all tasks of a round."""
    async with Floor.open(node.base_url, api, capacity=TASKS) as one:
        yield one


async def linger(draw: random.Random) -> None:
    """Let others go first, now and then for several steps of a transaction."""
    for _ in range(draw.choice([0, 0, 1, 5, 20, 60])):
        await asyncio.sleep(0.0005)


async def check_history(floor: Floor, task_id: str) -> dict[str, Any]:
    """The task, whose events, attempts and row agree."""
    task, events, attempts = await floor.task(task_id), await floor.events(task_id), await floor.attempts(task_id)
    assert [event["task_version"] for event in events] == [str(number + 1) for number in range(len(events))]
    assert (task["version"], task["state"]) == (events[-1]["task_version"], events[-1]["state"])
    assert task.get("effect_uncertain", False) is events[-1].get("effect_uncertain", False)
    kinds = [event["event_type"] for event in events]
    assert sum(kind in ENDS for kind in kinds) <= 1
    if set(kinds) & ENDS:
        assert kinds[-1] in ENDS
    assert [attempt["epoch"] for attempt in attempts] == [str(number + 1) for number in range(task["attempt_count"])]
    assert kinds.count("task.leased") == task["attempt_count"]
    assert kinds.count("task.started") == sum("started_at" in attempt for attempt in attempts)
    assert all((attempt["state"] == "ENDED") == ("outcome" in attempt) for attempt in attempts)
    return task


class Moment(Enum):
    """When a cancellation is sent: in a known order with the worker's commands, or at the same time as one of them."""

    FIRST = "before the start"
    WITH_START = "at the same time as the start"
    BETWEEN = "after the start, before the report"
    WITH_REPORT = "at the same time as the report"
    LAST = "after the report"


class Order:
    """What the two sides of one task wait for."""

    def __init__(self, moment: Moment) -> None:
        self._moment = moment
        self._reached = asyncio.Event()
        self._cancelled = asyncio.Event()

    async def come_to(self, moment: Moment) -> None:
        """The worker's side is there; where an order is asked for it waits for the cancellation's answer."""
        if moment is self._moment:
            self._reached.set()
            if moment in {Moment.FIRST, Moment.BETWEEN}:
                await self._cancelled.wait()

    def over(self) -> None:
        """The worker's side has nothing more to say."""
        self._reached.set()

    async def cancel(self, floor: Floor, one: Assignment, draw: random.Random) -> str:
        """Cancel at the moment that was chosen; the state that was answered, or the code of the refusal."""
        await self._reached.wait()
        try:
            return await cancel(floor, one, draw)
        finally:
            self._cancelled.set()


async def work(
    floor: Floor, one: Assignment, outcome: Outcome, *, retryable: bool, draw: random.Random, order: Order
) -> Outcome | None:
    """Start and report; what was reported, or None when the start was refused."""
    try:
        await order.come_to(Moment.FIRST)
        await order.come_to(Moment.WITH_START)
        await linger(draw)
        if not await accepted(floor.worker.start(one.attempt)):
            return None
        await order.come_to(Moment.BETWEEN)
        await order.come_to(Moment.WITH_REPORT)
        await linger(draw)
        if not await accepted(floor.worker.finish(report(one.attempt, outcome, retryable=retryable))):
            # Nobody had asked for the cancellation when this came: the worker then does not know.
            assert outcome is Outcome.CANCELLED
            outcome = Outcome.UNKNOWN
            assert await accepted(floor.worker.finish(report(one.attempt, outcome)))
        return outcome
    finally:
        order.over()


async def accepted(asked: Awaitable[CommandResult]) -> bool:
    """Whether a worker's command was applied; STATE_CONFLICT is the only refusal there may be."""
    try:
        result = await asked
    except Refusal as refused:
        if refused.code != "STATE_CONFLICT":
            raise
        return False
    assert result.disposition is Disposition.APPLIED
    return True


async def cancel(floor: Floor, one: Assignment, draw: random.Random) -> str:
    """Cancel; the state that was answered, or the code of the refusal."""
    await linger(draw)
    answer = await floor.api.cancel(one.task.task_id)
    content = answer.json()
    if answer.status_code == 200:
        assert "cancel_requested_at" in content
        return str(content["state"])
    assert answer.status_code == 409
    return str(content["code"])


# What the worker reported after the intent was stored: the task's end, its uncertainty.
INTENT_FIRST = {
    Outcome.SUCCEEDED: ("SUCCEEDED", False),
    Outcome.FAILED: ("FAILED", False),
    Outcome.UNKNOWN: ("NEEDS_REVIEW", True),
    Outcome.CANCELLED: ("CANCELLED", False),
}


def expected(answered: str, reported: Outcome | None, retryable: bool) -> tuple[str, bool]:
    """The end that the order of things leads to; fails for an answer that no order can give."""
    if reported is None:
        # The cancellation came before the start.
        assert answered == "CANCELLED"
        return "CANCELLED", False
    match answered:
        case "RUNNING":
            return INTENT_FIRST[reported]
        case "STATE_CONFLICT":
            assert reported is Outcome.SUCCEEDED or (reported is Outcome.FAILED and not retryable)
            return reported.value, False
        case "CANCELLED":
            # The failure came first and the task waited for its next attempt.
            assert (reported, retryable) == (Outcome.FAILED, True)
            return "CANCELLED", False
        case "NEEDS_REVIEW":
            # Under review, or waiting with an uncertain effect.
            assert reported is Outcome.UNKNOWN
            return "NEEDS_REVIEW", True
    raise AssertionError(f"{answered} is no answer to a cancellation")


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_cancellation_meets_a_start_and_a_report(floor: Floor, seed: int) -> None:
    draw = random.Random(seed)
    seen: dict[Moment, set[str]] = {moment: set() for moment in Moment}

    async def one_task(one: Assignment, moment: Moment) -> None:
        outcome = draw.choice(list(Outcome))
        retryable = outcome is Outcome.FAILED and draw.random() < 0.5
        order = Order(moment)

        reported, answered = await asyncio.gather(
            work(floor, one, outcome, retryable=retryable, draw=draw, order=order), order.cancel(floor, one, draw)
        )

        task = await check_history(floor, one.task.task_id)
        end = expected(answered, reported, retryable)
        assert (task["state"], task.get("effect_uncertain", False)) == end, (answered, reported, retryable)
        assert task["attempt_count"] == 1
        assert len(await floor.audit(one.task.task_id)) == (answered != "STATE_CONFLICT")
        seen[moment].add(answered if reported else "unstarted")

    ones = [
        await floor.leased(recovery_safety=draw.choice(["IDEMPOTENT", "RECONCILE_ONLY"]), retry=AGAIN_LATER)
        for _ in range(TASKS)
    ]
    moments = [list(Moment)[number % len(Moment)] for number in range(TASKS)]
    await asyncio.gather(*(one_task(one, moment) for one, moment in zip(ones, moments, strict=True)))

    assert (seen[Moment.FIRST], seen[Moment.BETWEEN]) == ({"unstarted"}, {"RUNNING"})
    assert seen[Moment.LAST] <= {"STATE_CONFLICT", "CANCELLED", "NEEDS_REVIEW"}


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_cancellation_meets_the_sweeper(floor: Floor, node: Node, seed: int) -> None:
    draw = random.Random(seed)
    # How far the task came, what it was declared: its end, whoever came first.
    ends = {
        ("leased", "RECONCILE_ONLY"): ("CANCELLED", False),
        ("leased", "IDEMPOTENT"): ("CANCELLED", False),
        ("running", "RECONCILE_ONLY"): ("NEEDS_REVIEW", True),
        ("running", "IDEMPOTENT"): ("NEEDS_REVIEW", True),
    }
    kinds = [draw.choice(list(ends)) for _ in range(TASKS)]
    ones = [await getattr(floor, stage)(recovery_safety=safety, retry=AGAIN_LATER) for stage, safety in kinds]
    await rows(node, "UPDATE attempts SET lease_until = UTC_TIMESTAMP(6) WHERE queue_id = :id", id=floor.api.queue_id)

    async def sweep() -> None:
        for _ in range(5):
            await linger(draw)
            await expiry.end_leases(node.platform)

    answers, *_ = await asyncio.gather(asyncio.gather(*(cancel(floor, one, draw) for one in ones)), sweep(), sweep())
    await expiry.end_leases(node.platform)

    codes = set()
    for one, kind, answered in zip(ones, kinds, answers, strict=True):
        task = await check_history(floor, one.task.task_id)
        assert (task["state"], task.get("effect_uncertain", False)) == ends[kind], (kind, answered)
        assert task["attempt_count"] == 1
        codes.add(task.get("error_code"))
    assert "LEASE_EXPIRED" in codes


@pytest.mark.parametrize("seed", SEEDS)
async def test_two_persons_resolve_the_same_task_differently(floor: Floor, seed: int) -> None:
    draw = random.Random(seed)

    async def one_task() -> None:
        task_id = (await floor.under_review()).task.task_id
        words: list[tuple[str, dict[str, Any]]] = [
            ("SUCCEEDED", {"result": 1}),
            ("FAILED", {"error_code": "NEVER_HAPPENED"}),
            ("CANCELLED", {}),
        ]
        draw.shuffle(words)
        same_key = draw.random() < 0.5
        key = {"key": "shared-" + task_id} if same_key else {}
        answers = await asyncio.gather(*(resolve(floor.api, task_id, word, **key, **given) for word, given in words))

        done = [word for (word, _), answer in zip(words, answers, strict=True) if answer.status_code == 200]
        refused = [answer.json()["code"] for answer in answers if answer.status_code != 200]
        task = await check_history(floor, task_id)
        assert done == [task["state"]]
        assert refused == ["IDEMPOTENCY_CONFLICT" if same_key else "STATE_CONFLICT"] * 2
        [entry] = await floor.audit(task_id)
        assert entry["details"]["outcome"] == task["state"]

    for _ in range(6):
        await one_task()


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_person_resolves_while_the_late_worker_reports_and_somebody_retries(floor: Floor, seed: int) -> None:
    draw = random.Random(seed)

    async def late(one: Assignment) -> Disposition:
        await linger(draw)
        return (await floor.worker.finish(report(one.attempt, result='{"late":true}'))).disposition

    async def word(one: Assignment, said: str) -> int:
        await linger(draw)
        given = {"error_code": "NEVER_HAPPENED"} if said == "FAILED" else {}
        return (await resolve(floor.api, one.task.task_id, said, **given)).status_code

    async def again(one: Assignment) -> int:
        await linger(draw)
        return (await retry(floor.api, one.task.task_id)).status_code

    for _ in range(8):
        one = await floor.under_review()
        said = draw.choice(["SUCCEEDED", "FAILED", "CANCELLED"])

        disposition, resolved, retried = await asyncio.gather(late(one), word(one, said), again(one))

        task = await check_history(floor, one.task.task_id)
        assert (disposition, resolved) == (Disposition.EVIDENCE_ONLY, 200)
        assert (task["state"], "result" in task, "effect_uncertain" in task) == (said, False, False)
        # Once somebody found that it had succeeded it is not done again.
        assert retried == 201 or (retried, said) == (409, "SUCCEEDED")
        [attempt] = await floor.attempts(one.task.task_id)
        assert [kept["result"] for kept in attempt["evidence"]] == [{"late": True}]
        if retried == 201:
            await floor.worker.assignment()
