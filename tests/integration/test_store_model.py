"""Random events against a model of the inbox and the views in plain Python: every answer and every row the same."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from receiver.outcome import EventConflict, VersionConflict
from tests.support.events import an_event, an_id
from tests.support.receiver import Bench, bench

if TYPE_CHECKING:
    from orbit.protocol.event import Event
    from receiver.store import Store
    from tests.support.mysql import ReceiverDSNs


class Model:
    """What the rules say, without a database."""

    def __init__(self) -> None:
        self.inbox: dict[str, tuple[str, bool]] = {}
        self.views: dict[str, tuple[int, str, str | None, int]] = {}

    def apply(self, event: Event) -> str:
        known = self.inbox.get(event.event_id)
        if known is not None:
            sha256, applied = known
            return f"duplicate of {applied}" if sha256 == event.sha256 else "event conflict"
        version, _, _, count = self.views.get(event.task_id, (0, "", None, 0))
        if event.task_version == version:
            return "version conflict"
        applied = event.task_version > version
        self.inbox[event.event_id] = (event.sha256, applied)
        if applied:
            self.views[event.task_id] = (event.task_version, event.event_id, event.result, count + 1)
        return f"new, {applied}"


async def answer(store: Store, event: Event) -> str:
    try:
        applied = await store.apply(event)
    except EventConflict:
        return "event conflict"
    except VersionConflict:
        return "version conflict"
    return f"{'duplicate of' if applied.duplicate else 'new,'} {applied.applied}"


def an_arbitrary_event(dice: random.Random) -> Event:
    # So few identities that every kind of encounter happens often.
    number = dice.randrange(40)
    types = ("task.succeeded", "task.failed", "task.cancelled")
    return an_event(
        number,
        version=1 + number % 13 if dice.random() < 0.8 else dice.randrange(1, 14),
        task_id=an_id(number % 3, kind="c"),
        event_type=types[number % 3],
        result=None if dice.random() < 0.7 else number,
    )


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_every_answer_and_every_row_is_the_models(receiver_dsns: ReceiverDSNs, seed: int) -> None:
    dice = random.Random(seed)
    model = Model()
    met: set[str] = set()
    async with bench(receiver_dsns) as receiver:
        stores = [receiver.store() for _ in range(3)]
        for step in range(250):
            event = an_arbitrary_event(dice)
            expected = model.apply(event)
            assert await answer(dice.choice(stores), event) == expected, f"seed {seed}, step {step}, {event}"
            met.add(expected)
        assert_rows(receiver, model)
    assert met == {
        "new, True", "new, False", "duplicate of True", "duplicate of False", "event conflict", "version conflict",
    }  # fmt: skip


def assert_rows(receiver: Bench, model: Model) -> None:
    inbox = {row["event_id"]: (row["event_sha256"], bool(row["applied"])) for row in receiver.inbox()}
    views = {
        row["task_id"]: (row["task_version"], row["last_event_id"], row["result"], row["applied_events"])
        for row in receiver.views()
    }
    assert inbox == model.inbox
    assert views == model.views
