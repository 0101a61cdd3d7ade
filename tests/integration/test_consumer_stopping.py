"""Pausing, draining and cancelling a consumer: what has not started is given back, what finished is acknowledged."""

from __future__ import annotations

import asyncio

import pytest

from orbit.protocol.errors import ErrorCode
from orbit.sdk import Delivery, EventConsumer, HTTPError, Unavailable
from tests.support.consuming import Script, at_once, consuming, counted, leftovers, whole
from tests.support.fake_orbit import FakeOrbit, Hold, Ignore

WAIT_S = 20.0


async def test_pausing_gives_back_what_waits_and_lets_the_running_go_on() -> None:
    async with FakeOrbit() as orbit:
        gate = asyncio.Event()
        script = Script(lambda _: _wait(gate))
        async with consuming(orbit.client(), orbit.subscription_id, script, concurrency=2, prefetch=8) as consumer:
            held = [orbit.emit() for _ in range(10)]
            await counted(consumer, lambda counts: counts.received == 10)
            consumer.pause()
            consumer.pause()
            assert consumer.paused
            await orbit.until(lambda: sum(one.state == "PENDING" for one in held) == 8)
            assert [one.attempts for one in held] == [1, 1] + [0] * 8
            assert orbit.saw("consumer.capacity")[-1].capacity == 0
            gate.set()
            await counted(consumer, lambda counts: counts.acknowledged == 2)
            assert len(script.calls) == 2
            consumer.resume()
            consumer.resume()
            await counted(consumer, lambda counts: counts.acknowledged == 10)
        assert [one.attempts for one in held] == [1] * 10
        assert consumer.counts.released == 8


async def test_nothing_is_given_back_before_capacity_zero_is_confirmed() -> None:
    async with FakeOrbit() as orbit:
        gate, confirm = asyncio.Event(), asyncio.Event()
        script = Script(lambda _: _wait(gate))
        async with consuming(orbit.client(), orbit.subscription_id, script, concurrency=1, prefetch=1) as consumer:
            orbit.emit(), orbit.emit()
            await counted(consumer, lambda counts: counts.received == 2)
            orbit.misbehave("consumer.capacity", Hold(confirm))
            consumer.pause()
            await orbit.until(lambda: orbit.saw("consumer.capacity")[-1].capacity == 0)
            assert orbit.saw("event.release") == []
            confirm.set()
            await orbit.until(lambda: len(orbit.saw("event.release")) == 1)
            kinds = [frame.type for frame in orbit.seen]
            assert kinds[-2:] == ["consumer.capacity", "event.release"]
            gate.set()
        assert consumer.counts.received == 2


async def test_what_arrives_while_pausing_is_given_back() -> None:
    async with FakeOrbit() as orbit:
        script = Script()
        async with consuming(orbit.client(), orbit.subscription_id, script) as consumer:
            await orbit.until(lambda: consumer.connected and orbit.connection.capacity == 20)
            consumer.pause()
            delivery = orbit.emit()
            await orbit.until(lambda: len(orbit.saw("event.release")) == 1)
            assert (delivery.state, delivery.attempts) == ("PENDING", 0)
        assert script.calls == []
        assert (consumer.counts.received, consumer.counts.released) == (1, 1)


async def test_unavailable_pauses_until_resume_and_spends_only_what_was_started() -> None:
    available = False

    async def act(_: Delivery) -> None:
        if not available:
            raise Unavailable

    async with FakeOrbit() as orbit:
        script = Script(act)
        async with consuming(orbit.client(), orbit.subscription_id, script, concurrency=1, prefetch=5) as consumer:
            held = [orbit.emit() for _ in range(6)]
            await orbit.until(lambda: orbit.connections != [] and len(orbit.saw("event.release")) >= 2)
            await orbit.until(lambda: sum(one.attempts for one in held) == 1)
            assert consumer.paused
            assert consumer.connected
            assert (consumer.counts.failed, len(script.calls)) == (1, 1)
            available = True
            consumer.resume()
            await counted(consumer, lambda counts: counts.acknowledged == 5)
            orbit.lapse(next(one for one in held if one.state == "LEASED"))
            await counted(consumer, lambda counts: counts.acknowledged == 6)
        assert sorted(one.attempts for one in held) == [1, 1, 1, 1, 1, 2]


async def test_a_paused_consumer_reconnects_with_capacity_zero() -> None:
    async with FakeOrbit() as orbit:
        script = Script()
        async with consuming(orbit.client(), orbit.subscription_id, script) as consumer:
            await orbit.until(lambda: len(orbit.saw("consumer.capacity")) == 1)
            consumer.pause()
            await orbit.until(lambda: len(orbit.saw("consumer.capacity")) == 2)
            orbit.connection.socket.transport.abort()
            await orbit.until(lambda: len(orbit.saw("consumer.capacity")) == 3)
            assert [one.capacity for one in orbit.saw("consumer.capacity")] == [20, 0, 0]


