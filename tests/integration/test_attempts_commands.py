"""Start, renew, finish and resume: permission, bounds, receipts, evidence and who may speak."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, timedelta
from typing import TYPE_CHECKING

import pytest

from orbit.protocol.attempt_v1 import AttemptState, Disposition, Operation, Outcome
from orbit.protocol.errors import ApiError, ErrorCode
from orbit.protocol.http_v1 import TaskState
from orbit.protocol.limits import Limits
from orbit.protocol.values import Secret, new_id
from tests.support.deliveries import fresh_platform, open_node
from tests.support.worker_client import report
from tests.support.workshop import Workshop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Iterator

    from orbit.mysql.dsn import DSN
    from orbit.protocol.attempt_v1 import Attempt, CommandResult
    from orbit.sandbox import MySQLServer
    from orbit.server.parts import Platform
    from tests.support.workshop import Hand

RETRIES = {"max_attempts": 3, "initial_delay_ms": 1, "max_delay_ms": 1}
S = timedelta(seconds=1)


@pytest.fixture(scope="module")
def dsn(mysql: MySQLServer) -> Iterator[DSN]:
    """A platform without any node but the test's own."""
    with fresh_platform(mysql) as fresh:
        yield fresh


@pytest.fixture(scope="module")
async def platform(dsn: DSN) -> AsyncIterator[Platform]:
    """One node's parts."""
    node = open_node(dsn)
    yield node
    await node.pool.close()


@pytest.fixture
async def shop(platform: Platform, dsn: DSN) -> Workshop:
    """A queue of this test's own."""
    return await Workshop.open(platform, dsn)


@pytest.fixture
async def hand(shop: Workshop) -> Hand:
    """A worker of this test's own."""
    return await shop.hire()


async def refused(what: Awaitable[object]) -> ErrorCode:
    """The code that something is refused with."""
    with pytest.raises(ApiError) as caught:
        await what
    return caught.value.code


async def test_a_start_is_a_version_an_event_and_a_lease_from_now(shop: Workshop, hand: Hand) -> None:
    task_id = await shop.submit(retry={"attempt_timeout_ms": 60_000})
    attempt = await hand.take()
    await shop.sql("UPDATE attempts SET lease_until = lease_until - INTERVAL 20 SECOND WHERE task_id = :id", id=task_id)

    result = await hand.start(attempt)

    task, [row] = await shop.task(task_id), await shop.attempts(task_id)
    assert (task["state"], task["version"], task["attempt_count"]) == ("RUNNING", 3, 1)
    assert row["state"] == "RUNNING"
    assert row["timeout_at"] == row["started_at"] + 60 * S
    assert row["lease_until"] == row["started_at"] + 30 * S
    receipt, lease = result.receipt, result.lease
    assert (receipt.operation, receipt.disposition) == (Operation.START, Disposition.APPLIED)
    assert (receipt.task_state, receipt.task_version) == (TaskState.RUNNING, 3)
    assert receipt.recorded_at == row["started_at"].replace(tzinfo=UTC)
    assert receipt.lease_until == lease.lease_until == row["lease_until"].replace(tzinfo=UTC)
    assert (lease.state, lease.active, lease.cancel_requested_at) == (AttemptState.RUNNING, True, None)
    assert [one["event_type"] for one in await shop.events(task_id)] == [
        "task.submitted",
        "task.leased",
        "task.started",
    ]
    assert (await shop.events(task_id))[-1]["attempt_id"] == attempt.attempt_id


async def test_a_lease_passes_neither_the_attempts_timeout_nor_the_deadline(shop: Workshop, hand: Hand) -> None:
    short, late = (
        await shop.submit(retry={"attempt_timeout_ms": 5_000}),
        await shop.submit(task_timeout_ms=8_000, retry={"attempt_timeout_ms": 60_000}),
    )
    for assignment in await hand.claim():
        await hand.start(assignment.attempt)
        await hand.renew(assignment.attempt)

    [row] = await shop.attempts(short)
    assert row["lease_until"] == row["timeout_at"] == row["started_at"] + 5 * S
    [row] = await shop.attempts(late)
    assert row["lease_until"] == (await shop.task(late))["deadline_at"]


