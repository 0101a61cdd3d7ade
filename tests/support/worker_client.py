"""A bare worker of `pulse.worker.v1`: it says what the test says, and nothing of its own accord."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from orbit.protocol import worker_v1
from orbit.protocol.attempt_v1 import Attempt, CommandResult, Finish, Lease, Outcome
from orbit.protocol.values import Secret, new_id
from orbit.protocol.worker_v1 import Capability, Capacity, Hello, Welcome
from tests.support.wire_client import WireClient, upgraded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from websockets.asyncio.client import ClientConnection

    from orbit.protocol.assignment_v1 import Assignment, Cancellation
    from orbit.protocol.session import Push

TEXT = Capability(handler="text.normalize", handler_version="v1", payload_version="v1")
"""What the tasks of `Api.submit` ask for."""


def registration(queue_id: str, **given: Any) -> Hello:
    """The hello of a process that nobody else is; as given."""
    values: dict[str, Any] = {
        "instance_id": new_id(),
        "instance_secret": Secret.new(),
        "queue_id": queue_id,
        "capacity": 16,
        "capabilities": (TEXT,),
    }
    return Hello(**(values | given))


def report(attempt: Attempt, outcome: Outcome = Outcome.SUCCEEDED, **given: Any) -> Finish:
    """A finish; all but SUCCEEDED get an error code."""
    if outcome is not Outcome.SUCCEEDED:
        given = {"error_code": "TEST"} | given
    return Finish(attempt=attempt, outcome=outcome, **given)


def socket(base_url: str, token: str) -> AbstractAsyncContextManager[ClientConnection]:
    """An upgraded connection to /v1/workers that nothing was said on yet."""
    return upgraded(base_url, worker_v1.PATH, token, worker_v1.SUBPROTOCOL)


class WorkerClient(WireClient):
    """One session. What is pushed waits in `assignments` and `cancellations`."""

    vocabulary = worker_v1.VOCABULARY

    def __init__(self, connection: ClientConnection) -> None:
        super().__init__(connection)
        self.assignments: asyncio.Queue[Assignment] = asyncio.Queue()
        self.cancellations: asyncio.Queue[Cancellation] = asyncio.Queue()
        self.welcome: Welcome | None = None

    @classmethod
    @asynccontextmanager
    async def open(
        cls, base_url: str, token: str, hello: Hello, *, capacity: int | None = None
    ) -> AsyncIterator[WorkerClient]:
        """Connect and greet, and announce a capacity if one is given; raises Refusal."""
        async with socket(base_url, token) as connection:
            client = cls(connection)
            async with client.reading():
                client.welcome = await client.hello(hello)
                if capacity is not None:
                    await client.capacity(capacity)
                yield client

    def pushed(self, push: Push) -> None:
        """Keep an assignment or a cancellation."""
        (self.assignments if push.type == "task.assign" else self.cancellations).put_nowait(push.body)

    async def capacity(self, count: int, *, drain: bool = False) -> Welcome:
        """Announce a capacity under the next sequence and wait until it is confirmed."""
        self._sequence += 1
        body = Capacity(sequence=self._sequence, capacity=count, drain=drain)
        welcome: Welcome = await self.request("worker.capacity", body)
        return welcome

    async def assignment(self) -> Assignment:
        """The next assignment; raises Closed, TimeoutError."""
        assignment: Assignment = await self.taken(self.assignments)
        return assignment

    async def cancellation(self) -> Cancellation:
        """The next cancellation; raises Closed, TimeoutError."""
        cancellation: Cancellation = await self.taken(self.cancellations)
        return cancellation

    async def start(self, attempt: Attempt, message_id: str | None = None) -> CommandResult:
        """Ask for the permission to run."""
        result: CommandResult = await self.request("task.start", attempt, message_id)
        return result

    async def renew(self, attempt: Attempt, message_id: str | None = None) -> CommandResult:
        """Prolong the lease."""
        result: CommandResult = await self.request("task.renew", attempt, message_id)
        return result

    async def finish(self, finish: Finish, message_id: str | None = None) -> CommandResult:
        """Report."""
        result: CommandResult = await self.request("task.finish", finish, message_id)
        return result

    async def resume(self, attempt: Attempt) -> Lease:
        """Ask what holds."""
        lease: Lease = await self.request("worker.resume", attempt)
        return lease
