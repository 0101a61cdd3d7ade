"""The consumer's connection: refusals, restarts, servers that misbehave, links that go dark."""

from __future__ import annotations

import asyncio
import json

import pytest

from orbit.protocol import events_v1
from orbit.protocol.errors import ErrorCode
from orbit.protocol.limits import Limits
from orbit.sdk import EventConsumer, HTTPError, OrbitError, ProtocolMismatch, SessionRefused
from orbit.sdk.supervise import Timing
from tests.support.consuming import Script, consuming, counted, leftovers
from tests.support.fake_orbit import FakeOrbit, Ignore, Refuse, Say

WAIT_S = 20.0


async def _refused(orbit: FakeOrbit) -> OrbitError:
    """Run a consumer until it ends by itself; return how."""
    async with orbit.client() as client:
        with pytest.raises(OrbitError) as caught:
            await asyncio.wait_for(EventConsumer(client, orbit.subscription_id, Script()).run(), WAIT_S)
    assert leftovers() == []
    return caught.value


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (401, ErrorCode.UNAUTHENTICATED),
        (403, ErrorCode.PERMISSION_DENIED),
        (404, ErrorCode.NOT_FOUND),
        (426, ErrorCode.UNSUPPORTED_PROTOCOL),
    ],
)
async def test_a_refused_upgrade_ends_the_consumer(status: int, code: ErrorCode) -> None:
    async with FakeOrbit() as orbit:
        orbit.refuse_upgrades.append((status, code))
        error = await _refused(orbit)
        assert isinstance(error, HTTPError)
        assert (error.status, error.code, error.request_id) == (status, str(code), "r-1")
        assert orbit.dials == 1


async def test_a_refused_lookup_ends_the_consumer() -> None:
    async with FakeOrbit() as orbit:
        orbit.refuse_lookups.append((403, ErrorCode.PERMISSION_DENIED))
        error = await _refused(orbit)
        assert isinstance(error, HTTPError)
        assert error.status == 403
        assert (orbit.lookups, orbit.dials) == (1, 0)


async def test_an_unknown_subscription_ends_the_consumer() -> None:
    async with FakeOrbit() as orbit:
        orbit.subscription_id = "f" * 32
        async with orbit.client() as client:
            with pytest.raises(HTTPError) as caught:
                await asyncio.wait_for(EventConsumer(client, "e" * 32, Script()).run(), WAIT_S)
        assert (caught.value.status, orbit.dials) == (404, 0)


async def test_lookup_and_upgrade_are_repeated_while_the_platform_is_unavailable() -> None:
    async with FakeOrbit() as orbit:
        orbit.refuse_lookups.extend([(503, ErrorCode.UNAVAILABLE), (502, None)])
        orbit.refuse_upgrades.extend([(503, ErrorCode.UNAVAILABLE), (500, None)])
        async with consuming(orbit.client(), orbit.subscription_id, Script()) as consumer:
            delivery = orbit.emit()
            await orbit.until(lambda: delivery.state == "ACKED")
            assert consumer.counts.reconnects == 0
        # The queue was checked once; after that the welcome says it.
        assert (orbit.lookups, orbit.dials) == (3, 3)


async def test_a_server_without_the_subprotocol_ends_the_consumer() -> None:
    async with FakeOrbit() as orbit:
        orbit.subprotocol = None
        assert isinstance(await _refused(orbit), ProtocolMismatch)
        assert orbit.dials == 1


@pytest.mark.parametrize("code", [ErrorCode.NOT_FOUND, ErrorCode.PERMISSION_DENIED, ErrorCode.UNSUPPORTED_PROTOCOL])
async def test_a_refused_hello_ends_the_consumer(code: ErrorCode) -> None:
    async with FakeOrbit() as orbit:
        orbit.misbehave("consumer.hello", Refuse(code))
        error = await _refused(orbit)
        assert isinstance(error, SessionRefused)
        assert error.code == code


async def test_a_hello_refused_for_now_is_repeated() -> None:
    async with FakeOrbit() as orbit:
        orbit.misbehave("consumer.hello", Refuse(ErrorCode.UNAVAILABLE))
        async with consuming(orbit.client(), orbit.subscription_id, Script()):
            delivery = orbit.emit()
            await orbit.until(lambda: delivery.state == "ACKED")
        hellos = orbit.saw("consumer.hello")
        assert len(hellos) == 2
        assert hellos[0] == hellos[1]


async def test_a_welcome_that_is_none_ends_the_consumer() -> None:
    async with FakeOrbit() as orbit:
        orbit.misbehave("consumer.hello", Say('{"protocol_version":"2","type":"consumer.welcome"}'))
        error = await _refused(orbit)
        assert isinstance(error, ProtocolMismatch)
        assert orbit.saw("consumer.capacity") == []


async def test_a_server_that_accepts_and_closes_is_not_dialled_in_a_tight_loop() -> None:
    waits: list[float] = []
    enough = asyncio.Event()

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 10:
            enough.set()
            await asyncio.Event().wait()
        await asyncio.sleep(0)

    async with FakeOrbit() as orbit:
        orbit.close_on_accept = 1011
        timing = Timing(sleep=sleep, jitter=lambda: 0.5)
        async with consuming(orbit.client(), orbit.subscription_id, Script(), timing=timing):
            await asyncio.wait_for(enough.wait(), WAIT_S)
            assert orbit.dials == 10
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 7.5, 7.5, 7.5])