async def test_a_renewal_moves_the_lease_and_nothing_else(shop: Workshop, hand: Hand) -> None:
    task_id = await shop.submit()
    attempt = await hand.run()
    before = await shop.task(task_id)
    await shop.sql("UPDATE attempts SET lease_until = lease_until - INTERVAL 20 SECOND WHERE task_id = :id", id=task_id)

    result = await hand.renew(attempt)

    assert await shop.task(task_id) == before
    assert result.receipt.lease_until is not None
    assert result.receipt.lease_until == result.receipt.recorded_at + 30 * S
    assert result.lease.lease_until == result.receipt.lease_until
    assert (result.receipt.task_state, result.receipt.task_version) == (TaskState.RUNNING, 3)


async def test_an_attempt_that_has_not_started_is_renewed_up_to_the_latest_start(shop: Workshop, hand: Hand) -> None:
    task_id = await shop.submit(latest_start_at="2030-01-01T00:00:00Z")
    attempt = await hand.take()
    await shop.sql(
        "UPDATE tasks SET latest_start_at = UTC_TIMESTAMP(6) + INTERVAL 10 SECOND WHERE task_id = :id", id=task_id
    )

    result = await hand.renew(attempt)

    latest = (await shop.task(task_id))["latest_start_at"].replace(tzinfo=UTC)
    assert (result.lease.state, result.lease.lease_until) == (AttemptState.LEASED, latest)


@pytest.mark.parametrize("operation", ["start", "renew", "finish"])
async def test_the_same_message_gets_the_first_receipt_and_the_lease_of_now(
    shop: Workshop, hand: Hand, operation: str
) -> None:
    task_id = await shop.submit(retry=RETRIES)
    attempt = await (hand.take() if operation == "start" else hand.run())
    message_id = new_id()

    async def send() -> CommandResult:
        if operation == "finish":
            return await hand.finish(attempt, Outcome.FAILED, message_id, retryable=True)
        return await (hand.start if operation == "start" else hand.renew)(attempt, message_id)

    first = await send()
    version = (await shop.task(task_id))["version"]
    again = await send()

    assert first == replace(again, lease=first.lease)
    assert (await shop.task(task_id))["version"] == version
    # Much later, when the task has been done by somebody else: history still, and no authority.
    await shop.lapse(task_id)
    await shop.sweep()
    if operation != "finish":
        assert (await shop.task(task_id))["state"] in {"WAITING", "NEEDS_REVIEW"}
    await shop.sql("UPDATE tasks SET state = 'WAITING', available_at = created_at WHERE task_id = :id", id=task_id)
    other = await shop.hire()
    await other.finish(await other.run())
    late = await send()
    assert late.receipt == first.receipt
    assert (late.lease.state, late.lease.active) == (AttemptState.ENDED, False)
    assert (await shop.task(task_id))["state"] == "SUCCEEDED"
    assert await shop.table("evidence", attempt_id=attempt.attempt_id) == []


async def test_a_message_id_stands_for_its_first_content_only(shop: Workshop, hand: Hand) -> None:
    task_id = await shop.submit(retry=RETRIES)
    attempt = await hand.take()
    start_id, finish_id = new_id(), new_id()
    await hand.start(attempt, start_id)
    failed = report(attempt, Outcome.FAILED, error_code="E", result='{"a":1}', retryable=True)
    await hand.tell(failed, finish_id)
    version = (await shop.task(task_id))["version"]

    others = (
        replace(failed, retryable=False),
        replace(failed, error_code="F"),
        replace(failed, result='{"a":2}'),
        replace(failed, result=None),
        replace(failed, outcome=Outcome.UNKNOWN, retryable=False),
    )
    for other in others:
        assert await refused(hand.tell(other, finish_id)) is ErrorCode.IDEMPOTENCY_CONFLICT
    assert await refused(hand.renew(attempt, start_id)) is ErrorCode.IDEMPOTENCY_CONFLICT
    assert await refused(hand.start(attempt, finish_id)) is ErrorCode.IDEMPOTENCY_CONFLICT
    assert (await shop.task(task_id))["version"] == version


