"""What a worker says about its attempts: start, renew, finish, resume.

Every command is proved by the attempt's secret and recorded once for its message id, in the transaction that does what
it asks. The messages of one attempt follow one another at the attempt's row lock, so a look for a receipt under that
lock sees every receipt that there is: the same message with the same content gets the first receipt, whatever became
of the attempt, with the lease as it is now. A receipt is history and gives nobody authority. Source: seed safe-retry
section 6.

After CommitUnconfirmed, or a cancellation, the same message again settles what happened.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from orbit.protocol.attempt_v1 import (
    Attempt,
    AttemptState,
    CommandResult,
    Disposition,
    Finish,
    Lease,
    Operation,
    Receipt,
)
from orbit.protocol.errors import ApiError, ErrorCode
from orbit.server import attempt_statements as sql
from orbit.server.decide import attempt as decide
from orbit.server.decide import authority
from orbit.server.decide import task as decide_task
from orbit.server.decide.authority import Standing
from orbit.server.decide.dispatch import window_start
from orbit.server.ledger import Ledger
from orbit.server.services import endings, workers
from orbit.server.services.commands import Command, command_of, finish_of, known, receipt_of, record, reported
from orbit.server.services.endings import Record, Row
from orbit.server.wake import queue_key

if TYPE_CHECKING:
    from orbit.mysql.statement import Statement
    from orbit.mysql.transaction import Transaction
    from orbit.server.parts import Platform
    from orbit.server.services.workers import Session


async def start(platform: Platform, session: Session, message_id: str, attempt: Attempt) -> CommandResult:
    """Permit the execution: the task is RUNNING once this is confirmed, and the attempt's timeout counts from here.

    Raises ApiError: NOT_FOUND, INVALID_PROOF, SESSION_FENCED, IDEMPOTENCY_CONFLICT, STALE_EPOCH, STATE_CONFLICT, and
    RATE_LIMITED, which leaves the lease as it is; and the errors of `LanePool.run`.
    """
    command = command_of(Operation.START, message_id, attempt)

    async def work(tx: Transaction) -> tuple[CommandResult, frozenset[str]]:
        ledger = await Ledger.open(tx, session.queue_id)
        row = await _locked(tx, session, attempt, sql.LOCK_BOTH)
        row["now"] = ledger.at(row)
        receipt = await known(tx, command)
        if receipt is not None:
            return _result(receipt, row), frozenset()
        grant = authority.start(_standing(row), platform.limits.task_lease_s, row["attempt_timeout_ms"])
        await _count_start(tx, session, row["now"], platform.limits.transaction_s)
        task = await ledger.write(row, decide_task.start(attempt.attempt_id))
        assert grant.timeout_at is not None
        await tx.execute(
            sql.START_ATTEMPT,
            {
                "the_attempt_id": attempt.attempt_id,
                "now": task["updated_at"],
                "timeout_at": grant.timeout_at,
                "lease_until": grant.lease_until,
            },
        )
        row |= task | {"attempt_state": "RUNNING", "lease_until": grant.lease_until, "task_state": task["state"]}
        receipt = receipt_of(command, row, recorded_at=task["updated_at"], lease_until=grant.lease_until)
        await record(tx, command, receipt)
        return _result(receipt, row), ledger.woken

    result, woken = await platform.pool.run_again(work, budget_s=platform.limits.transaction_s)
    for key in woken:
        platform.wake.notify(key)
    return result


async def renew(platform: Platform, session: Session, message_id: str, attempt: Attempt) -> CommandResult:
    """Prolong the lease within the attempt's timeout and the task's deadline; each renewal is a message of its own.

    Raises ApiError: NOT_FOUND, INVALID_PROOF, SESSION_FENCED, IDEMPOTENCY_CONFLICT, STALE_EPOCH, STATE_CONFLICT; and
    the errors of `LanePool.run`.
    """
    command = command_of(Operation.RENEW, message_id, attempt)

    async def work(tx: Transaction) -> CommandResult:
        row = await _locked(tx, session, attempt, sql.LOCK_ATTEMPT)
        receipt = await known(tx, command)
        if receipt is not None:
            return _result(receipt, row)
        grant = authority.renew(_standing(row), platform.limits.task_lease_s)
        await tx.execute(sql.RENEW_ATTEMPT, {"the_attempt_id": attempt.attempt_id, "lease_until": grant.lease_until})
        row["lease_until"] = grant.lease_until
        receipt = receipt_of(command, row, recorded_at=row["now"], lease_until=grant.lease_until)
        await record(tx, command, receipt)
        return _result(receipt, row)

    return await platform.pool.run_again(work, budget_s=platform.limits.transaction_s)


async def finish(platform: Platform, session: Session, message_id: str, report: Finish) -> CommandResult:
    """Record what the worker says became of its attempt.

    With authority it ends the attempt and decides the task: APPLIED. Without, it is kept as evidence and changes
    nothing: EVIDENCE_ONLY. The same report under another message id gets the receipt of the one that was applied, or
    else of the first, also after the task has moved on.

    Raises ApiError: INVALID_ARGUMENT for numbers out of bounds, NOT_FOUND, INVALID_PROOF, SESSION_FENCED,
    IDEMPOTENCY_CONFLICT, STATE_CONFLICT for CANCELLED when nobody asked for it, RESOURCE_EXHAUSTED for one late report
    too many; and the errors of `LanePool.run`.
    """
    command = await finish_of(message_id, report, platform.limits)

    async def work(tx: Transaction) -> tuple[CommandResult, frozenset[str]]:
        ledger = await Ledger.open(tx, session.queue_id)
        row = await _locked(tx, session, report.attempt, sql.LOCK_BOTH)
        row["now"] = ledger.at(row)
        receipt = await known(tx, command)
        if receipt is not None:
            return _result(receipt, row), frozenset()
        if _standing(row).may_report:
            # What was said before the start, and kept as evidence, does not stand in the way of what counts now.
            receipt = await _apply(tx, ledger, command, row, report)
        else:
            receipt = await reported(tx, command)
            if receipt is None:
                receipt = await _keep(tx, command, row, report, platform.limits.evidence_per_attempt)
        # From now on this message, too, stands for what it said.
        await record(tx, command, receipt)
        return _result(receipt, row), ledger.woken

    result, woken = await platform.pool.run_again(work, budget_s=platform.limits.transaction_s)
    # Room in the worker and in the queue's limits, a permit, or a task that may go on.
    for key in (*woken, queue_key(session.queue_id)):
        platform.wake.notify(key)
    return result


async def resume(platform: Platform, session: Session, attempt: Attempt) -> Lease:
    """Prove an attempt and read what holds for it now; prolongs and creates nothing.

    Raises ApiError: NOT_FOUND, INVALID_PROOF, SESSION_FENCED; and the errors of `LanePool.read`.
    """

    async def work(tx: Transaction) -> Lease:
        return _lease(await _locked(tx, session, attempt, sql.READ))

    return await platform.pool.read(work, budget_s=platform.limits.transaction_s)


async def _locked(tx: Transaction, session: Session, attempt: Attempt, statement: Statement) -> Row:
    """Find the attempt that is spoken about, under the statement's lock, and check who speaks."""
    found = await tx.fetch_one(statement, {"task_id": attempt.task_id, "attempt_id": attempt.attempt_id})
    row = None if found is None else endings.row_of(found)
    if row is None or row["queue_id"] != session.queue_id:
        raise ApiError(ErrorCode.NOT_FOUND, "there is no such attempt of such a task")
    secret_fits = attempt.lease_secret.matches(row["lease_secret_sha256"])
    if not secret_fits or (row["instance_id"], row["epoch"]) != (session.instance_id, attempt.epoch):
        raise ApiError(ErrorCode.INVALID_PROOF, "the attempt has another epoch, secret or instance")
    if row["revision"] != session.revision:
        raise workers.fenced()
    return row


