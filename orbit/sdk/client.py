"""The client of the platform's HTTP interface."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from orbit.protocol.errors import InvalidValue
from orbit.protocol.history_v1 import AttemptPage, AuditPage, EventPage
from orbit.protocol.http_v1 import (
    CancelTask,
    CreateSubscription,
    Delivery,
    DeliveryPage,
    GrantAttempts,
    Queue,
    QueueLimits,
    QueuePage,
    ResolveTask,
    SubmitTask,
    Subscription,
    SubscriptionPage,
    Task,
    TaskAccepted,
    TaskPage,
    TaskState,
)
from orbit.protocol.limits import Limits
from orbit.protocol.values import parse_id
from orbit.runtime.settings import Environment
from orbit.sdk.channel import Channel
from orbit.sdk.credentials import Credentials
from orbit.sdk.endpoint import Endpoint, tls_context
from orbit.sdk.errors import InvalidConfiguration, InvalidRequest
from orbit.sdk.http import HTTP, Transport
from orbit.sdk.worker import WorkerConnection, WorkerRegistration


class OrbitClient:
    """One platform under one token; use it in one event loop, as `async with OrbitClient(url, credentials) as client`.

    Every call is sent at most once: after `TransportError.outcome_unknown` or `HTTPError.outcome_unknown` the caller
    decides. A call that changes something takes an operation key as its first argument, or says that it may be
    repeated without one. Make the key once for each intended operation, outside any loop that repeats the call, and
    keep it with the arguments: the platform answers a repeated key with the first outcome, and other arguments under
    the same key with IDEMPOTENCY_CONFLICT.

    All methods raise HTTPError, TransportError and InvalidRequest. Cancelling one leaves its outcome unknown and
    nothing behind. Ids are 32 lowercase hexadecimal digits.
    """

    def __init__(
        self,
        url: str,
        credentials: Credentials,
        *,
        limits: Limits | None = None,
        tls: ssl.SSLContext | None = None,
        transport: Transport | None = None,
    ) -> None:
        """Check the arguments and open nothing yet; raises InvalidConfiguration.

        `tls` replaces the system's certificate authorities; it must verify. `transport` carries the HTTP requests
        instead of the network, for tests.
        """
        self.credentials = credentials
        self.limits = limits or Limits()
        self._endpoint = Endpoint.parse(url)
        self._tls = tls_context(self._endpoint, tls)
        self._http = HTTP(self._endpoint, credentials.token, limits=self.limits, tls=self._tls, transport=transport)

    @classmethod
    def from_environment(cls, variables: Mapping[str, str], *, limits: Limits | None = None) -> Self:
        """Build a client from ORBIT_URL and the variables of `Credentials.from_environment`.

        Raises InvalidConfiguration, which names the variable.
        """
        url = Environment(variables).optional("ORBIT_URL")
        if url is None:
            raise InvalidConfiguration("ORBIT_URL: is not set")
        Endpoint.parse(url, source="ORBIT_URL")
        return cls(url, Credentials.from_environment(variables), limits=limits)

    def __repr__(self) -> str:
        return f"OrbitClient({self._endpoint.base_url!r}, {self.credentials!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every HTTP connection; calls under way fail. Closing twice is harmless."""
        await self._http.close()

    async def submit_task(self, operation_key: str, task: SubmitTask, /) -> TaskAccepted:
        """Submit a task. Safe to repeat with the same key and task: `created` then is false."""
        return await self._http.call("POST", "/v1/tasks", TaskAccepted, body=task, operation_key=operation_key)

    async def list_tasks(self, state: TaskState, *, after: str | None = None, limit: int | None = None) -> TaskPage:
        """Return one page of the application's tasks in a state, in the order in which they came to it. Safe to repeat.

        `after` is the `next` of the page before, and stays good when the tasks of that page move on.
        """
        return await self._http.call("GET", "/v1/tasks", TaskPage, query={"state": state.value} | _page(after, limit))

    async def get_task(self, task_id: str) -> Task:
        """Return a task as it is now. Safe to repeat."""
        return await self._http.call("GET", _task(task_id), Task)

    async def list_attempts(self, task_id: str, *, after: str | None = None, limit: int | None = None) -> AttemptPage:
        """Return one page of a task's attempts with their results and late reports, oldest first. Safe to repeat."""
        return await self._http.call("GET", f"{_task(task_id)}/attempts", AttemptPage, query=_page(after, limit))

    async def list_events(self, task_id: str, *, after: str | None = None, limit: int | None = None) -> EventPage:
        """Return one page of a task's events by version; `Event.parse` reads one. Safe to repeat."""
        return await self._http.call("GET", f"{_task(task_id)}/events", EventPage, query=_page(after, limit))

    async def list_audit(self, task_id: str, *, after: str | None = None, limit: int | None = None) -> AuditPage:
        """Return one page of what was done to a task by hand, with its evidence, oldest first. Safe to repeat."""
        return await self._http.call("GET", f"{_task(task_id)}/audit", AuditPage, query=_page(after, limit))

    async def cancel_task(self, task_id: str) -> Task:
        """Cancel a task: at once where nobody runs it, else its worker is told (`cancel_requested_at`).

        Safe to repeat: once it was asked for, the task is answered as it is.
        """
        return await self._http.call("POST", f"{_task(task_id)}/cancel", Task, body=CancelTask())

    async def resolve_task(self, operation_key: str, task_id: str, resolution: ResolveTask, /) -> Task:
        """Say what became of a task under review, and what proves it. Safe to repeat with the same key and content."""
        return await self._http.call(
            "POST", f"{_task(task_id)}/resolve", Task, body=resolution, operation_key=operation_key
        )

    async def retry_task(self, operation_key: str, task_id: str, /) -> TaskAccepted:
        """Submit what a task was asked for again, as a new task. Safe to repeat with the same key."""
        return await self._http.call("POST", f"{_task(task_id)}/retry", TaskAccepted, operation_key=operation_key)

    async def list_queues(self) -> QueuePage:
        """Return the queues that the credential is bound to. Safe to repeat."""
        return await self._http.call("GET", "/v1/queues", QueuePage)

    async def pause_queue(self, queue_id: str) -> Queue:
        """Stop claims of a queue's tasks, for all its workers; what is claimed goes on. Safe to repeat."""
        return await self._http.call("POST", f"{_queue(queue_id)}/pause", Queue)

    async def resume_queue(self, queue_id: str) -> Queue:
        """Let workers claim a paused queue's tasks again. Safe to repeat."""
        return await self._http.call("POST", f"{_queue(queue_id)}/resume", Queue)

    async def set_queue_limits(self, queue_id: str, limits: QueueLimits) -> Queue:
        """Replace all limits of a queue; one that is left out is taken away. Safe to repeat."""
        return await self._http.call("PUT", f"{_queue(queue_id)}/limits", Queue, body=limits)

    async def create_subscription(self, operation_key: str, subscription: CreateSubscription, /) -> Subscription:
        """Create a subscription; it gets the events from then on. Safe to repeat with the same key and content."""
        return await self._http.call(
            "POST", "/v1/subscriptions", Subscription, body=subscription, operation_key=operation_key
        )

    async def get_subscription(self, subscription_id: str) -> Subscription:
        """Return a subscription as it is now. Safe to repeat."""
        return await self._http.call("GET", _subscription(subscription_id), Subscription)

    async def pause_subscription(self, subscription_id: str) -> Subscription:
        """Stop the deliveries of a subscription, for all its consumers; it goes on collecting. Safe to repeat."""
        return await self._http.call("POST", f"{_subscription(subscription_id)}/pause", Subscription)

    async def resume_subscription(self, subscription_id: str) -> Subscription:
        """Start the deliveries of a paused subscription again. Safe to repeat."""
        return await self._http.call("POST", f"{_subscription(subscription_id)}/resume", Subscription)

    async def list_subscriptions(self) -> SubscriptionPage:
        """Return the application's subscriptions on the credential's queue, oldest first. Safe to repeat."""
        return await self._http.call("GET", "/v1/subscriptions", SubscriptionPage)

    async def list_deliveries(
        self, subscription_id: str, *, after: str | None = None, limit: int | None = None
    ) -> DeliveryPage:
        """Return one page of a subscription's deliveries, oldest first, without events and proofs. Safe to repeat.

        `after` is the `next` of the page before.
        """
        path = f"{_subscription(subscription_id)}/deliveries"
        return await self._http.call("GET", path, DeliveryPage, query=_page(after, limit))

    async def grant(self, operation_key: str, delivery_id: str, /, attempts: int) -> Delivery:
        """Give a delivery more attempts, EXPIRED or not. Safe to repeat with the same key and number."""
        path = f"/v1/deliveries/{_id(delivery_id, 'delivery_id')}/grant"
        return await self._http.call(
            "POST", path, Delivery, body=GrantAttempts(attempts=attempts), operation_key=operation_key
        )

    async def dial_worker(self, registration: WorkerRegistration) -> WorkerConnection:
        """Open a worker's session; close what it returns. Name lookup to welcome take at most eight seconds.

        Nothing is assigned before the first `capacity` is confirmed: `resume` what is under way first. Raises HTTPError
        when the upgrade is refused, WorkerError when the hello is, WorkerProtocolError when the other end does not
        speak `pulse.worker.v1`, TransportError without a connection, WorkerDisconnected (WorkerTimeout) when it ends
        before the welcome, InvalidRequest for a registration that breaks a rule. Cancelling leaves nothing open.
        """
        return await WorkerConnection.dial(self.open_channel, registration, self.limits)

    async def open_channel(self, path: str, subprotocol: str) -> Channel:
        """Dial a WebSocket, for the SDK's own connections; raises what `Channel.dial` raises."""
        return await Channel.dial(
            self._endpoint.websocket_url(path), self.credentials.token, subprotocol, limits=self.limits, tls=self._tls
        )


def _id(value: str, name: str) -> str:
    try:
        return parse_id(value, name)
    except InvalidValue as error:
        raise InvalidRequest(str(error)) from None


def _page(after: str | None, limit: int | None) -> dict[str, str]:
    query = {} if after is None else {"after": after}
    return query if limit is None else query | {"limit": str(limit)}


def _task(task_id: str) -> str:
    return f"/v1/tasks/{_id(task_id, 'task_id')}"


def _queue(queue_id: str) -> str:
    return f"/v1/queues/{_id(queue_id, 'queue_id')}"


def _subscription(subscription_id: str) -> str:
    return f"/v1/subscriptions/{_id(subscription_id, 'subscription_id')}"
