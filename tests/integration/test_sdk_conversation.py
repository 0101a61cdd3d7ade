"""Requests and answers over one connection: who is told what, and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from orbit.protocol import events_v1
from orbit.protocol.errors import ErrorCode
from orbit.protocol.limits import Limits
from orbit.protocol.session import Push
from orbit.protocol.values import new_id
from orbit.sdk.conversation import Conversation
from orbit.sdk.errors import Disconnected, OrbitError, SessionRefused
from tests.support.fake_orbit import Cut, FakeOrbit, Ignore, Refuse

WAIT_S = 20.0


@dataclass
class Open:
    """A conversation after its welcome, what was pushed, and its reader."""

    conversation: Conversation
    pushed: list[Push]
    reader: asyncio.Task[None]

    async def capacity(self, sequence: int) -> events_v1.Welcome:
        body = events_v1.Capacity(sequence=sequence, capacity=4)
        answer: events_v1.Welcome = await self.conversation.request("consumer.capacity", body)
        return answer

    async def ended(self) -> OrbitError:
        with pytest.raises(OrbitError) as caught:
            await asyncio.wait_for(self.reader, WAIT_S)
        return caught.value


@asynccontextmanager
async def opened(orbit: FakeOrbit) -> AsyncIterator[Open]:
    async with orbit.client() as client:
        channel = await client.open_channel(events_v1.PATH, events_v1.SUBPROTOCOL)
        pushed: list[Push] = []
        conversation = Conversation(channel, events_v1.VOCABULARY, orbit.limits, pushed.append)
        reader: asyncio.Task[None] = asyncio.create_task(conversation.read())
        try:
            hello = events_v1.Hello(subscription_id=orbit.subscription_id, consumer_id=new_id())
            assert (await conversation.hello(hello)).queue_id == orbit.queue_id
            yield Open(conversation, pushed, reader)
        finally:
            reader.cancel()
            await asyncio.wait([reader])
            await conversation.close()


async def test_answers_find_their_requests_and_pushes_the_callback() -> None:
    async with FakeOrbit() as orbit, opened(orbit) as one:
        assert (await one.capacity(1)).sequence == 1
        assert (await one.capacity(2)).sequence == 2
        delivery = orbit.emit()
        assert (await one.capacity(3)).sequence == 3
        [push] = one.pushed
        assert push.body.proof.delivery_id == delivery.delivery_id


async def test_a_refusal_is_the_requests_alone() -> None:
    async with FakeOrbit() as orbit, opened(orbit) as one:
        orbit.misbehave("consumer.capacity", Refuse(ErrorCode.RATE_LIMITED))
        with pytest.raises(SessionRefused) as caught:
            await one.capacity(1)
        assert caught.value.code == "RATE_LIMITED"
        assert (await one.capacity(2)).sequence == 2
        assert not one.reader.done()


async def test_no_answer_in_time_ends_the_connection_for_everybody() -> None:
    async with FakeOrbit(limits=Limits(control_s=0.2)) as orbit, opened(orbit) as one:
        orbit.misbehave("consumer.capacity", Ignore())
        with pytest.raises(Disconnected, match="no answer in time"):
            await one.capacity(1)
        assert isinstance(await one.ended(), Disconnected)
        with pytest.raises(Disconnected):
            await one.capacity(2)
        await orbit.until(lambda: not orbit.connection.open)


async def test_a_lost_connection_fails_the_requests_in_flight_at_once() -> None:
    async with FakeOrbit(limits=Limits(control_s=3600.0)) as orbit, opened(orbit) as one:
        orbit.misbehave("consumer.capacity", Cut())
        with pytest.raises(Disconnected):
            await asyncio.wait_for(one.capacity(1), WAIT_S)
        assert isinstance(await one.ended(), Disconnected)


async def test_an_error_that_ends_the_session_is_told_to_everybody() -> None:
    async with FakeOrbit(limits=Limits(control_s=3600.0)) as orbit, opened(orbit) as one:
        orbit.misbehave("consumer.capacity", Ignore())
        asking = asyncio.create_task(one.capacity(1))
        await orbit.until(lambda: orbit.saw("consumer.capacity") != [])
        orbit.connection.send(orbit.connection.session.fatal(ErrorCode.SESSION_FENCED, "another connection"))
        with pytest.raises(SessionRefused) as caught:
            await asyncio.wait_for(asking, WAIT_S)
        assert caught.value.code == "SESSION_FENCED"
        ended = await one.ended()
        assert isinstance(ended, SessionRefused)
        assert ended.temporary


async def test_a_request_that_is_cancelled_after_it_was_sent_ends_the_conversation() -> None:
    async with FakeOrbit(limits=Limits(control_s=3600.0)) as orbit, opened(orbit) as one:
        orbit.misbehave("consumer.capacity", Ignore())
        asking, other = asyncio.create_task(one.capacity(1)), asyncio.create_task(one.capacity(2))
        await orbit.until(lambda: orbit.saw("consumer.capacity") != [])
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        with pytest.raises(Disconnected, match="cancelled after it was sent"):
            await asyncio.wait_for(other, WAIT_S)
        assert isinstance(await one.ended(), Disconnected)
        await orbit.until(lambda: not orbit.connection.open)


async def test_stopping_the_reader_fails_what_waits() -> None:
    async with FakeOrbit(limits=Limits(control_s=3600.0)) as orbit, opened(orbit) as one:
        orbit.misbehave("consumer.capacity", Ignore())
        asking = asyncio.create_task(one.capacity(1))
        await orbit.until(lambda: orbit.saw("consumer.capacity") != [])
        one.reader.cancel()
        with pytest.raises(Disconnected):
            await asyncio.wait_for(asking, WAIT_S)


async def test_a_message_that_breaks_the_protocol_fails_what_waits_before_the_connection_is_closed() -> None:
    async with FakeOrbit(limits=Limits(control_s=3600.0)) as orbit, opened(orbit) as one:
        orbit.misbehave("consumer.capacity", Ignore())
        asking = asyncio.create_task(one.capacity(1))
        await orbit.until(lambda: orbit.saw("consumer.capacity") != [])
        orbit.connection.socket.transport.pause_reading()  # the close is not answered, and takes its whole second
        orbit.connection.send("[]")
        with pytest.raises(Disconnected, match="breaks the protocol"):
            await asyncio.wait_for(asking, WAIT_S)
        assert not one.reader.done()


async def test_what_waits_to_be_sent_when_the_conversation_ends_is_not_sent() -> None:
    async with FakeOrbit(limits=Limits(control_s=3600.0)) as orbit, opened(orbit) as one:
        async with one.conversation._sending:  # as if another request were being sent
            asking = asyncio.create_task(one.capacity(1))
            await asyncio.sleep(0)
            one.conversation.end(Disconnected("ended by the test"))
        with pytest.raises(Disconnected, match="ended by the test"):
            await asyncio.wait_for(asking, WAIT_S)
        assert orbit.saw("consumer.capacity") == []


async def test_what_comes_after_the_end_is_not_looked_at() -> None:
    async with FakeOrbit() as orbit, opened(orbit) as one:
        await one.capacity(1)
        one.conversation.end(Disconnected("ended by the test"))
        orbit.emit()
        error = await one.ended()
        assert str(error) == "ended by the test"
        assert one.pushed == []