async def test_a_welcomed_session_that_lasted_makes_the_next_wait_a_short_one() -> None:
    waits: list[float] = []
    now = 0.0
    orbit = FakeOrbit()

    def clock() -> float:
        nonlocal now
        now += 10.0  # every look at the clock is ten seconds after the last
        return now

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        orbit.close_on_accept = 1011 if len(waits) in (1, 2, 4) else None

    orbit.close_on_accept = 1011
    timing = Timing(clock=clock, sleep=sleep, jitter=lambda: 0.5)
    async with orbit, consuming(orbit.client(), orbit.subscription_id, Script(), timing=timing):
        await orbit.until(lambda: len(orbit.saw("consumer.capacity")) == 1)
        orbit.connection.socket.transport.abort()
        await orbit.until(lambda: len(orbit.saw("consumer.capacity")) == 2)
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.1, 0.2])


async def test_a_server_restart_is_survived_and_counted() -> None:
    async with FakeOrbit() as orbit:
        script = Script()
        async with consuming(orbit.client(), orbit.subscription_id, script) as consumer:
            first = orbit.emit()
            await orbit.until(lambda: first.state == "ACKED")
            await orbit.shut()
            second = orbit.emit()
            await orbit.listen()
            await orbit.until(lambda: second.state == "ACKED")
            assert consumer.counts.reconnects == 1
        hellos = orbit.saw("consumer.hello")
        assert [hello.consumer_id for hello in hellos] == [hellos[0].consumer_id] * 2
        assert len(script.calls) == 2


async def test_a_frame_over_the_limit_is_refused_with_1009_and_the_consumer_goes_on() -> None:
    async with FakeOrbit() as orbit, consuming(orbit.client(), orbit.subscription_id, Script()):
        await orbit.until(lambda: orbit.saw("consumer.capacity") != [])
        first = orbit.connection
        first.send("x" * (512 * 1024 + 1))
        await orbit.until(lambda: not first.open)
        assert first.socket.close_code == 1009
        delivery = orbit.emit()
        await orbit.until(lambda: delivery.state == "ACKED")


async def test_an_event_of_the_largest_size_fits() -> None:
    async with FakeOrbit() as orbit:
        script = Script()
        async with consuming(orbit.client(), orbit.subscription_id, script):
            result = "x" * (256 * 1024 - 2)
            delivery = orbit.emit({**orbit.event(), "result": result})
            await orbit.until(lambda: delivery.state == "ACKED")
        assert script.calls[0].event.result == json.dumps(result)


async def test_a_binary_message_is_refused_with_1003() -> None:
    async with FakeOrbit() as orbit, consuming(orbit.client(), orbit.subscription_id, Script()) as consumer:
        await orbit.until(lambda: orbit.saw("consumer.capacity") != [])
        first = orbit.connection
        await first.socket.send(b"{}")
        await orbit.until(lambda: not first.open)
        assert first.socket.close_code == 1003
        await counted(consumer, lambda counts: counts.reconnects == 1)


@pytest.mark.parametrize(
    "text",
    [
        "no json",
        '{"protocol_version":"1","type":"event.deliver","type":"ack"}',
        '{"protocol_version":"1","type":"ack","message_id":"%s","body":{}}' % ("a" * 32),
    ],
)
async def test_a_message_against_the_protocol_costs_the_connection_with_1002(text: str) -> None:
    async with FakeOrbit() as orbit, consuming(orbit.client(), orbit.subscription_id, Script()) as consumer:
        await orbit.until(lambda: orbit.saw("consumer.capacity") != [])
        first = orbit.connection
        first.send(text)
        await orbit.until(lambda: not first.open)
        assert first.socket.close_code == 1002
        await counted(consumer, lambda counts: counts.reconnects == 1)


async def test_members_a_newer_server_adds_are_ignored_and_kept_in_the_event() -> None:
    def newer(data: bytes) -> bytes:
        frame = json.loads(data)
        frame["trace"] = "new"
        frame["body"]["hint"] = {}
        frame["body"]["delivery"]["priority"] = 3
        return json.dumps(frame).encode()

    async with FakeOrbit() as orbit:
        orbit.rewrite = newer
        script = Script()
        async with consuming(orbit.client(), orbit.subscription_id, script):
            delivery = orbit.emit({**orbit.event(), "colour": "green"})
            await orbit.until(lambda: delivery.state == "ACKED")
        assert '"colour":"green"' in script.calls[0].event.text


async def test_a_link_that_goes_silent_is_given_up_after_the_control_time() -> None:
    limits = Limits(heartbeat_s=0.1, control_s=0.3)
    async with (
        FakeOrbit(limits=limits) as orbit,
        consuming(orbit.client(), orbit.subscription_id, Script()) as consumer,
    ):
        orbit.misbehave("consumer.capacity", Ignore())
        await counted(consumer, lambda counts: counts.reconnects == 1)
        delivery = orbit.emit()
        await orbit.until(lambda: delivery.state == "ACKED")


async def test_a_welcome_that_never_comes_is_given_up_after_the_control_time() -> None:
    async with FakeOrbit(limits=Limits(control_s=0.2)) as orbit:
        orbit.misbehave("consumer.hello", Ignore())
        async with consuming(orbit.client(), orbit.subscription_id, Script()):
            await orbit.until(lambda: orbit.saw("consumer.capacity") != [])
        assert orbit.dials == 2


async def test_the_address_and_the_subprotocol_are_those_of_the_contract() -> None:
    assert (events_v1.PATH, events_v1.SUBPROTOCOL) == ("/v1/events", "pulse.events.v1")
    async with FakeOrbit() as orbit, consuming(orbit.client(), orbit.subscription_id, Script()):
        await orbit.until(lambda: orbit.connections != [])
        request = orbit.connection.socket.request
        assert request is not None
        assert request.path == "/v1/events"
        assert request.headers["Sec-WebSocket-Protocol"] == "pulse.events.v1"
        assert "Sec-WebSocket-Extensions" not in request.headers
        assert orbit.token.reveal() not in request.path
