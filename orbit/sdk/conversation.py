"""Requests and their answers over one channel, for whichever subprotocol a vocabulary describes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Never

from orbit.protocol.errors import InvalidValue, ProtocolError
from orbit.protocol.limits import Limits
from orbit.protocol.phases import Phase
from orbit.protocol.session import ClientSession, Ended, Push, Refused, Welcomed
from orbit.protocol.values import new_id
from orbit.protocol.vocabulary import Body, Vocabulary
from orbit.sdk.channel import Channel
from orbit.sdk.errors import (
    Disconnected,
    DuplicateMessage,
    InvalidRequest,
    NoAnswer,
    NotSent,
    OrbitError,
    ProtocolMismatch,
    SessionRefused,
)

PROTOCOL_ERROR: Final = 1002
"""RFC 6455 section 7.4.1."""


class Conversation:
    """A `ClientSession` on a `Channel`. `read()` must run for as long as the conversation is used."""

    def __init__(
        self, channel: Channel, vocabulary: Vocabulary, limits: Limits, on_push: Callable[[Push], None]
    ) -> None:
        """`on_push` is called for every push, by the reader, between two messages.

        What it raises must be an OrbitError, and ends the conversation.
        """
        self._channel = channel
        self._limits = limits
        self._on_push = on_push
        self._session = ClientSession(vocabulary, limits)
        # One for each request that waits to be sent or for its answer; `control_in_flight` bounds them.
        self._answers: dict[str, asyncio.Future[Any]] = {}
        self._sending = asyncio.Lock()
        self._hello_id = new_id()
        self._over: OrbitError | None = None

    @property
    def over(self) -> OrbitError | None:
        """Why the conversation is over, None while it goes on."""
        return self._over

    async def hello(self, body: Body) -> Any:
        """Open the conversation and return the welcome's body; errors as `request` raises, and ProtocolMismatch."""
        return await self._exchange(lambda: self._session.hello(body, self._hello_id), self._hello_id)

    async def request(self, name: str, body: Body, message_id: str | None = None) -> Any:
        """Send a request and return the body of its answer, within `limits.control_s` for waiting, sending and both.

        `message_id` is a new one unless given. Raises SessionRefused when the request is refused. Raises
        InvalidRequest, DuplicateMessage while one of the same id is in flight, and NotSent when `control_in_flight` are
        or it is not its turn in time: nothing was sent then, and the conversation is as before. Raises Disconnected
        when the connection ends first, and NoAnswer when the time is over: then the request's fate is open.

        Cancelling it before it was sent takes it back. After that its fate is open, as after NoAnswer, and nobody could
        tell its answer from one that nobody waits for: both end the conversation and cut the connection.
        """
        message_id = message_id or new_id()
        if self._over is not None:
            raise self._over
        if message_id in self._answers:
            raise DuplicateMessage(message_id)
        if len(self._answers) >= self._limits.control_in_flight:
            raise NotSent(f"{len(self._answers)} requests are in flight")
        return await self._exchange(lambda: self._session.request(name, body, message_id), message_id)

    async def read(self) -> Never:
        """Take message after message until the conversation is over; raises the reason. Cancelling ends it, too."""
        reason: OrbitError = Disconnected("the conversation was stopped")
        try:
            while True:
                data = await self._channel.receive()
                if self._over is not None:
                    raise self._over
                phase = self._session.phase
                try:
                    self._take(data)
                except ProtocolError as error:
                    reason = _broken(phase, error)
                    self.end(reason)
                    await self._channel.close(PROTOCOL_ERROR)
                    raise reason from None
                # A burst of messages may be here already: who waits for the first must not come after the last.
                await asyncio.sleep(0)
        except OrbitError as error:
            reason = error
            raise
        finally:
            self.end(reason)

    def end(self, reason: OrbitError) -> None:
        """Take and send nothing more; requests in flight fail with `reason`. Only the first reason counts."""
        self._session.lost()
        if self._over is not None:
            return
        self._over = reason
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(reason)

    async def close(self) -> None:
        """Close the connection; bounded, safe to repeat. Requests in flight fail."""
        self.end(Disconnected("closed by this end"))
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

    async def _exchange(self, make: Callable[[], bytes], message_id: str) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(_seen)
        self._answers[message_id] = answer
        failure: OrbitError
        sent = False
        try:
            async with asyncio.timeout(self._limits.control_s):
                async with self._sending:
                    if not answer.done():  # the conversation may have ended meanwhile
                        sent = True
                        await self._channel.send(make())
                return await answer
        except InvalidValue as error:
            failure = InvalidRequest(str(error))
        except TimeoutError:
            failure = NoAnswer("no answer in time") if sent else self._over or NotSent("its turn did not come in time")
            if sent:
                self._cut("a request had no answer in time")
        except asyncio.CancelledError:
            if sent:
                self._cut("a request was cancelled after it was sent")
            raise
        finally:
            del self._answers[message_id]
        raise failure

    def _cut(self, reason: str) -> None:
        self.end(Disconnected(reason))
        self._channel.abort()


def _seen(answer: asyncio.Future[Any]) -> None:
    # Sending may fail when the connection's end has been put into the answer already: then nobody awaits it.
    if not answer.cancelled():
        answer.exception()


def _broken(phase: Phase, error: ProtocolError) -> OrbitError:
    # Who has sent a welcome speaks the subprotocol; what comes later is a defect or a lost frame.
    if phase is Phase.GREETING:
        return ProtocolMismatch(str(error))
    return Disconnected(f"a message breaks the protocol: {error}", PROTOCOL_ERROR)