async def test_the_same_report_under_a_new_message_gets_the_first_receipt_for_good(shop: Workshop, hand: Hand) -> None:
    task_id = await shop.submit(retry=RETRIES)
    attempt = await hand.run()
    failed = report(attempt, Outcome.FAILED, retryable=True)
    first = await hand.tell(failed)
    await shop.due(task_id)
    await hand.finish(await hand.run())
    second_id = new_id()

    again = await hand.tell(failed, second_id)

    assert again.receipt == first.receipt
    assert (again.receipt.task_state, again.lease.active) == (TaskState.WAITING, False)
    assert (await shop.task(task_id))["state"] == "SUCCEEDED"
    # The second message, too, now stands for its content.
    assert (await hand.tell(failed, second_id)).receipt == first.receipt
    assert await refused(hand.tell(replace(failed, error_code="F"), second_id)) is ErrorCode.IDEMPOTENCY_CONFLICT
    assert await shop.table("evidence", attempt_id=attempt.attempt_id) == []


async def test_retryable_false_and_left_out_are_one_report(shop: Workshop, hand: Hand) -> None:
    await shop.submit()
    attempt = await hand.run()
    message_id = new_id()

    first = await hand.tell(report(attempt, Outcome.FAILED), message_id)

    assert (await hand.tell(report(attempt, Outcome.FAILED, retryable=False), message_id)).receipt == first.receipt


@pytest.mark.parametrize(
    ("outcome", "state", "decision"),
    [
        (Outcome.SUCCEEDED, TaskState.SUCCEEDED, None),
        (Outcome.FAILED, TaskState.FAILED, None),
        (Outcome.UNKNOWN, TaskState.NEEDS_REVIEW, "RECONCILIATION_REQUIRED"),
    ],
)
async def test_a_finish_ends_task_and_attempt_together(
    shop: Workshop, hand: Hand, outcome: Outcome, state: TaskState, decision: str | None
) -> None:
    task_id = await shop.submit()
    attempt = await hand.run()

    result = await hand.finish(attempt, outcome, result='{"n":18446744073709551617.10}')

    task, [row], event = await shop.task(task_id), await shop.attempts(task_id), (await shop.events(task_id))[-1]
    assert (task["state"], task["version"]) == (state.value, 4)
    assert (row["state"], row["outcome"], row["decision"]) == ("ENDED", outcome.value, decision)
    assert row["result"] == '{"n":18446744073709551617.10}'
    assert row["ended_at"] == task["updated_at"]
    reviewed = state is TaskState.NEEDS_REVIEW
    assert task["result"] == (None if reviewed else row["result"])
    assert (task["completed_at"] is None) is reviewed
    assert task["effect_uncertain"] == reviewed
    assert (event["state"], event.get("decision"), event["attempt_id"]) == (state, decision, attempt.attempt_id)
    assert (event["attempt_count"], event["max_attempts"]) == (1, 1)
    assert event.get("effect_uncertain") is (True if reviewed else None)
    assert "node" not in event
    assert (result.receipt.task_state, result.receipt.task_version, result.receipt.decision) == (state, 4, decision)
    assert (result.lease.state, result.lease.lease_until) == (AttemptState.ENDED, None)


async def test_a_retry_waits_in_the_database_without_a_result(shop: Workshop, hand: Hand) -> None:
    task_id = await shop.submit(retry={"max_attempts": 3, "initial_delay_ms": 60_000, "max_delay_ms": 60_000})
    attempt = await hand.run()

    result = await hand.finish(attempt, Outcome.FAILED, retryable=True, result='{"why":1}')

    task, [row], event = await shop.task(task_id), await shop.attempts(task_id), (await shop.events(task_id))[-1]
    assert (task["state"], task["result"], task["error_code"], task["completed_at"]) == ("WAITING", None, None, None)
    assert 30_000 <= event["delay_ms"] <= 60_000
    assert task["available_at"] == task["updated_at"] + timedelta(milliseconds=event["delay_ms"])
    assert (row["retryable"], row["result"], row["error_code"]) == (1, '{"why":1}', "TEST")
    assert (row["decision"], row["delay_ms"], row["next_available_at"]) == (
        "RETRYABLE_FAILURE",
        event["delay_ms"],
        task["available_at"],
    )
    assert event["event_type"] == "task.requeued"
    assert (event["decision"], event["attempt_count"], event["max_attempts"]) == ("RETRYABLE_FAILURE", 1, 3)
    assert result.receipt.next_available_at == task["available_at"].replace(tzinfo=UTC)
    assert await hand.claim() == []
    await shop.due(task_id)
    (assignment,) = await hand.claim()
    assert (assignment.task.attempt_number, assignment.attempt.epoch) == (2, 2)
    assert assignment.attempt.attempt_id != attempt.attempt_id