def _standing(row: Row) -> Standing:
    return Standing(
        now=row["now"],
        state=AttemptState(row["attempt_state"]),
        newest=row["epoch"] == row["attempt_count"],
        lease_until=row["lease_until"],
        timeout_at=row["timeout_at"],
        deadline_at=row["deadline_at"],
        latest_start_at=row["latest_start_at"],
        cancel_requested=row["cancel_requested_at"] is not None,
    )


async def _count_start(tx: Transaction, session: Session, now: datetime, transaction_s: float) -> None:
    """Count a start in its window. Raises ApiError RATE_LIMITED when the window has had its starts.

    Starts of one window follow one another at its row's lock. One that read the clock before it waited for a lock, at
    most `transaction_s` ago, still finds its window's count: what is forgotten is older.
    """
    limits = await tx.fetch_one(sql.START_LIMIT, {"queue_id": session.queue_id})
    assert limits is not None, "the ledger holds the queue's row"
    limit, window_ms = limits
    if limit is None:
        return
    window: dict[str, Any] = {"queue_id": session.queue_id, "window_start": window_start(now, window_ms)}
    await tx.execute(sql.COUNT_START, window)
    counted = await tx.fetch_one(sql.STARTS, window)
    assert counted is not None
    if counted[0] > limit:
        raise ApiError(ErrorCode.RATE_LIMITED, "the queue has had its starts of this window")
    if counted[0] == 1:
        oldest = window["window_start"] - timedelta(seconds=transaction_s)
        await tx.execute(sql.FORGET_WINDOWS, window | {"window_start": oldest})


