"""A worker's messages about its attempts, recorded once: what makes two of them the same, and their receipts.

Look for a receipt under the lock of the attempt's row only: it is what orders the messages of one attempt. Source:
seed safe-retry section 6.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec import Raw

from orbit.protocol import strict_json
from orbit.protocol.attempt_v1 import Attempt, Decision, Disposition, Finish, Operation, Receipt
from orbit.protocol.errors import ApiError, ErrorCode, InvalidValue
from orbit.protocol.http_v1 import TaskState
from orbit.protocol.result import check_numbers
from orbit.server import attempt_statements as sql
from orbit.server.offload import offload

if TYPE_CHECKING:
    from orbit.mysql.transaction import Transaction
    from orbit.protocol.limits import Limits
    from orbit.server.services.endings import Row


@dataclass(frozen=True, slots=True)
class Command:
    """A message about an attempt, and what makes two of them the same. `report_sha256` goes with a finish."""

    operation: Operation
    message_id: str
    attempt: Attempt
    content_sha256: str
    report_sha256: str | None = None


def command_of(operation: Operation, message_id: str, attempt: Attempt) -> Command:
    """The command of a message that says no more than which attempt it is about."""
    return Command(operation, message_id, attempt, _digest(_named(operation, attempt)))


async def finish_of(message_id: str, report: Finish, limits: Limits) -> Command:
    """The command of a report, whose result's numbers are checked first. Raises ApiError INVALID_ARGUMENT."""
    size = 0 if report.result is None else len(report.result)
    try:
        return await offload(size, _examined, message_id, report, limits)
    except InvalidValue as error:
        raise ApiError(ErrorCode.INVALID_ARGUMENT, str(error)) from None


def _examined(message_id: str, report: Finish, limits: Limits) -> Command:
    said: dict[str, strict_json.Value] = {"outcome": report.outcome.value}
    if report.result is not None:
        check_numbers(report.result, limits)
        said["result"] = Raw(report.result.encode())
    if report.error_code is not None:
        said["error_code"] = report.error_code
    if report.retryable:
        # Left out when false: digests are kept, and those of before there was such a member stay what they are.
        said["retryable"] = True
    named = _named(Operation.FINISH, report.attempt)
    return Command(Operation.FINISH, message_id, report.attempt, _digest(named | said), _digest(said))


def _named(operation: Operation, attempt: Attempt) -> dict[str, strict_json.Value]:
    return {
        "operation": operation.value,
        "task_id": attempt.task_id,
        "attempt_id": attempt.attempt_id,
        "epoch": str(attempt.epoch),
    }


def _digest(content: strict_json.Value) -> str:
    return hashlib.sha256(strict_json.canonical(content)).hexdigest()


async def known(tx: Transaction, command: Command) -> Receipt | None:
    """Find the receipt of this message. Raises ApiError IDEMPOTENCY_CONFLICT when it came with other content."""
    found = await tx.fetch_one(
        sql.RECEIPT, {"attempt_id": command.attempt.attempt_id, "message_id": command.message_id}
    )
    if found is None:
        return None
    content_sha256, text = found
    if content_sha256 != command.content_sha256:
        raise ApiError(ErrorCode.IDEMPOTENCY_CONFLICT, "the message id was used before with other content")
    return _parsed(text)


async def reported(tx: Transaction, command: Command) -> Receipt | None:
    """Find the receipt of the same report under another message."""
    found = await tx.fetch_one(
        sql.RECEIPT_OF_REPORT,
        {"attempt_id": command.attempt.attempt_id, "report_sha256": command.report_sha256},
    )
    return None if found is None else _parsed(found[0])


async def record(tx: Transaction, command: Command, receipt: Receipt) -> None:
    """Write the receipt of this message."""
    await tx.execute(
        sql.INSERT_RECEIPT,
        {
            "attempt_id": command.attempt.attempt_id,
            "message_id": command.message_id,
            "content_sha256": command.content_sha256,
            "report_sha256": command.report_sha256,
            "receipt": strict_json.canonical(receipt.to_body()).decode(),
        },
    )


def _parsed(text: str) -> Receipt:
    data = text.encode()
    return Receipt.parse(strict_json.parse(data, max_bytes=len(data)))


def receipt_of(
    command: Command,
    row: Row,
    *,
    recorded_at: datetime,
    disposition: Disposition = Disposition.APPLIED,
    lease_until: datetime | None = None,
    decision: Decision | None = None,
    next_available_at: datetime | None = None,
) -> Receipt:
    """Make the receipt of a message that arrived first; `row` is the attempt with its task after the command."""
    return Receipt(
        operation=command.operation,
        task_id=command.attempt.task_id,
        attempt_id=command.attempt.attempt_id,
        epoch=command.attempt.epoch,
        disposition=disposition,
        task_state=TaskState(row["task_state"]),
        task_version=row["version"],
        recorded_at=recorded_at.replace(tzinfo=UTC),
        lease_until=utc(lease_until),
        decision=decision,
        next_available_at=utc(next_available_at),
    )


def utc(moment: datetime | None) -> datetime | None:
    """A time of the database with its zone."""
    return None if moment is None else moment.replace(tzinfo=UTC)
