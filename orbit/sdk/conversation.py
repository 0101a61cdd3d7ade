"""Requests and their answers over one channel, for whichever subprotocol a vocabulary describes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Never

from orbit.protocol.errors import ProtocolError
from orbit.protocol.limits import Limits
from orbit.protocol.phases import Phase
from orbit.protocol.session import ClientSession, Ended, Push, Refused, Welcomed
from orbit.protocol.values import new_id
from orbit.protocol.vocabulary import Body, Vocabulary
from orbit.sdk.channel import Channel
from orbit.sdk.errors import Disconnected, OrbitError, ProtocolMismatch, SessionRefused

PROTOCOL_ERROR: Final = 1002
"""RFC 6455 section 7.4.1."""


class Conversation:
    """A `ClientSession` on a `Channel`. `read()` must run for as long as the conversation is used."""

    def __init__(
        self, channel: Channel, vocabulary: Vocabulary, limits: Limits, on_push: Callable[[Push], None]
    ) -> None:
        """`on_push` is called for every push, by the reader, between two messages; it must not raise."""
        self._channel = channel
        self._limits = limits
        self._on_push = on_push
        self._session = ClientSession(vocabulary, limits)
        # As many as requests are in flight, which the session bounds.
        self._answers: dict[str, asyncio.Future[Any]] = {}
        self._hello_id = new_id()
        self._over: OrbitError | None = None

    async def hello(self, body: Body) -> Any:
        """Open the conversation and return the welcome's body; errors as `request` raises, and ProtocolMismatch."""
        return await self._exchange(self._session.hello(body, self._hello_id), self._hello_id)

    async def request(self, name: str, body: Body) -> Any:
        """Send a request and return the body of its answer, within `limits.control_s` for both.

        Raises SessionRefused when it is refused, Disconnected when the connection ends first, also because the time
        is over: then the request's fate is open. So it is after cancelling; the conversation stays usable.
        """
        message_id = new_id()
        if self._over is not None:
            raise self._over
        return await self._exchange(self._session.request(name, body, message_id), message_id)

    async def read(self) -> Never:
        """Take message after message until the conversation is over; raises the reason. Cancelling ends it, too."""
        reason: OrbitError = Disconnected("the conversation was stopped")
        try:
            while True:
                data = await self._channel.receive()
                phase = self._session.phase
                try:
                    self._take(data)
                except ProtocolError as error:
                    await self._channel.close(PROTOCOL_ERROR)
                    # Who has sent a welcome speaks the subprotocol; what comes later is a defect or a lost frame.
                    if phase is Phase.GREETING:
                        raise ProtocolMismatch(str(error)) from None
                    raise Disconnected(f"a message breaks the protocol: {error}", PROTOCOL_ERROR) from None
        except OrbitError as error:
            reason = error
            raise
        finally:
            self._end(reason)

    async def close(self) -> None:
        """Close the connection; bounded, safe to repeat. Requests in flight fail."""
        self._end(Disconnected("closed by this end"))
        await self._channel.close()

    def _take(self, data: bytes) -> None:
        event = self._session.receive(data)
        if isinstance(event, Push):
            self._on_push(event)
        elif isinstance(event, Ended):
            raise SessionRefused(event.code)
        else:
            message_id = self._hello_id if isinstance(event, Welcomed) else event.message_id
            answer = self._answers.get(message_id)
            if answer is None or answer.done():
                return  # who asked has been cancelled
            if isinstance(event, Refused):
                answer.set_exception(SessionRefused(event.code))
            else:
                answer.set_result(event.body)

    async def _exchange(self, data: bytes, message_id: str) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(_seen)
        self._answers[message_id] = answer
        try:
            async with asyncio.timeout(self._limits.control_s):
                await self._channel.send(data)
                return await answer
        except TimeoutError:
            self._channel.abort()
        finally:
            del self._answers[message_id]
        raise Disconnected("no answer in time")

    def _end(self, reason: OrbitError) -> None:
        self._session.lost()
        self._over = self._over or reason
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(reason)


def _seen(answer: asyncio.Future[Any]) -> None:
    # Sending may fail when the connection's end has been put into the answer already: then nobody awaits it.
    if not answer.cancelled():
        answer.exception()
