"""ACKs and releases whose answers are lost, refused or overtaken by a newer lease of the same delivery."""

from __future__ import annotations

import asyncio
import logging

import pytest

from orbit.protocol.errors import ErrorCode
from orbit.protocol.limits import Limits
from orbit.sdk import Delivery, EventConsumer, SessionRefused
from tests.support.consuming import Script, consuming, counted
from tests.support.fake_orbit import Cut, Drop, FakeOrbit, Hold, Ignore, Refuse


async def test_an_ack_whose_answer_is_lost_is_reported_again_with_the_same_proof_before_capacity() -> None:
    async with FakeOrbit() as orbit:
        script = Script()
        async with consuming(orbit.client(), orbit.subscription_id, script) as consumer:
            orbit.misbehave("event.ack", Cut())
            delivery = orbit.emit()
            await counted(consumer, lambda counts: counts.acknowledged == 1)
        first, second = orbit.saw("event.ack")
        assert first == second
        assert [call.delivery_id for call in script.calls] == [delivery.delivery_id]
        assert delivery.receipts == 1
        again = [frame.type for frame in orbit.seen if frame.connection == 2]
        assert again[:3] == ["consumer.hello", "event.ack", "consumer.capacity"]
        assert (consumer.counts.acknowledged, consumer.counts.reconnects, consumer.counts.pending) == (1, 1, 0)


async def test_no_answer_within_the_control_time_ends_the_connection_and_the_ack_is_reported_again() -> None:
    async with FakeOrbit(limits=Limits(control_s=0.2)) as orbit:
        script = Script()
        async with consuming(orbit.client(), orbit.subscription_id, script) as consumer:
            orbit.misbehave("event.ack", Drop())
            delivery = orbit.emit()
            await counted(consumer, lambda counts: counts.acknowledged == 1)
        first, second = orbit.saw("event.ack")
        assert first == second
        assert (len(script.calls), delivery.receipts, orbit.dials) == (1, 1, 2)


async def test_finished_work_of_a_lost_connection_is_acknowledged_on_the_next_one() -> None:
    async with FakeOrbit() as orbit:
        gate = asyncio.Event()
        script = Script(lambda _: _wait(gate))
        async with consuming(orbit.client(), orbit.subscription_id, script) as consumer:
            delivery = orbit.emit()
            await counted(consumer, lambda counts: counts.running == 1)
            await orbit.shut()
            gate.set()
            await counted(consumer, lambda counts: counts.pending == 1 and not consumer.connected)
            await orbit.listen()
            await counted(consumer, lambda counts: counts.acknowledged == 1)
        assert (len(script.calls), delivery.receipts) == (1, 1)


async def test_a_new_lease_while_the_handler_runs_starts_no_second_one_and_is_acknowledged_instead() -> None:
    async with FakeOrbit() as orbit:
        gate = asyncio.Event()
        script = Script(lambda _: _wait(gate))
        async with consuming(orbit.client(), orbit.subscription_id, script) as consumer:
            delivery = orbit.emit()
            await counted(consumer, lambda counts: counts.running == 1)
            orbit.lapse(delivery)
            await counted(consumer, lambda counts: counts.superseded == 1)
            gate.set()
            await counted(consumer, lambda counts: counts.acknowledged == 1)
        [ack] = orbit.saw("event.ack")
        assert [(one.delivery_id, one.epoch) for one in ack.deliveries] == [(delivery.delivery_id, 2)]
        assert len(script.calls) == 1
        assert (consumer.counts.received, consumer.counts.acknowledged, delivery.receipts) == (2, 1, 1)


async def test_a_new_lease_while_the_ack_is_pending_is_acknowledged_without_a_second_call() -> None:
    async with FakeOrbit() as orbit:
        script = Script()
        async with consuming(orbit.client(), orbit.subscription_id, script) as consumer:
            delivery = orbit.emit()
            orbit.misbehave("event.ack", Ignore())
            await orbit.until(lambda: len(orbit.saw("event.ack")) == 1)
            orbit.lapse(delivery)
            await counted(consumer, lambda counts: counts.acknowledged == 1)
        assert [frame.deliveries[0].epoch for frame in orbit.saw("event.ack")] == [1, 2]
        assert (len(script.calls), delivery.receipts, orbit.dials) == (1, 1, 1)


