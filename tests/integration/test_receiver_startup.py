"""Start-up on a real MySQL: the right tables pass, each wrong one is refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from receiver.startup import StartupRefused, check_database
from tests.support.receiver import Bench, bench

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.mysql import ReceiverDSNs


@pytest.fixture
async def receiver(receiver_dsns: ReceiverDSNs) -> AsyncIterator[Bench]:
    async with bench(receiver_dsns) as made:
        yield made


async def test_what_init_made_is_accepted_with_the_run_time_account(receiver: Bench) -> None:
    await check_database(receiver.lane())


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("DROP TABLE receiver_task_views", "receiver_task_views is absent, needed: a table"),
        (
            "ALTER TABLE receiver_inbox MODIFY event_id VARCHAR(32) COLLATE utf8mb4_0900_ai_ci NOT NULL",
            "receiver_inbox.event_id collation is utf8mb4_0900_ai_ci, needed: utf8mb4_0900_bin",
        ),
        (
            "ALTER TABLE receiver_inbox MODIFY event_id VARCHAR(32) COLLATE utf8mb4_bin NOT NULL",
            "receiver_inbox.event_id collation is utf8mb4_bin, needed: utf8mb4_0900_bin",
        ),
        (
            "ALTER TABLE receiver_task_views MODIFY result JSON NULL",
            "receiver_task_views.result type is json, needed: mediumtext",
        ),
        (
            "ALTER TABLE receiver_task_views MODIFY result MEDIUMTEXT NOT NULL",
            "receiver_task_views.result null is not allowed, needed: allowed",
        ),
        (
            "ALTER TABLE receiver_task_views MODIFY task_version BIGINT NOT NULL",
            "receiver_task_views.task_version type is bigint, needed: bigint unsigned",
        ),
        (
            "ALTER TABLE receiver_inbox DROP PRIMARY KEY, ADD PRIMARY KEY (queue_id, event_id)",
            "receiver_inbox primary key is (queue_id, event_id), needed: (consumer_name, queue_id, event_id)",
        ),
        (
            "ALTER TABLE receiver_inbox ADD UNIQUE KEY uq_digest (event_sha256)",
            "receiver_inbox unique key is (event_sha256), needed: none such",
        ),
        ("ALTER TABLE receiver_inbox DROP COLUMN accepted_at", "receiver_inbox.accepted_at is absent, needed: present"),
        ("ALTER TABLE receiver_inbox ADD note INT", "receiver_inbox.note is present, needed: absent"),
    ],
)
async def test_a_table_of_another_shape_is_refused_by_name(receiver: Bench, change: str, problem: str) -> None:
    receiver.sql(change)
    with pytest.raises(StartupRefused) as raised:
        await check_database(receiver.lane())
    assert problem in str(raised.value)


async def test_a_trigger_is_refused_where_the_account_can_see_it(receiver: Bench) -> None:
    receiver.sql("CREATE TRIGGER watcher BEFORE INSERT ON receiver_inbox FOR EACH ROW SET @seen = 1")
    with pytest.raises(StartupRefused, match="receiver_inbox trigger is watcher, needed: none"):
        await check_database(receiver.lane(receiver.dsns.admin))
