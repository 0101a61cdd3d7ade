"""The runner's tables; expected values written by hand from seed worker-sdk sections 5 and 6."""

from __future__ import annotations

import pytest

from orbit.protocol.attempt_v1 import Outcome
from orbit.protocol.errors import ErrorCode
from orbit.protocol.limits import Limits
from orbit.sdk.errors import (
    DuplicateMessage,
    InvalidRequest,
    OrbitError,
    WorkerBackpressure,
    WorkerBusy,
    WorkerClosed,
    WorkerDisconnected,
    WorkerError,
    WorkerProtocolError,
    WorkerTimeout,
)
from orbit.sdk.handlers import StopReason
from orbit.sdk.runner_health import Vitals
from orbit.sdk.runner_rules import GRACE_S, NEXT_STAGES, Asked, Stage, Then, after, after_report, renew_at, room

REFUSALS = {
    # code: resume, start, renew, finish
    "INVALID_ARGUMENT": ("give up", "give up", "give up", "replace"),
    "UNAUTHENTICATED": ("give up", "give up", "give up", "give up"),
    "PERMISSION_DENIED": ("give up", "give up", "give up", "give up"),
    "NOT_FOUND": ("give up", "give up", "give up", "give up"),
    "METHOD_NOT_ALLOWED": ("give up", "give up", "give up", "give up"),
    "IDEMPOTENCY_CONFLICT": ("give up", "give up", "give up", "give up"),
    "STATE_CONFLICT": ("give up", "give up", "give up", "give up"),
    "STALE_EPOCH": ("give up", "give up", "give up", "give up"),
    "INVALID_PROOF": ("give up", "give up", "give up", "give up"),
    "SESSION_FENCED": ("reconnect", "reconnect", "reconnect", "reconnect"),
    "PAYLOAD_TOO_LARGE": ("give up", "give up", "give up", "replace"),
    "UNSUPPORTED_MEDIA_TYPE": ("give up", "give up", "give up", "give up"),
    "UNSUPPORTED_PROTOCOL": ("give up", "give up", "give up", "give up"),
    "RESOURCE_EXHAUSTED": ("again", "again", "again", "again"),
    "RATE_LIMITED": ("again", "again", "again", "again"),
    "UNAVAILABLE": ("unsure", "unsure", "unsure", "unsure"),
    "INTERNAL": ("unsure", "unsure", "unsure", "unsure"),
    "OF_A_NEWER_PLATFORM": ("give up", "give up", "give up", "give up"),
}


def test_every_code_is_in_the_table() -> None:
    assert {code.value for code in ErrorCode} | {"OF_A_NEWER_PLATFORM"} == set(REFUSALS)


@pytest.mark.parametrize("code", sorted(REFUSALS))
def test_what_follows_a_refusal(code: str) -> None:
    found = tuple(
        after(asked, WorkerError(code)).value for asked in (Asked.RESUME, Asked.START, Asked.RENEW, Asked.FINISH)
    )
    assert found == REFUSALS[code]


@pytest.mark.parametrize(
    ("error", "start", "finish"),
    [
        (WorkerDisconnected("x"), "reconnect", "reconnect"),
        (WorkerTimeout("x"), "reconnect", "reconnect"),
        (WorkerProtocolError("x"), "reconnect", "reconnect"),
        (WorkerBackpressure("x"), "reconnect", "reconnect"),
        (WorkerClosed("x"), "reconnect", "reconnect"),
        (WorkerBusy("x"), "again", "again"),
        (DuplicateMessage("x"), "again", "again"),
        (InvalidRequest("x"), "give up", "replace"),
    ],
)
def test_what_follows_an_operation_without_an_answer(error: OrbitError, start: str, finish: str) -> None:
    assert (after(Asked.START, error).value, after(Asked.FINISH, error).value) == (start, finish)