async def test_stop_acknowledges_what_finishes_and_gives_back_what_has_not_started() -> None:
    async with FakeOrbit() as orbit:
        gate = asyncio.Event()
        script = Script(lambda _: _wait(gate))
        async with orbit.client() as client:
            consumer = EventConsumer(client, orbit.subscription_id, script)
            running = asyncio.create_task(consumer.run())
            held = [orbit.emit() for _ in range(20)]
            await counted(consumer, lambda counts: counts.running == 4 and counts.waiting == 16)
            stopping = asyncio.create_task(consumer.stop(10.0))
            await orbit.until(lambda: sum(one.state == "PENDING" for one in held) == 16)
            gate.set()
            await asyncio.wait_for(asyncio.gather(stopping, running), WAIT_S)
        assert [one.state for one in held] == ["ACKED"] * 4 + ["PENDING"] * 16
        assert [one.attempts for one in held] == [1] * 4 + [0] * 16
        counts = consumer.counts
        assert (counts.acknowledged, counts.released, counts.failed, counts.pending) == (4, 16, 0, 0)
        assert whole(counts)
        assert not orbit.connection.open
        assert orbit.connection.socket.close_code == 1000
        assert leftovers() == []


async def test_handlers_still_running_at_the_end_of_the_drain_are_cancelled_and_not_acknowledged() -> None:
    async with FakeOrbit() as orbit:
        gate = asyncio.Event()
        script = Script(lambda delivery: _wait(gate) if delivery.attempt == 1 else _wait(asyncio.Event()))
        async with orbit.client() as client:
            consumer = EventConsumer(client, orbit.subscription_id, script, concurrency=2)
            running = asyncio.create_task(consumer.run())
            slow = orbit.emit()
            await script.until(lambda: len(script.calls) == 1)
            await asyncio.wait_for(consumer.stop(0.5), WAIT_S)
            await asyncio.wait_for(running, WAIT_S)
        assert script.cancelled == [slow.delivery_id]
        assert slow.state == "LEASED"
        assert orbit.saw("event.ack") == []
        assert [one.started for one in orbit.saw("event.release")[0].deliveries] == [True]
        assert (consumer.counts.failed, consumer.counts.running) == (1, 0)
        assert leftovers() == []


async def test_a_handler_that_finishes_while_it_is_cancelled_is_acknowledged() -> None:
    async def finish_anyway(_: Delivery) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    async with FakeOrbit() as orbit:
        script = Script(finish_anyway)
        async with orbit.client() as client:
            consumer = EventConsumer(client, orbit.subscription_id, script)
            running = asyncio.create_task(consumer.run())
            delivery = orbit.emit()
            await script.until(lambda: len(script.calls) == 1)
            await asyncio.wait_for(consumer.stop(1.0), WAIT_S)
            await asyncio.wait_for(running, WAIT_S)
        assert delivery.state == "ACKED"
        assert consumer.counts.acknowledged == 1


async def test_a_handler_that_swallows_cancellation_does_not_hold_the_consumer() -> None:
    release = asyncio.Event()

    async def deaf(_: Delivery) -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    async with FakeOrbit() as orbit:
        script = Script(deaf)
        async with orbit.client() as client:
            consumer = EventConsumer(client, orbit.subscription_id, script)
            running = asyncio.create_task(consumer.run())
            orbit.emit()
            await script.until(lambda: len(script.calls) == 1)
            await asyncio.wait_for(consumer.stop(0.2), WAIT_S)
            await asyncio.wait_for(running, WAIT_S)
            assert consumer.counts.running == 1
            assert len(leftovers()) == 1
            release.set()
            await script.until(lambda: script.done != [])
        await asyncio.sleep(0)
        assert leftovers() == []


async def test_the_drain_ends_although_a_verdict_never_comes() -> None:
    async with FakeOrbit() as orbit, orbit.client() as client:
        consumer = EventConsumer(client, orbit.subscription_id, Script())
        running = asyncio.create_task(consumer.run())
        orbit.misbehave("event.ack", Ignore())
        orbit.emit()
        await orbit.until(lambda: len(orbit.saw("event.ack")) == 1)
        await asyncio.wait_for(consumer.stop(0.3), WAIT_S)
        await asyncio.wait_for(running, WAIT_S)
        assert consumer.counts.pending == 1
        assert leftovers() == []