async def test_a_report_without_authority_is_evidence_and_changes_nothing(shop: Workshop, hand: Hand) -> None:
    task_id = await shop.submit(retry=RETRIES, idempotent=True)
    zombie = await hand.run()
    await shop.lapse(task_id)
    await shop.sweep()
    await shop.due(task_id)
    other = await shop.hire()
    current = await other.run()
    before = await shop.task(task_id)

    late = await hand.finish(zombie, result='{"who":"zombie"}')

    assert late.disposition is Disposition.EVIDENCE_ONLY
    assert (late.receipt.task_state, late.receipt.task_version) == (TaskState.RUNNING, before["version"])
    assert late.lease.active is False
    assert await shop.task(task_id) == before
    [kept] = await shop.table("evidence", attempt_id=zombie.attempt_id)
    assert (kept["outcome"], kept["result"]) == ("SUCCEEDED", '{"who":"zombie"}')
    assert before["effect_uncertain"] == 1
    done = await other.finish(current, result='{"who":"current"}')
    assert done.disposition is Disposition.APPLIED
    after = await shop.task(task_id)
    assert (after["state"], after["result"], after["effect_uncertain"]) == ("SUCCEEDED", '{"who":"current"}', 0)
    assert [one["event_type"] for one in await shop.events(task_id)].count("task.succeeded") == 1


async def test_late_success_does_not_clear_an_uncertain_effect(shop: Workshop, hand: Hand) -> None:
    task_id = await shop.submit()
    attempt = await hand.run()
    await shop.lapse(task_id)

    # Its lease is over, though no sweeper has seen it yet: the report has no authority.
    early = await hand.finish(attempt)
    await shop.sweep()
    late = await hand.finish(attempt, result="1")

    assert {early.disposition, late.disposition} == {Disposition.EVIDENCE_ONLY}
    task = await shop.task(task_id)
    assert (task["state"], task["effect_uncertain"], task["error_code"]) == ("NEEDS_REVIEW", 1, "LEASE_EXPIRED")


async def test_a_report_before_the_start_is_evidence(shop: Workshop, hand: Hand) -> None:
    task_id = await shop.submit()
    attempt = await hand.take()

    result = await hand.finish(attempt)

    assert result.disposition is Disposition.EVIDENCE_ONLY
    assert (result.lease.state, result.lease.active) == (AttemptState.LEASED, True)
    assert (await shop.task(task_id))["state"] == "LEASED"


async def test_what_was_said_too_early_counts_when_it_is_said_again_after_the_start(shop: Workshop, hand: Hand) -> None:
    task_id = await shop.submit()
    attempt = await hand.take()
    early_id = new_id()
    early = await hand.finish(attempt, message_id=early_id)
    await hand.start(attempt)

    applied = await hand.finish(attempt)

    assert (early.disposition, applied.disposition) == (Disposition.EVIDENCE_ONLY, Disposition.APPLIED)
    assert (await shop.task(task_id))["state"] == "SUCCEEDED"
    # Each message keeps its receipt; a new one gets that of the report that was applied.
    assert (await hand.finish(attempt, message_id=early_id)).receipt == early.receipt
    for _ in range(3):
        assert (await hand.finish(attempt)).receipt == applied.receipt
    assert len(await shop.table("evidence", attempt_id=attempt.attempt_id)) == 1


async def test_no_more_than_four_late_reports_of_an_attempt_are_kept(shop: Workshop, hand: Hand) -> None:
    await shop.submit()
    attempt = await hand.take()
    for number in range(4):
        assert (await hand.finish(attempt, result=str(number))).disposition is Disposition.EVIDENCE_ONLY

    assert await refused(hand.finish(attempt, result="4")) is ErrorCode.RESOURCE_EXHAUSTED
    assert (await hand.finish(attempt, result="3")).disposition is Disposition.EVIDENCE_ONLY
    assert len(await shop.table("evidence", attempt_id=attempt.attempt_id)) == 4


