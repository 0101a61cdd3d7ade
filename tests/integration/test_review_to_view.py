"""From a review to a receiver's view: a person's word reaches whoever follows the task's results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.receiver import Bench, bench
from tests.support.receiver_process import (
    ReceiverProcess,
    message,
    outcome,
    receiver_variables,
    subscribe,
    until_deliveries,
)
from tests.support.reviews import Floor, resolve, retry
from tests.support.worker_client import report

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from orbit.mysql.dsn import DSN
    from tests.support.mysql import ReceiverDSNs
    from tests.support.platform import Api, Node

RESULTS = ["task.succeeded", "task.failed", "task.cancelled", "task.needs_review"]


@pytest.fixture
async def receiver(receiver_dsns: ReceiverDSNs) -> AsyncIterator[Bench]:
    async with bench(receiver_dsns) as made:
        yield made


def acked(count: int) -> Any:
    return lambda rows: [row["state"] for row in rows] == ["ACKED"] * count


@pytest.mark.parametrize(
    ("word", "given", "result"),
    [
        ("SUCCEEDED", {"result": {"n": 1}}, '{"n":1}'),
        ("FAILED", {"error_code": "NEVER_HAPPENED"}, None),
        ("CANCELLED", {}, None),
    ],
)
async def test_a_resolution_moves_the_view_from_needs_review_to_what_the_person_said(
    tmp_path: Path,
    node: Node,
    api: Api,
    credentials: dict[str, Any],
    receiver: Bench,
    platform_dsn: DSN,
    word: str,
    given: dict[str, Any],
    result: str | None,
) -> None:
    subscription_id = await subscribe(api, event_types=RESULTS)
    variables = receiver_variables(
        tmp_path,
        url=node.base_url,
        credentials=credentials,
        dsn=receiver.dsns.run,
        subscription_id=subscription_id,
    )
    async with (
        Floor.open(node.base_url, api) as floor,
        ReceiverProcess("consume", variables=variables) as process,
    ):
        await process.logged(message("consuming"))
        task_id = (await floor.under_review()).task.task_id
        await until_deliveries(platform_dsn, subscription_id, acked(1))
        before = receiver.view()
        # An intent is no event: the view does not move.
        await api.cancel(task_id)

        await resolve(api, task_id, word, **given)
        await until_deliveries(platform_dsn, subscription_id, acked(2))
        await process.logged(outcome("applied"), count=2)

    assert (before["task_id"], before["state"], before["task_version"], before["result"]) == (
        task_id,
        "NEEDS_REVIEW",
        4,
        None,
    )
    after = receiver.view()
    assert (after["task_id"], after["state"], after["task_version"], after["result"]) == (task_id, word, 5, result)
    assert after["applied_events"] == 2
    assert len(receiver.inbox()) == 2


async def test_a_task_that_is_done_again_has_a_view_of_its_own_and_the_old_one_stays(
    tmp_path: Path, node: Node, api: Api, credentials: dict[str, Any], receiver: Bench, platform_dsn: DSN
) -> None:
    subscription_id = await subscribe(api, event_types=RESULTS)
    variables = receiver_variables(
        tmp_path,
        url=node.base_url,
        credentials=credentials,
        dsn=receiver.dsns.run,
        subscription_id=subscription_id,
    )
    async with (
        Floor.open(node.base_url, api) as floor,
        ReceiverProcess("consume", variables=variables),
    ):
        old_id = (await floor.under_review()).task.task_id
        new_id = (await retry(api, old_id)).json()["task"]["task_id"]
        one = await floor.assigned(new_id)
        await floor.worker.start(one.attempt)
        await floor.worker.finish(report(one.attempt, result='{"text":"a"}'))
        await until_deliveries(platform_dsn, subscription_id, acked(2))

    views = {view["task_id"]: (view["state"], view["task_version"], view["result"]) for view in receiver.views()}
    assert views == {old_id: ("NEEDS_REVIEW", 4, None), new_id: ("SUCCEEDED", 4, '{"text":"a"}')}
