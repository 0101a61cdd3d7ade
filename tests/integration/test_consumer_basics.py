"""The consumer against a platform in the same process: what is taken, handled, acknowledged and given back."""

from __future__ import annotations

import asyncio
import time

import pytest

from orbit.protocol.errors import InvalidValue
from orbit.protocol.limits import Limits
from orbit.sdk import Delivery, EventConsumer, InvalidConfiguration, InvalidDelivery, WrongQueue
from tests.support.consuming import Script, consuming, counted
from tests.support.fake_orbit import Drop, FakeOrbit


async def test_an_event_is_handled_and_acknowledged() -> None:
    async with FakeOrbit() as orbit:
        script = Script()
        async with consuming(orbit.client(), orbit.subscription_id, script) as consumer:
            event = orbit.event(task_version="18446744073709551615")
            delivery = orbit.emit(event)
            await orbit.until(lambda: delivery.state == "ACKED")
            assert consumer.connected
        [call] = script.calls
        assert (call.delivery_id, call.attempt, call.attempt_budget) == (delivery.delivery_id, 1, 10)
        assert call.event.event_id == event["event_id"]
        assert call.event.task_version == 18446744073709551615
        counts = consumer.counts
        assert (counts.received, counts.acknowledged, counts.pending, counts.reconnects) == (1, 1, 0, 0)
        assert not consumer.connected


async def test_at_most_concurrency_run_and_all_others_wait() -> None:
    async with FakeOrbit() as orbit:
        gate = asyncio.Event()
        script = Script(lambda _: _wait(gate))
        async with consuming(orbit.client(), orbit.subscription_id, script, concurrency=2, prefetch=3) as consumer:
            for _ in range(9):
                orbit.emit()
            await counted(consumer, lambda counts: counts.received == 5)
            assert (consumer.counts.running, consumer.counts.waiting) == (2, 3)
            await script.until(lambda: len(script.calls) == 2)
            assert orbit.saw("consumer.capacity")[0].capacity == 5
            gate.set()
            await counted(consumer, lambda counts: counts.acknowledged == 9)
        assert [one.receipts for one in orbit.deliveries.values()] == [1] * 9


async def test_handlers_that_finish_together_are_acknowledged_in_frames_of_at_most_64() -> None:
    async with FakeOrbit() as orbit:
        gate = asyncio.Event()
        script = Script(lambda _: _wait(gate))
        async with consuming(orbit.client(), orbit.subscription_id, script, concurrency=100, prefetch=0) as consumer:
            for _ in range(100):
                orbit.emit()
            await counted(consumer, lambda counts: counts.running == 100)
            gate.set()
            await counted(consumer, lambda counts: counts.acknowledged == 100)
        frames = [len(ack.deliveries) for ack in orbit.saw("event.ack")]
        assert sum(frames) == 100
        assert max(frames) <= 64
        assert len(frames) < 20


async def test_a_finished_handler_does_not_wait_for_an_earlier_ack() -> None:
    async with FakeOrbit() as orbit:
        script = Script()
        async with consuming(orbit.client(), orbit.subscription_id, script) as consumer:
            orbit.misbehave("event.ack", Drop())
            first = orbit.emit()
            await orbit.until(lambda: first.state == "ACKED")
            second = orbit.emit()
            counts = await counted(consumer, lambda counts: counts.acknowledged == 1)
            assert (second.state, counts.pending) == ("ACKED", 1)
            orbit.connection.socket.transport.abort()
            await counted(consumer, lambda counts: counts.pending == 0)


async def test_a_handler_that_raises_spends_the_attempt_and_frees_its_place() -> None:
    async def fail(_: Delivery) -> None:
        raise ValueError("the row was 4711")

    async with FakeOrbit() as orbit:
        script = Script(fail)
        async with consuming(orbit.client(), orbit.subscription_id, script, concurrency=1, prefetch=0) as consumer:
            first, second = orbit.emit(), orbit.emit()
            await counted(consumer, lambda counts: counts.failed == 2)
            await orbit.until(lambda: len(orbit.saw("event.release")) == 2)
            assert (first.state, first.attempts, second.attempts) == ("LEASED", 1, 1)
        released = [one for frame in orbit.saw("event.release") for one in frame.deliveries]
        assert [one.started for one in released] == [True, True]
        assert orbit.saw("event.ack") == []
        assert consumer.counts.acknowledged == 0


async def test_a_failed_delivery_that_comes_again_is_handled_again() -> None:
    tries = 0

    async def fail_once(_: Delivery) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise ValueError

    async with FakeOrbit() as orbit:
        script = Script(fail_once)
        async with consuming(orbit.client(), orbit.subscription_id, script) as consumer:
            delivery = orbit.emit()
            await counted(consumer, lambda counts: counts.failed == 1)
            await orbit.until(lambda: len(orbit.saw("event.release")) == 1)
            orbit.lapse(delivery)
            await orbit.until(lambda: delivery.state == "ACKED")
        assert [call.attempt for call in script.calls] == [1, 2]
        assert orbit.saw("event.ack")[0].deliveries[0].epoch == 2


