"""Start-up on a real MySQL: the right tables pass, each wrong one is refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orbit.mysql.errors import NotCommitted
from receiver.startup import StartupRefused, check_database
from tests.support.mysql import receiver_accounts
from tests.support.receiver import Bench, bench

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orbit.sandbox import MySQLServer
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


async def test_a_server_that_may_lose_what_it_confirmed_is_refused_by_the_names_of_its_settings(
    own_mysql: MySQLServer,
) -> None:
    accounts = receiver_accounts(own_mysql, own_mysql.create_database("receiver"))
    async with bench(accounts) as receiver:
        await check_database(receiver.lane())
        receiver.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 2, sync_binlog = 0, max_allowed_packet = 1048576")
        with pytest.raises(StartupRefused) as raised:
            await check_database(receiver.lane())
    assert str(raised.value) == (
        "innodb_flush_log_at_trx_commit is 2, needed: 1; sync_binlog is 0, needed: 1;"
        " max_allowed_packet is 1048576, needed: at least 4194304"
    )


async def test_a_rehearsal_passes_with_the_run_time_account_and_leaves_nothing(receiver: Bench) -> None:
    await receiver.store().rehearse()
    assert receiver.inbox() == receiver.views() == []


@pytest.mark.parametrize(
    ("change", "errno"),
    [
        ("REVOKE INSERT ON `{database}`.* FROM '{user}'@'%'", 1142),
        ("REVOKE UPDATE ON `{database}`.* FROM '{user}'@'%'", 1142),
        ("REVOKE SELECT ON `{database}`.* FROM '{user}'@'%'", 1143),
        ("DROP TABLE receiver_task_views", 1146),
    ],
)
async def test_a_rehearsal_meets_whatever_an_event_would_meet(receiver: Bench, change: str, errno: int) -> None:
    run = receiver.dsns.run
    receiver.sql(change.format(database=run.database, user=run.user))
    with pytest.raises(NotCommitted) as raised:
        await receiver.store().rehearse()
    assert raised.value.errno == errno
