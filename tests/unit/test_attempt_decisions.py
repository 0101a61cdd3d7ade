"""The decision table of seed safe-retry, section 2: every cell, both policies, written down by hand."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from orbit.protocol.attempt_v1 import Decision, Outcome
from orbit.protocol.errors import ApiError, ErrorCode
from orbit.protocol.event import STATE_OF
from orbit.protocol.http_v1 import EventType, RecoverySafety, TaskState
from orbit.server.decide.attempt import Facts, Lapse, Report, end, overdue
from orbit.server.decide.task import Change

NOW = datetime(2026, 1, 31, 8, 15, 30)  # noqa: DTZ001 - as the database gives times
ATTEMPT = "a" * 32
MS = timedelta(milliseconds=1)

# What ended the attempt.
ENDINGS: dict[str, tuple[bool, Report | Lapse]] = {
    "succeeded": (True, Report(outcome=Outcome.SUCCEEDED, result="{}")),
    "failed": (True, Report(outcome=Outcome.FAILED, error_code="E", result="{}")),
    "retryable": (True, Report(outcome=Outcome.FAILED, error_code="E", result="{}", retryable=True)),
    "unknown": (True, Report(outcome=Outcome.UNKNOWN, error_code="E", result="{}")),
    "lost": (True, Lapse.LEASE_OVER),
    "unstarted": (False, Lapse.LEASE_OVER),
    "cancelled": (True, Report(outcome=Outcome.CANCELLED, error_code="E", result="{}")),
}

# Columns: attempts left and in time; no attempt left; the next start would not be before the deadline; nor before the
# latest start; no attempt left and too late.
#
# S succeeded  F failed  C cancelled  R needs review  W waiting  ! STATE_CONFLICT, nothing ends
# after the dot the decision: limit ATTEMPT_LIMIT, late DEADLINE_EXCEEDED, rec RECONCILIATION_REQUIRED,
# retry RETRYABLE_FAILURE, unknown IDEMPOTENT_UNKNOWN, unstarted UNSTARTED_LEASE_EXPIRED
TABLE = """
what       policy     earlier   cancel  free         spent    deadline  latest   both
succeeded  reconcile  certain   no      S            S        S         S        S
succeeded  reconcile  certain   asked   S            S        S         S        S
succeeded  reconcile  uncertain no      S            S        S         S        S
succeeded  reconcile  uncertain asked   S            S        S         S        S
succeeded  idempotent certain   no      S            S        S         S        S
succeeded  idempotent certain   asked   S            S        S         S        S
succeeded  idempotent uncertain no      S            S        S         S        S
succeeded  idempotent uncertain asked   S            S        S         S        S
failed     reconcile  certain   no      F            F        F         F        F
failed     reconcile  certain   asked   F            F        F         F        F
failed     reconcile  uncertain no      R.rec        R.rec    R.rec     R.rec    R.rec
failed     reconcile  uncertain asked   R.rec        R.rec    R.rec     R.rec    R.rec
failed     idempotent certain   no      F            F        F         F        F
failed     idempotent certain   asked   F            F        F         F        F
failed     idempotent uncertain no      R.rec        R.rec    R.rec     R.rec    R.rec
failed     idempotent uncertain asked   R.rec        R.rec    R.rec     R.rec    R.rec
retryable  reconcile  certain   no      W.retry      F.limit  F.late    F.late   F.limit
retryable  reconcile  certain   asked   F            F        F         F        F
retryable  reconcile  uncertain no      R.rec        R.rec    R.rec     R.rec    R.rec
retryable  reconcile  uncertain asked   R.rec        R.rec    R.rec     R.rec    R.rec
retryable  idempotent certain   no      W.retry      F.limit  F.late    F.late   F.limit
retryable  idempotent certain   asked   F            F        F         F        F
retryable  idempotent uncertain no      W.retry      R.limit  R.late    R.late   R.limit
retryable  idempotent uncertain asked   R.rec        R.rec    R.rec     R.rec    R.rec
unknown    reconcile  certain   no      R.rec        R.rec    R.rec     R.rec    R.rec
unknown    reconcile  certain   asked   R.rec        R.rec    R.rec     R.rec    R.rec
unknown    reconcile  uncertain no      R.rec        R.rec    R.rec     R.rec    R.rec
unknown    reconcile  uncertain asked   R.rec        R.rec    R.rec     R.rec    R.rec
unknown    idempotent certain   no      W.unknown    R.limit  R.late    R.late   R.limit
unknown    idempotent certain   asked   R.rec        R.rec    R.rec     R.rec    R.rec
unknown    idempotent uncertain no      W.unknown    R.limit  R.late    R.late   R.limit
unknown    idempotent uncertain asked   R.rec        R.rec    R.rec     R.rec    R.rec
lost       reconcile  certain   no      R.rec        R.rec    R.rec     R.rec    R.rec
lost       reconcile  certain   asked   R.rec        R.rec    R.rec     R.rec    R.rec
lost       reconcile  uncertain no      R.rec        R.rec    R.rec     R.rec    R.rec
lost       reconcile  uncertain asked   R.rec        R.rec    R.rec     R.rec    R.rec
lost       idempotent certain   no      W.unknown    R.limit  R.late    R.late   R.limit
lost       idempotent certain   asked   R.rec        R.rec    R.rec     R.rec    R.rec
lost       idempotent uncertain no      W.unknown    R.limit  R.late    R.late   R.limit
lost       idempotent uncertain asked   R.rec        R.rec    R.rec     R.rec    R.rec
unstarted  reconcile  certain   no      W.unstarted  F.limit  F.late    F.late   F.limit
unstarted  reconcile  certain   asked   F            F        F         F        F
unstarted  reconcile  uncertain no      R.rec        R.rec    R.rec     R.rec    R.rec
unstarted  reconcile  uncertain asked   R.rec        R.rec    R.rec     R.rec    R.rec
unstarted  idempotent certain   no      W.unstarted  F.limit  F.late    F.late   F.limit
unstarted  idempotent certain   asked   F            F        F         F        F
unstarted  idempotent uncertain no      W.unstarted  R.limit  R.late    R.late   R.limit
unstarted  idempotent uncertain asked   R.rec        R.rec    R.rec     R.rec    R.rec
cancelled  reconcile  certain   no      !            !        !         !        !
cancelled  reconcile  certain   asked   C            C        C         C        C
cancelled  reconcile  uncertain no      !            !        !         !        !
cancelled  reconcile  uncertain asked   R.rec        R.rec    R.rec     R.rec    R.rec
cancelled  idempotent certain   no      !            !        !         !        !
cancelled  idempotent certain   asked   C            C        C         C        C
cancelled  idempotent uncertain no      !            !        !         !        !
cancelled  idempotent uncertain asked   R.rec        R.rec    R.rec     R.rec    R.rec
"""
ROWS = [line.split() for line in TABLE.strip().splitlines()[1:]]
COLUMNS: dict[str, dict[str, Any]] = {
    "free": {},
    "spent": {"attempt_count": 3},
    "deadline": {"deadline_at": NOW + MS},
    "latest": {"latest_start_at": NOW + MS},
    "both": {"attempt_count": 3, "deadline_at": NOW + MS},
}
STATES = {
    "S": (TaskState.SUCCEEDED, EventType.SUCCEEDED),
    "F": (TaskState.FAILED, EventType.FAILED),
    "C": (TaskState.CANCELLED, EventType.CANCELLED),
    "R": (TaskState.NEEDS_REVIEW, EventType.NEEDS_REVIEW),
    "W": (TaskState.WAITING, EventType.REQUEUED),
}
DECISIONS = {
    "": None,
    "limit": Decision.ATTEMPT_LIMIT,
    "late": Decision.DEADLINE_EXCEEDED,
    "rec": Decision.RECONCILIATION_REQUIRED,
    "retry": Decision.RETRYABLE_FAILURE,
    "unknown": Decision.IDEMPOTENT_UNKNOWN,
    "unstarted": Decision.UNSTARTED_LEASE_EXPIRED,
}
POLICIES = {"reconcile": RecoverySafety.RECONCILE_ONLY, "idempotent": RecoverySafety.IDEMPOTENT}


def facts(**given: Any) -> Facts:
    """The second of three attempts, with an hour left; a delay is exactly one millisecond."""
    values: dict[str, Any] = {
        "now": NOW,
        "attempt_id": ATTEMPT,
        "attempt_count": 2,
        "started": True,
        "cancel_requested": False,
        "effect_uncertain": False,
        "recovery_safety": RecoverySafety.RECONCILE_ONLY,
        "max_attempts": 3,
        "initial_delay_ms": 1,
        "max_delay_ms": 1,
        "deadline_at": NOW + timedelta(hours=1),
        "latest_start_at": NOW + timedelta(hours=1),
    }
    return Facts(**(values | given))


def test_the_table_has_every_cell_once() -> None:
    cells = [tuple(row[:4]) for row in ROWS]
    assert len(cells) == len(set(cells)) == 7 * 2 * 2 * 2
    assert all(len(row) == 4 + len(COLUMNS) for row in ROWS)


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: " ".join(row[:4]))
def test_an_end_is_decided_as_the_seed_says(row: list[str], column: str) -> None:
    what, policy, earlier, cancel, *expected = row
    started, report = ENDINGS[what]
    uncertain = earlier == "uncertain"
    given = facts(
        started=started,
        recovery_safety=POLICIES[policy],
        effect_uncertain=uncertain,
        cancel_requested=cancel == "asked",
        **COLUMNS[column],
    )
    cell = expected[list(COLUMNS).index(column)]

    if cell == "!":
        with pytest.raises(ApiError) as caught:
            end(given, report)
        assert caught.value.code is ErrorCode.STATE_CONFLICT
        return
    change = end(given, report)

    state, _, decision = cell.partition(".")
    assert (change.state, change.event_type, change.decision) == (*STATES[state], DECISIONS[decision])
    assert STATE_OF[change.event_type.value] == change.state.value
    assert change.attempt_id == ATTEMPT
    assert (change.claims, change.cancel_requested, change.node) == (False, False, None)
    if state == "W":
        assert (change.delay_ms, change.available_at) == (1, NOW + MS)
        assert (change.result, change.error_code) == (None, None)
        # An unknown effect stays unknown whatever follows, and one that nobody started is not.
        assert change.effect_uncertain is (uncertain or decision == "unknown")
        return
    assert (change.delay_ms, change.available_at) == (None, None)
    assert change.effect_uncertain is (state == "R")
    # The result goes with an end that is one; a person who must look finds it with the attempt.
    reported = isinstance(report, Report)
    assert change.result == ("{}" if reported and state != "R" else None)
    codes = {"succeeded": None, "lost": "LEASE_EXPIRED", "unstarted": "UNSTARTED_LEASE_EXPIRED"}
    assert change.error_code == codes.get(what, "E")


@pytest.mark.parametrize("bound", ["deadline_at", "latest_start_at"])
@pytest.mark.parametrize(
    ("distance", "state"), [(MS, TaskState.FAILED), (MS + timedelta(microseconds=1), TaskState.WAITING)]
)
def test_the_next_start_must_be_strictly_before_both_bounds(bound: str, distance: timedelta, state: TaskState) -> None:
    _, report = ENDINGS["retryable"]
    assert end(facts(**{bound: NOW + distance}), report).state is state


def test_no_latest_start_is_no_bound() -> None:
    _, report = ENDINGS["retryable"]
    assert end(facts(latest_start_at=None), report).state is TaskState.WAITING


@pytest.mark.parametrize(("count", "state"), [(1, TaskState.WAITING), (2, TaskState.WAITING), (3, TaskState.FAILED)])
def test_the_budget_counts_the_attempt_that_ends(count: int, state: TaskState) -> None:
    _, report = ENDINGS["retryable"]
    assert end(facts(attempt_count=count), report).state is state


def test_the_delay_is_that_of_the_attempt_that_ends() -> None:
    _, report = ENDINGS["retryable"]
    change = end(facts(attempt_count=2, initial_delay_ms=1_000, max_delay_ms=60_000, max_attempts=9), report)
    # By sha256sum and bc: base = 2000, half of it 1000; the id's digest begins with 3ba3f5f43b926026, and that modulo
    # 1001 is 370.
    assert change.delay_ms == 1_370
    assert change.available_at == NOW + 1_370 * MS


@pytest.mark.parametrize(
    ("deadline", "latest", "ends"),
    [(1, None, False), (0, None, True), (-1, None, True), (1, 1, False), (1, 0, True), (1, -1, True), (0, 1, True)],
)
def test_waiting_ends_at_the_earlier_bound(deadline: int, latest: int | None, ends: bool) -> None:
    for uncertain in (False, True):
        change = overdue(
            NOW,
            deadline_at=NOW + deadline * MS,
            latest_start_at=None if latest is None else NOW + latest * MS,
            effect_uncertain=uncertain,
        )
        failed = Change(
            state=TaskState.FAILED,
            event_type=EventType.FAILED,
            error_code="DEADLINE_EXCEEDED",
            effect_uncertain=False,
            decision=Decision.DEADLINE_EXCEEDED,
        )
        review = replace(failed, state=TaskState.NEEDS_REVIEW, event_type=EventType.NEEDS_REVIEW, effect_uncertain=True)
        assert change == ((review if uncertain else failed) if ends else None)


def test_what_a_worker_said_is_in_no_repr() -> None:
    report = Report(outcome=Outcome.FAILED, error_code="E", result='"my-secret"')
    assert "my-secret" not in repr(report)
    assert "my-secret" not in repr(end(facts(), report))