async def test_an_earlier_uncertain_effect_outlives_failures_but_not_a_success(shop: Workshop, hand: Hand) -> None:
    failed, succeeded = [await shop.submit(idempotent=True, retry=RETRIES) for _ in range(2)]
    for assignment in await hand.claim():
        await hand.start(assignment.attempt)
        await hand.finish(assignment.attempt, Outcome.UNKNOWN)
    for task_id in (failed, succeeded):
        task = await shop.task(task_id)
        assert (task["state"], task["effect_uncertain"]) == ("WAITING", 1)
        await shop.due(task_id)
    for assignment in await hand.claim():
        assert assignment.task.effect_uncertain is True
        await hand.start(assignment.attempt)
        outcome = Outcome.FAILED if assignment.task.task_id == failed else Outcome.SUCCEEDED
        await hand.finish(assignment.attempt, outcome)

    task = await shop.task(failed)
    assert (task["state"], task["effect_uncertain"], task["error_code"]) == ("NEEDS_REVIEW", 1, "TEST")
    task = await shop.task(succeeded)
    assert (task["state"], task["effect_uncertain"]) == ("SUCCEEDED", 0)


async def test_cancelled_needs_a_stored_intent(shop: Workshop, hand: Hand) -> None:
    task_id = await shop.submit()
    attempt = await hand.run()
    message_id = new_id()
    assert await refused(hand.finish(attempt, Outcome.CANCELLED, message_id)) is ErrorCode.STATE_CONFLICT
    assert (await shop.task(task_id))["state"] == "RUNNING"
    await shop.ask_to_cancel(task_id)

    lease = await hand.resume(attempt)
    assert lease.active
    assert lease.cancel_requested_at is not None
    assert (await hand.renew(attempt)).lease.cancel_requested_at == lease.cancel_requested_at
    result = await hand.finish(attempt, Outcome.CANCELLED, message_id)

    assert (result.receipt.task_state, result.receipt.decision) == (TaskState.CANCELLED, None)


async def test_an_unknown_end_after_a_cancel_intent_needs_a_person(shop: Workshop, hand: Hand) -> None:
    task_id = await shop.submit(retry=RETRIES, idempotent=True)
    attempt = await hand.run()
    await shop.ask_to_cancel(task_id)

    result = await hand.finish(attempt, Outcome.UNKNOWN)

    assert result.receipt.task_state is TaskState.NEEDS_REVIEW
    assert result.receipt.decision == "RECONCILIATION_REQUIRED"


@pytest.mark.parametrize("change", ["deadline_at", "latest_start_at", "cancel_requested_at"])
async def test_a_start_looks_again(shop: Workshop, hand: Hand, change: str) -> None:
    task_id = await shop.submit()
    attempt = await hand.take()
    await shop.sql(f"UPDATE tasks SET {change} = UTC_TIMESTAMP(6) WHERE task_id = :id", id=task_id)

    assert await refused(hand.start(attempt)) is ErrorCode.STATE_CONFLICT

    assert (await shop.task(task_id))["state"] == "LEASED"


async def test_a_second_message_does_not_start_again(shop: Workshop, hand: Hand) -> None:
    task_id = await shop.submit()
    attempt = await hand.run()
    assert await refused(hand.start(attempt)) is ErrorCode.STATE_CONFLICT
    assert (await shop.task(task_id))["version"] == 3


async def test_an_attempt_that_was_overtaken_is_stale_and_one_that_ended_conflicts(shop: Workshop, hand: Hand) -> None:
    task_id = await shop.submit(retry=RETRIES)
    attempt = await hand.take()
    await shop.lapse(task_id)
    assert await refused(hand.start(attempt)) is ErrorCode.STATE_CONFLICT
    assert await refused(hand.renew(attempt)) is ErrorCode.STATE_CONFLICT
    await shop.sweep()
    assert await refused(hand.start(attempt)) is ErrorCode.STATE_CONFLICT
    await shop.due(task_id)
    await hand.take()

    assert await refused(hand.start(attempt)) is ErrorCode.STALE_EPOCH
    assert await refused(hand.renew(attempt)) is ErrorCode.STALE_EPOCH
    lease = await hand.resume(attempt)
    assert (lease.state, lease.active) == (AttemptState.ENDED, False)


