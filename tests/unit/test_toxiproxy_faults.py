"""Which fault fires at which point, and how often."""

from __future__ import annotations

import pytest

from toxiproxy import (
    CutAfterStatement,
    CutAtFrame,
    CutBeforeCommit,
    CutInHandshake,
    DarkLink,
    DropCommitOk,
    DropFrame,
    Fault,
    HoldCommit,
    Point,
    RefuseConnect,
    ReplaceCommitOk,
)
from toxiproxy.faults import Armory, Subject
from toxiproxy.journal import Journal

COMMIT, COMMIT_OK = Subject(Point.COMMIT), Subject(Point.COMMIT_OK)


@pytest.mark.parametrize(
    ("fault", "subject", "matches"),
    [
        (DropCommitOk(), COMMIT_OK, True),
        (DropCommitOk(), COMMIT, False),
        (ReplaceCommitOk(), COMMIT_OK, True),
        (CutBeforeCommit(), COMMIT, True),
        (CutBeforeCommit(), COMMIT_OK, False),
        (CutBeforeCommit(), Subject(Point.COMMAND), False),
        (HoldCommit(1.0), COMMIT, True),
        (RefuseConnect(), Subject(Point.ACCEPTED), True),
        (CutInHandshake("greeting"), Subject(Point.GREETING), True),
        (CutInHandshake("greeting"), Subject(Point.LOGIN), False),
        (CutInHandshake("login"), Subject(Point.LOGIN), True),
        (CutAfterStatement(2), Subject(Point.REPLY, statement=2), True),
        (CutAfterStatement(2), Subject(Point.REPLY, statement=1), False),
        (CutAfterStatement(2), Subject(Point.REPLY, statement=3), False),
        (CutAfterStatement(2), Subject(Point.ERROR, statement=2), False),
        (DarkLink(), Subject(Point.ACCEPTED), True),
        (DarkLink(), Subject(Point.REPLY, statement=1), False),
        (DarkLink(after_statement=1), Subject(Point.REPLY, statement=1), True),
        (DarkLink(after_statement=1), Subject(Point.ACCEPTED), False),
        (DropFrame("ack"), Subject(Point.SERVER_FRAME, frame_type="ack"), True),
        (DropFrame("ack"), Subject(Point.CLIENT_FRAME, frame_type="ack"), False),
        (DropFrame("ack"), Subject(Point.SERVER_FRAME, frame_type="error"), False),
        (DropFrame("event.ack", "client"), Subject(Point.CLIENT_FRAME, frame_type="event.ack"), True),
        (DropFrame("ack", answers="a"), Subject(Point.SERVER_FRAME, frame_type="ack", answers="a"), True),
        (DropFrame("ack", answers="a"), Subject(Point.SERVER_FRAME, frame_type="ack", answers="b"), False),
        (DropFrame("ack", answers="a"), Subject(Point.SERVER_FRAME, frame_type="ack"), False),
        (CutAtFrame("ack"), Subject(Point.SERVER_FRAME, frame_type="ack", answers="b"), True),
    ],
)
def test_a_fault_matches_its_own_points(fault: Fault, subject: Subject, matches: bool) -> None:
    assert fault.matches(subject) is matches


def test_a_fault_fires_once_at_its_count() -> None:
    armory = Armory()
    armed = armory.arm(DropCommitOk(nth=2))
    assert [armory.pick(COMMIT_OK) for _ in range(4)] == [None, armed, None, None]


def test_only_matching_points_are_counted() -> None:
    armory = Armory()
    armed = armory.arm(CutBeforeCommit(nth=2))
    assert [armory.pick(s) for s in (COMMIT, COMMIT_OK, COMMIT_OK, COMMIT)] == [None, None, None, armed]


def test_one_point_is_taken_by_one_fault_and_the_next_takes_the_next() -> None:
    armory = Armory()
    first, second = armory.arm(DropCommitOk()), armory.arm(ReplaceCommitOk())
    assert [armory.pick(COMMIT_OK) for _ in range(3)] == [first, second, None]


def test_the_count_begins_with_the_arming() -> None:
    armory = Armory()
    armory.pick(COMMIT_OK)
    armed = armory.arm(DropCommitOk(nth=2))
    assert [armory.pick(COMMIT_OK), armory.pick(COMMIT_OK)] == [None, armed]


def test_a_fault_is_unfired_until_its_line_is_in_the_journal() -> None:
    armory = Armory()
    armed = armory.arm(DropCommitOk())
    armory.pick(COMMIT_OK)
    assert armory.unfired() == [armed]
    armed.mark_fired(Journal().write(1, Point.COMMIT_OK, fired="DropCommitOk"))
    assert armory.unfired() == []


@pytest.mark.parametrize("nth", [0, -1])
def test_the_count_starts_at_one(nth: int) -> None:
    with pytest.raises(ValueError, match="nth"):
        DropCommitOk(nth=nth)


@pytest.mark.parametrize("keep", [-1, 11])
def test_a_whole_ok_cannot_be_kept(keep: int) -> None:
    with pytest.raises(ValueError, match="keep_bytes"):
        DropCommitOk(keep_bytes=keep)


async def test_the_journal_wakes_who_waits_and_remembers_the_past() -> None:
    seen: list[int] = []
    journal = Journal(lambda entry: seen.append(entry.seq))
    first = journal.write(1, Point.ACCEPTED)
    assert await journal.wait_for(lambda e: e.point is Point.ACCEPTED, 0) is first
    second = journal.write(2, Point.ERROR, thread_id=7, command="COMMIT", errno=1598, fired=None)
    assert (len(journal), journal[1], journal[:1], seen) == (2, second, [first], [1, 2])
    assert journal.at(Point.ERROR) == [second]
    assert journal.at(Point.ERROR, Point.ACCEPTED, connection=1) == [first]
    assert str(second) == "connection 2 (thread 7) error COMMIT error 1598"
    assert second.at >= first.at