async def test_a_refused_stale_ack_is_counted_logged_and_remembered(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeOrbit() as orbit:
        gate = asyncio.Event()
        script = Script(lambda _: _wait(gate))
        async with consuming(orbit.client(), orbit.subscription_id, script) as consumer:
            delivery = orbit.emit()
            await counted(consumer, lambda counts: counts.running == 1)
            # Another consumer was given the delivery in the meantime.
            delivery.epoch += 1
            with caplog.at_level(logging.WARNING, logger="orbit.sdk"):
                gate.set()
                await counted(consumer, lambda counts: counts.refused == 1)
            assert consumer.connected
            # It fails there, and the delivery comes back: this consumer has done the work already.
            orbit.lapse(delivery)
            await counted(consumer, lambda counts: counts.acknowledged == 1)
        assert "STALE_EPOCH" in caplog.text
        assert delivery.delivery_id in caplog.text
        assert (len(script.calls), delivery.receipts) == (1, 1)
        assert [frame.deliveries[0].epoch for frame in orbit.saw("event.ack")] == [1, 3]


async def test_an_ack_refused_for_now_is_repeated_on_the_same_connection() -> None:
    async with FakeOrbit() as orbit:
        script = Script()
        async with consuming(orbit.client(), orbit.subscription_id, script) as consumer:
            orbit.misbehave("event.ack", Refuse(ErrorCode.UNAVAILABLE))
            orbit.misbehave("event.ack", Refuse(ErrorCode.UNAVAILABLE))
            delivery = orbit.emit()
            await counted(consumer, lambda counts: counts.acknowledged == 1)
        frames = orbit.saw("event.ack")
        assert frames == [frames[0]] * 3
        assert (orbit.dials, len(script.calls), delivery.receipts) == (1, 1, 1)


async def test_an_ack_refused_for_good_ends_the_consumer() -> None:
    async with FakeOrbit() as orbit, orbit.client() as client:
        consumer = EventConsumer(client, orbit.subscription_id, Script())
        orbit.misbehave("event.ack", Refuse(ErrorCode.PERMISSION_DENIED))
        orbit.emit()
        with pytest.raises(SessionRefused) as caught:
            await consumer.run()
        assert caught.value.code == "PERMISSION_DENIED"
        assert consumer.counts.pending == 1


async def test_a_capacity_refused_for_now_costs_the_connection_only() -> None:
    async with FakeOrbit() as orbit:
        orbit.misbehave("consumer.capacity", Refuse(ErrorCode.UNAVAILABLE))
        script = Script()
        async with consuming(orbit.client(), orbit.subscription_id, script):
            delivery = orbit.emit()
            await orbit.until(lambda: delivery.state == "ACKED")
        assert orbit.dials == 2


async def test_what_waits_survives_a_reconnection_and_takes_its_place_off_the_capacity() -> None:
    async with FakeOrbit() as orbit:
        gate = asyncio.Event()
        script = Script(lambda _: _wait(gate))
        async with consuming(orbit.client(), orbit.subscription_id, script, concurrency=1, prefetch=3) as consumer:
            held = [orbit.emit() for _ in range(3)]
            await counted(consumer, lambda counts: counts.received == 3)
            orbit.connection.socket.transport.abort()
            await counted(consumer, lambda counts: counts.reconnects == 1)
            await orbit.until(lambda: [one.capacity for one in orbit.saw("consumer.capacity")] == [4, 1])
            gate.set()
            await counted(consumer, lambda counts: counts.acknowledged == 3)
            await orbit.until(lambda: orbit.saw("consumer.capacity")[-1].capacity == 4)
        assert [one.attempts for one in held] == [1, 1, 1]


async def test_a_release_whose_answer_is_lost_is_reported_again() -> None:
    async def fail(_: Delivery) -> None:
        raise ValueError

    async with FakeOrbit() as orbit:
        script = Script(fail)
        async with consuming(orbit.client(), orbit.subscription_id, script) as consumer:
            orbit.misbehave("event.release", Cut())
            orbit.emit()
            await counted(consumer, lambda counts: counts.reconnects == 1)
            await orbit.until(lambda: len(orbit.saw("event.release")) == 2)
        first, second = orbit.saw("event.release")
        assert first == second


async def test_an_answer_that_comes_late_still_counts() -> None:
    async with FakeOrbit() as orbit:
        answer = asyncio.Event()
        async with consuming(orbit.client(), orbit.subscription_id, Script()) as consumer:
            orbit.misbehave("event.ack", Hold(answer))
            orbit.emit()
            await counted(consumer, lambda counts: counts.pending == 1)
            await orbit.until(lambda: len(orbit.saw("event.ack")) == 1)
            assert consumer.counts.acknowledged == 0
            answer.set()
            await counted(consumer, lambda counts: counts.acknowledged == 1)
        assert orbit.dials == 1


async def _wait(gate: asyncio.Event) -> None:
    await gate.wait()