async def test_a_resume_proves_and_prolongs_nothing(shop: Workshop, hand: Hand) -> None:
    task_id = await shop.submit()
    attempt = await hand.take()
    before = await shop.attempts(task_id)

    lease = await hand.resume(attempt)

    assert (lease.state, lease.active) == (AttemptState.LEASED, True)
    assert lease.lease_until == before[0]["lease_until"].replace(tzinfo=UTC)
    assert await shop.attempts(task_id) == before


async def test_only_the_proof_of_the_attempt_speaks_for_it(shop: Workshop, hand: Hand, dsn: DSN) -> None:
    await shop.submit()
    attempt = await hand.take()
    stranger = await shop.hire()
    outsider = await (await Workshop.open(shop.platform, dsn)).hire()

    async def every(who: Hand, one: Attempt) -> set[ErrorCode]:
        return {
            await refused(who.start(one)),
            await refused(who.renew(one)),
            await refused(who.finish(one)),
            await refused(who.resume(one)),
        }

    assert await every(hand, replace(attempt, lease_secret=Secret.new())) == {ErrorCode.INVALID_PROOF}
    assert await every(hand, replace(attempt, epoch=2)) == {ErrorCode.INVALID_PROOF}
    assert await every(hand, replace(attempt, attempt_id=new_id())) == {ErrorCode.NOT_FOUND}
    assert await every(hand, replace(attempt, task_id=new_id())) == {ErrorCode.NOT_FOUND}
    assert await every(stranger, attempt) == {ErrorCode.INVALID_PROOF}
    assert await every(outsider, attempt) == {ErrorCode.NOT_FOUND}


async def test_a_fenced_session_speaks_no_more(shop: Workshop, hand: Hand) -> None:
    await shop.submit()
    attempt = await hand.take()
    newer = await shop.hire(hand.hello)

    for what in (hand.start, hand.renew, hand.finish, hand.resume):
        assert await refused(what(attempt)) is ErrorCode.SESSION_FENCED
    assert await refused(hand.announce(1, sequence=2)) is ErrorCode.SESSION_FENCED
    assert await refused(hand.claim()) is ErrorCode.SESSION_FENCED
    assert (await newer.resume(attempt)).active
    await newer.start(attempt)


@pytest.mark.parametrize("result", ["1e10000", "9" * 5_001, '{"a":[1e-10000]}'])
async def test_numbers_out_of_bounds_are_refused(shop: Workshop, hand: Hand, result: str) -> None:
    task_id = await shop.submit()
    attempt = await hand.run()

    assert await refused(hand.finish(attempt, result=result)) is ErrorCode.INVALID_ARGUMENT

    assert (await shop.task(task_id))["state"] == "RUNNING"


async def test_a_result_of_the_largest_size_goes_through(shop: Workshop, hand: Hand) -> None:
    task_id = await shop.submit()
    attempt = await hand.run()
    result = '"' + "x" * (Limits().result_bytes - 2) + '"'

    assert (await hand.finish(attempt, result=result)).disposition is Disposition.APPLIED

    assert (await shop.task(task_id))["result"] == result


async def test_reports_of_one_attempt_at_once_end_it_once(shop: Workshop, hand: Hand, dsn: DSN) -> None:
    """The same message, the same report under other messages, and another report, all at the same time."""
    task_id = await shop.submit()
    attempt = await hand.run()
    message_id = new_id()
    node = open_node(dsn)
    try:
        elsewhere = hand.through(node)
        results = await asyncio.gather(
            *(one.finish(attempt, message_id=message_id, result="1") for one in (hand, elsewhere)),
            *(one.finish(attempt, result="1") for one in (hand, elsewhere)),
            *(one.finish(attempt, Outcome.FAILED) for one in (hand, elsewhere)),
        )
    finally:
        await node.pool.close()

    task, applied = await shop.task(task_id), [one for one in results if one.disposition is Disposition.APPLIED]
    assert task["version"] == 4
    assert len({one.receipt for one in applied}) == 1
    assert {one.receipt.task_state for one in applied} == {TaskState(task["state"])}
    assert len(applied) == (4 if task["state"] == "SUCCEEDED" else 2)
    assert len(await shop.table("evidence", attempt_id=attempt.attempt_id)) == 1
