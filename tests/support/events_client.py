"""A bare consumer of `pulse.events.v1`: the protocol's client session over a WebSocket, and nothing clever."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from orbit.protocol import events_v1
from orbit.protocol.events_v1 import Ack, Capacity, Delivery, Hello, Proof, Release, Released, Verdict, Welcome
from orbit.protocol.session import ClientSession, Ended, Push, Refused, Reply, Welcomed
from orbit.protocol.values import new_id

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

DEADLINE_S = 20.0


class Refusal(Exception):
    """The server refused a request or the hello; `code` is the public one."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


def event_of(one: Delivery) -> dict[str, Any]:
    """The event as it came, parsed."""
    assert isinstance(one.event, dict)
    return one.event


class Closed(Exception):
    """The connection ended before what was waited for."""


@asynccontextmanager
async def socket(
    base_url: str, token: str, subprotocol: str = events_v1.SUBPROTOCOL
) -> AsyncIterator[ClientConnection]:
    """An upgraded connection to /v1/events that nothing was said on yet."""
    async with connect(
        base_url.replace("http://", "ws://") + events_v1.PATH,
        subprotocols=[Subprotocol(subprotocol)],
        additional_headers={"Authorization": f"Bearer {token}"},
        compression=None,
        proxy=None,
        ping_interval=None,
        close_timeout=2,
    ) as connection:
        yield connection


class EventsClient:
    """One consumer on one connection. Deliveries wait in `deliveries`; requests wait for their answers."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.session = ClientSession(events_v1.VOCABULARY)
        self.deliveries: asyncio.Queue[Delivery] = asyncio.Queue()
        self.answers: list[str] = []
        """Ids of requests in the order in which they were answered."""
        self.ended: Ended | None = None
        """The server's last word, where it had one."""
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self._sequence = 0
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    @asynccontextmanager
    async def open(cls, base_url: str, token: str, subscription_id: str) -> AsyncIterator[EventsClient]:
        """Connect and greet; raises Refusal. No capacity is announced yet."""
        async with socket(base_url, token) as connection:
            client = cls(connection)
            client._reading = asyncio.create_task(client._read(), name="events-client")
            try:
                await client.greet(subscription_id)
                yield client
            finally:
                client._reading.cancel()
                with suppress(asyncio.CancelledError):
                    await client._reading

    async def greet(self, subscription_id: str) -> Welcome:
        """Say hello and wait for the welcome."""
        message_id = new_id()
        hello = Hello(subscription_id=subscription_id, consumer_id=new_id())
        welcome: Welcome = await self._ask(message_id, self.session.hello(hello, message_id))
        return welcome

    async def capacity(self, count: int) -> Welcome:
        """Announce a capacity under the next sequence and wait until it is confirmed."""
        self._sequence += 1
        welcome: Welcome = await self.request("consumer.capacity", Capacity(sequence=self._sequence, capacity=count))
        return welcome

    async def ack(self, *proofs: Proof) -> tuple[Verdict, ...]:
        """Acknowledge and wait for the verdicts."""
        return tuple((await self.request("event.ack", Ack(deliveries=proofs))).verdicts)

    async def release(self, *proofs: Proof, started: bool) -> tuple[Verdict, ...]:
        """Release and wait for the verdicts."""
        items = tuple(Released(proof=one, started=started) for one in proofs)
        return tuple((await self.request("event.release", Release(deliveries=items))).verdicts)

    async def request(self, name: str, body: Any) -> Any:
        """Send a request and wait for its answer's body; raises Refusal, Closed."""
        message_id = new_id()
        return await self._ask(message_id, self.session.request(name, body, message_id))

    async def delivery(self) -> Delivery:
        """The next delivery; raises Closed, TimeoutError."""
        assert self._reading is not None
        getting = asyncio.ensure_future(self.deliveries.get())
        try:
            async with asyncio.timeout(DEADLINE_S):
                await asyncio.wait((getting, self._reading), return_when=asyncio.FIRST_COMPLETED)
            if not getting.done():
                raise Closed
            return getting.result()
        finally:
            getting.cancel()

    async def closed(self) -> int | None:
        """Wait until the server ended the connection; its close code."""
        assert self._reading is not None
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.wait((self._reading,))
        return self.connection.close_code

    async def _ask(self, message_id: str, data: bytes) -> Any:
        answer = self._waiting[message_id] = asyncio.get_running_loop().create_future()
        try:
            await self.connection.send(data.decode())
        except ConnectionClosed:
            raise Closed from None
        async with asyncio.timeout(DEADLINE_S):
            return await answer

    async def _read(self) -> None:
        try:
            async for text in self.connection:
                assert isinstance(text, str)
                self._take(self.session.receive(text.encode()))
        except ConnectionClosed:
            pass
        finally:
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(Closed())

    def _take(self, event: Welcomed | Reply | Refused | Push | Ended) -> None:
        match event:
            case Push(_, _, body):
                self.deliveries.put_nowait(body)
            case Welcomed(body):
                (answer,) = self._waiting.values()
                self._waiting.clear()
                answer.set_result(body)
            case Reply(message_id, _, body):
                self.answers.append(message_id)
                self._waiting.pop(message_id).set_result(body)
            case Refused(message_id, _, code, _):
                self.answers.append(message_id)
                self._waiting.pop(message_id).set_exception(Refusal(code))
            case Ended(code, _) as ended:
                self.ended = ended
                for answer in self._waiting.values():
                    answer.set_exception(Refusal(code))
                self._waiting.clear()