async def test_one_bad_event_in_a_good_frame_fails_alone() -> None:
    async with FakeOrbit() as orbit:
        script = Script()
        async with consuming(orbit.client(), orbit.subscription_id, script) as consumer:
            before = orbit.emit()
            bad_event = {**orbit.event(), "result": None}
            bad = orbit.emit(bad_event)
            after = orbit.emit()
            await orbit.until(lambda: before.state == after.state == "ACKED")
            await orbit.until(lambda: len(orbit.saw("event.release")) == 1)
            assert consumer.connected
        [invalid] = script.invalid
        assert (invalid.delivery_id, invalid.event_id) == (bad.delivery_id, bad_event["event_id"])
        assert isinstance(invalid.error, InvalidValue)
        assert str(invalid.error) == "event.result: must not be null"
        assert {call.delivery_id for call in script.calls} == {before.delivery_id, after.delivery_id}
        [released] = orbit.saw("event.release")[0].deliveries
        assert (released.proof.delivery_id, released.started) == (bad.delivery_id, True)
        counts = consumer.counts
        assert (counts.received, counts.acknowledged, counts.invalid, counts.failed) == (3, 2, 1, 0)
        assert orbit.dials == 1


async def test_an_event_of_another_queue_is_invalid() -> None:
    async with FakeOrbit() as orbit:
        script = Script()
        async with consuming(orbit.client(), orbit.subscription_id, script) as consumer:
            orbit.emit({**orbit.event(), "queue_id": "f" * 32})
            await counted(consumer, lambda counts: counts.invalid == 1)
        assert str(script.invalid[0].error) == "event.queue_id: is not the subscription's queue"
        assert script.calls == []


async def test_what_on_invalid_raises_does_not_stop_the_consumer() -> None:
    async with FakeOrbit() as orbit:
        script = Script()

        def explode(invalid: InvalidDelivery) -> None:
            script.on_invalid(invalid)
            raise RuntimeError

        async with consuming(orbit.client(), orbit.subscription_id, script, on_invalid=explode):
            bad = orbit.emit({"no": "event"})
            good = orbit.emit()
            await orbit.until(lambda: good.state == "ACKED")
        assert [one.delivery_id for one in script.invalid] == [bad.delivery_id]


async def test_a_delivery_that_waited_too_long_is_given_back_unstarted() -> None:
    async with FakeOrbit() as orbit:
        gate = asyncio.Event()
        script = Script(lambda _: _wait(gate))
        async with consuming(orbit.client(), orbit.subscription_id, script, concurrency=1, prefetch=1) as consumer:
            running = orbit.emit(lease_s=30.0)
            waiting = orbit.emit(lease_s=1.0)
            await orbit.until(lambda: len(orbit.saw("event.release")) == 1, "its lease got too short, nobody looked")
            [released] = orbit.saw("event.release")[0].deliveries
            assert (released.proof.delivery_id, released.started) == (waiting.delivery_id, False)
            assert consumer.counts.released >= 1
            assert [call.delivery_id for call in script.calls] == [running.delivery_id]
            waiting.lease_s = 30.0
            gate.set()
            await orbit.until(lambda: waiting.state == "ACKED")
        assert waiting.attempts == 1


async def test_the_deadline_is_the_leases_end_less_the_margin_and_never_later() -> None:
    async with FakeOrbit() as orbit:
        script = Script()
        async with consuming(orbit.client(), orbit.subscription_id, script):
            before = time.monotonic()
            delivery = orbit.emit(lease_s=30.0)
            await orbit.until(lambda: delivery.state == "ACKED")
            after = time.monotonic()
        # The receipt lies between the two; the lease is 30 s, the margin 250 ms.
        assert before + 29.75 <= script.calls[0].deadline <= after + 29.75


async def test_the_wrong_queue_is_refused_before_anything_is_dialled() -> None:
    async with FakeOrbit() as orbit:
        delivery = orbit.emit()
        orbit.bound_to = "f" * 32
        async with orbit.client() as client:
            consumer = EventConsumer(client, orbit.subscription_id, Script())
            with pytest.raises(WrongQueue) as caught:
                await consumer.run()
        assert (caught.value.subscription_id, caught.value.queue_id) == (orbit.subscription_id, "f" * 32)
        assert (orbit.lookups, orbit.dials, delivery.attempts) == (1, 0, 0)


async def test_a_welcome_for_the_wrong_queue_is_refused_before_capacity() -> None:
    async with FakeOrbit() as orbit:
        delivery = orbit.emit()
        orbit.welcome_queue = "f" * 32
        async with orbit.client() as client:
            with pytest.raises(WrongQueue):
                await EventConsumer(client, orbit.subscription_id, Script()).run()
        assert orbit.saw("consumer.capacity") == []
        assert delivery.attempts == 0


async def test_the_capacity_is_sent_again_as_the_heartbeat_with_growing_sequences() -> None:
    limits = Limits(heartbeat_s=0.05)
    async with FakeOrbit(limits=limits) as orbit:
        async with consuming(orbit.client(), orbit.subscription_id, Script()):
            await orbit.until(lambda: len(orbit.saw("consumer.capacity")) >= 3)
        beats = orbit.saw("consumer.capacity")
        assert [beat.sequence for beat in beats[:3]] == [1, 2, 3]
        assert [beat.capacity for beat in beats[:3]] == [20, 20, 20]


async def test_numbers_out_of_range_are_refused_at_once() -> None:
    async with FakeOrbit() as orbit, orbit.client() as client:
        for concurrency, prefetch in ((0, 1), (1, -1), (900, 101)):
            with pytest.raises(InvalidConfiguration):
                EventConsumer(client, orbit.subscription_id, Script(), concurrency=concurrency, prefetch=prefetch)


async def test_a_consumer_runs_once() -> None:
    async with FakeOrbit() as orbit:
        async with consuming(orbit.client(), orbit.subscription_id, Script()) as consumer:
            await orbit.until(lambda: orbit.dials == 1)
            with pytest.raises(RuntimeError, match="runs once"):
                await consumer.run()
        with pytest.raises(RuntimeError, match="runs once"):
            await consumer.run()


async def _wait(gate: asyncio.Event) -> None:
    await gate.wait()