def test_only_a_cancelled_that_nobody_asked_for_is_said_otherwise() -> None:
    assert after_report(Outcome.CANCELLED, "STATE_CONFLICT") is Then.REPLACE
    assert after_report(Outcome.CANCELLED, "STALE_EPOCH") is Then.GIVE_UP
    for outcome in (Outcome.SUCCEEDED, Outcome.FAILED, Outcome.UNKNOWN):
        assert after_report(outcome, "STATE_CONFLICT") is Then.GIVE_UP


@pytest.mark.parametrize(
    ("concurrency", "lingering", "reporting", "expected"),
    [(4, 0, 0, 4), (4, 1, 0, 3), (4, 4, 0, 0), (4, 5, 0, 0), (4, 0, 4, 4), (4, 0, 5, 0), (1_000, 0, 0, 1_000)],
)
def test_the_capacity_to_announce(concurrency: int, lingering: int, reporting: int, expected: int) -> None:
    assert room(concurrency, lingering, reporting) == expected


def test_a_lease_is_renewed_after_a_third_of_what_is_left() -> None:
    assert renew_at(100.0, 130.0) == pytest.approx(110.0)
    assert renew_at(100.0, 99.0) == 100.0


def test_a_report_without_the_handlers_word_still_counts() -> None:
    assert GRACE_S[StopReason.DEADLINE] < Limits().local_margin_s
    assert set(GRACE_S) == set(StopReason) - {StopReason.CANCEL_REQUESTED}


def test_stages_lead_to_the_end_and_never_back_to_the_handler() -> None:
    assert set(NEXT_STAGES) == set(Stage)
    reached = {Stage.RESERVED}
    for _ in Stage:
        reached |= {following for stage in reached for following in NEXT_STAGES[stage]}
    assert reached == set(Stage)
    assert Stage.RUNNING not in NEXT_STAGES[Stage.REPORTING] | NEXT_STAGES[Stage.OVER]
    assert [stage for stage in Stage if Stage.RUNNING in NEXT_STAGES[stage]] == [Stage.STARTING]


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def vitals(clock: Clock) -> Vitals:
    vitals = Vitals(Limits(handshake_s=8.0, heartbeat_s=15.0), clock)
    vitals.begun()
    return vitals


def test_a_runner_that_was_not_started_or_has_ended_is_not_healthy(clock: Clock) -> None:
    vitals = Vitals(Limits(), clock)
    assert vitals.judge().reasons == ("it has not been started",)
    vitals.begun()
    assert vitals.judge().healthy
    vitals.ended("it has ended")
    assert vitals.judge().reasons == ("it has ended",)


def test_a_welcome_must_come_in_time(vitals: Vitals, clock: Clock) -> None:
    clock.now += 8.0
    assert vitals.judge().healthy
    clock.now += 1.0
    assert vitals.judge().reasons == ("no welcome for 9 s",)
    vitals.welcomed()
    assert vitals.judge().healthy


def test_heartbeats_must_be_answered(vitals: Vitals, clock: Clock) -> None:
    vitals.welcomed()
    clock.now += 30.0
    assert vitals.judge().healthy
    clock.now += 1.0
    assert vitals.judge().reasons == ("no answer to a heartbeat for 31 s",)
    vitals.acknowledged()
    assert vitals.judge().healthy


def test_a_short_loss_of_the_connection_is_no_illness(vitals: Vitals, clock: Clock) -> None:
    vitals.welcomed()
    clock.now += 20.0
    vitals.lost()
    assert vitals.judge().healthy
    clock.now += 9.0
    assert vitals.judge().reasons == ("no welcome for 9 s",)


def test_a_deaf_session_is_not_healthy_until_another_one_listens(vitals: Vitals) -> None:
    vitals.welcomed()
    vitals.acknowledged()
    vitals.deafened("assignments")
    assert vitals.judge().reasons == ("the session's part for assignments has ended alone",)
    vitals.lost()
    vitals.welcomed()
    assert not vitals.judge().healthy
    vitals.acknowledged()
    assert vitals.judge().healthy
