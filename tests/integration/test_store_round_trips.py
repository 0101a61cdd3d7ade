"""How often the Store talks to MySQL for one event, counted by a proxy that reads the packets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from receiver.outcome import Applied, VersionConflict
from tests.support.events import an_event
from tests.support.receiver import Bench, bench
from toxiproxy.mysql_proxy import MySQLProxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orbit.protocol.event import Event
    from receiver.store import Store
    from tests.support.mysql import ReceiverDSNs


@pytest.fixture
async def receiver(receiver_dsns: ReceiverDSNs) -> AsyncIterator[Bench]:
    async with bench(receiver_dsns) as made:
        yield made


async def test_a_new_event_takes_three_round_trips_a_stale_one_four_a_duplicate_four(receiver: Bench) -> None:
    async with MySQLProxy(*receiver.dsns.run.hosts[0]) as proxy:
        store = receiver.store(dsn=receiver.dsns.run.with_host("127.0.0.1", proxy.port))
        await store.apply(an_event(1, version=1))  # opens the connection, which is not part of any event
        assert await _trips(proxy, store, an_event(2, version=5)) == (3, Applied(applied=True, duplicate=False))
        assert await _trips(proxy, store, an_event(3, version=4)) == (4, Applied(applied=False, duplicate=False))
        # INSERT refused, ROLLBACK, SELECT, ROLLBACK.
        assert await _trips(proxy, store, an_event(3, version=4)) == (4, Applied(applied=False, duplicate=True))
        before = proxy.round_trips(1)
        with pytest.raises(VersionConflict):
            await store.apply(an_event(4, version=5))
        assert proxy.round_trips(1) - before == 3


async def _trips(proxy: MySQLProxy, store: Store, event: Event) -> tuple[int, Applied]:
    before = proxy.round_trips(1)
    answer = await store.apply(event)
    return proxy.round_trips(1) - before, answer