async def _apply(tx: Transaction, ledger: Ledger, command: Command, row: Row, report: Finish) -> Receipt:
    change = decide.end(
        endings.facts_of(row),
        decide.Report(
            outcome=report.outcome,
            result=report.result,
            error_code=report.error_code,
            retryable=report.retryable,
        ),
    )
    record = Record(
        outcome=report.outcome.value,
        error_code=report.error_code,
        result=report.result,
        retryable=report.retryable,
    )
    task = await endings.write(tx, ledger, row, change, record)
    row |= task | {"attempt_state": "ENDED", "task_state": task["state"]}
    return receipt_of(
        command,
        row,
        recorded_at=task["updated_at"],
        decision=change.decision,
        next_available_at=change.available_at,
    )


async def _keep(tx: Transaction, command: Command, row: Row, report: Finish, most: int) -> Receipt:
    """Keep a report without authority, at most `most` of one attempt. Raises ApiError RESOURCE_EXHAUSTED."""
    ((kept,),) = await tx.fetch(sql.EVIDENCE_COUNT, {"attempt_id": report.attempt.attempt_id})
    if kept >= most:
        raise ApiError(ErrorCode.RESOURCE_EXHAUSTED, "the attempt has as many different late reports as are kept")
    await tx.execute(
        sql.INSERT_EVIDENCE,
        {
            "attempt_id": report.attempt.attempt_id,
            "message_id": command.message_id,
            "outcome": report.outcome.value,
            "error_code": report.error_code,
            "result": report.result,
            "retryable": report.retryable,
            "received_at": row["now"],
        },
    )
    return receipt_of(command, row, recorded_at=row["now"], disposition=Disposition.EVIDENCE_ONLY)


def _result(receipt: Receipt, row: Row) -> CommandResult:
    return CommandResult(disposition=receipt.disposition, receipt=receipt, lease=_lease(row))


def _lease(row: Row) -> Lease:
    """What the attempt may do as its row is now."""
    standing = _standing(row)
    ended = standing.state is AttemptState.ENDED
    asked_at = row["cancel_requested_at"]
    return Lease(
        task_id=row["task_id"],
        attempt_id=row["attempt_id"],
        epoch=row["epoch"],
        state=standing.state,
        active=standing.active,
        server_time=standing.now.replace(tzinfo=UTC),
        lease_until=None if ended else standing.lease_until.replace(tzinfo=UTC),
        cancel_requested_at=None if ended or asked_at is None else asked_at.replace(tzinfo=UTC),
    )