async def test_stopping_while_the_platform_is_away_waits_for_it_only_when_an_ack_is_owed() -> None:
    async with FakeOrbit() as orbit:
        script = Script()
        async with orbit.client() as client:
            consumer = EventConsumer(client, orbit.subscription_id, script, timing=at_once())
            running = asyncio.create_task(consumer.run())
            gate = asyncio.Event()
            script._act = lambda _: _wait(gate)
            delivery = orbit.emit()
            await script.until(lambda: len(script.calls) == 1)
            await orbit.shut()
            gate.set()
            await counted(consumer, lambda counts: counts.pending == 1)
            stopping = asyncio.create_task(consumer.stop(15.0))
            await orbit.listen()
            await asyncio.wait_for(asyncio.gather(stopping, running), WAIT_S)
        assert delivery.receipts == 1
        assert consumer.counts.acknowledged == 1


async def test_stop_before_run_makes_run_return_at_once() -> None:
    async with FakeOrbit() as orbit, orbit.client() as client:
        consumer = EventConsumer(client, orbit.subscription_id, Script())
        await consumer.stop(10.0)
        await asyncio.wait_for(consumer.run(), WAIT_S)
        assert orbit.dials == 0


async def test_stopping_twice_keeps_the_earlier_end() -> None:
    async with FakeOrbit() as orbit:
        script = Script(lambda _: _wait(asyncio.Event()))
        async with orbit.client() as client:
            consumer = EventConsumer(client, orbit.subscription_id, script)
            running = asyncio.create_task(consumer.run())
            orbit.emit()
            await script.until(lambda: len(script.calls) == 1)
            first = asyncio.create_task(consumer.stop(3600.0))
            second = asyncio.create_task(consumer.stop(0.1))
            third = asyncio.create_task(consumer.stop(3600.0))
            await asyncio.wait_for(asyncio.gather(first, second, third, running), WAIT_S)
        assert len(script.cancelled) == 1


@pytest.mark.parametrize("moment", ["looking up", "connected", "handling", "acknowledging", "waiting to dial"])
async def test_cancelling_run_leaves_no_task(moment: str) -> None:
    async with FakeOrbit() as orbit:
        script = Script(lambda _: _wait(asyncio.Event()) if moment == "handling" else asyncio.sleep(0))
        async with orbit.client() as client:
            consumer = EventConsumer(client, orbit.subscription_id, script, timing=at_once(jitter=0.999))
            if moment == "waiting to dial":
                orbit.refuse_lookups.extend([(503, ErrorCode.UNAVAILABLE)] * 1_000)
            orbit.misbehave("event.ack", Ignore())
            running = asyncio.create_task(consumer.run())
            if moment in ("handling", "acknowledging"):
                orbit.emit()
            if moment == "handling":
                await script.until(lambda: len(script.calls) == 1)
            elif moment == "acknowledging":
                await orbit.until(lambda: orbit.saw("event.ack") != [])
            elif moment == "connected":
                await orbit.until(lambda: orbit.saw("consumer.capacity") != [])
            else:
                await orbit.until(lambda: orbit.lookups >= 1)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(running, WAIT_S)
            assert leftovers() == []
            assert not consumer.connected
            assert whole(consumer.counts)
            await asyncio.wait_for(consumer.stop(1.0), WAIT_S)


async def test_cancelling_run_again_and_again_leaves_no_task() -> None:
    async with FakeOrbit() as orbit:
        script = Script(lambda _: _wait(asyncio.Event()))
        async with orbit.client() as client:
            consumer = EventConsumer(client, orbit.subscription_id, script)
            running = asyncio.create_task(consumer.run())
            orbit.emit()
            await script.until(lambda: len(script.calls) == 1)
            while not running.done():
                running.cancel()
                await asyncio.sleep(0)
            assert running.cancelled()
            assert not consumer.connected
            assert leftovers() == []
            assert script.cancelled == [script.calls[0].delivery_id]
            await asyncio.wait_for(consumer.stop(1.0), WAIT_S)


async def test_a_refusal_for_good_lets_running_handlers_end() -> None:
    async with FakeOrbit() as orbit:
        gate = asyncio.Event()
        script = Script(lambda _: _wait(gate))
        async with orbit.client() as client:
            consumer = EventConsumer(client, orbit.subscription_id, script, timing=at_once())
            running = asyncio.create_task(consumer.run())
            orbit.emit()
            await script.until(lambda: len(script.calls) == 1)
            orbit.refuse_upgrades.append((403, ErrorCode.PERMISSION_DENIED))
            orbit.connection.socket.transport.abort()
            await orbit.until(lambda: orbit.dials == 2)
            gate.set()
            with pytest.raises(HTTPError) as caught:
                await asyncio.wait_for(running, WAIT_S)
        assert (caught.value.status, caught.value.code, caught.value.request_id) == (403, "PERMISSION_DENIED", "r-1")
        assert script.cancelled == []
        assert consumer.counts.pending == 1
        assert leftovers() == []


async def _wait(gate: asyncio.Event) -> None:
    await gate.wait()
