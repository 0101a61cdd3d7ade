"""The Python SDK of Orbit: a client of its HTTP interface, a consumer of its events, a connection for workers.

    async with OrbitClient.from_environment(os.environ) as client:
        consumer = EventConsumer(client, subscription_id, handler)
        await consumer.run()

        registration = new_worker_registration(queue_id, 4, [Capability(handler="text.normalize", ...)])
        async with await client.dial_worker(registration) as connection:
            assignment = await connection.next_assignment()

It imports no database driver and nothing of the platform. docs/sdk.md explains the guarantees.
"""

from __future__ import annotations

from orbit.protocol.assignment_v1 import AssignedTask, Assignment, Cancellation
from orbit.protocol.attempt_v1 import Attempt, AttemptState, Disposition, Finish, Outcome, Receipt
from orbit.protocol.worker_v1 import Capability, Welcome
from orbit.sdk.book import ConsumerCounts
from orbit.sdk.client import OrbitClient
from orbit.sdk.consumer import EventConsumer
from orbit.sdk.credentials import Credentials
from orbit.sdk.errors import (
    Disconnected,
    DuplicateMessage,
    HTTPError,
    InvalidConfiguration,
    InvalidRequest,
    InvalidResponse,
    NoAnswer,
    NotSent,
    OrbitError,
    ProtocolMismatch,
    Refused,
    SessionRefused,
    TransportError,
    Unavailable,
    WorkerBackpressure,
    WorkerBusy,
    WorkerClosed,
    WorkerDisconnected,
    WorkerError,
    WorkerProtocolError,
    WorkerTimeout,
    WrongQueue,
)
from orbit.sdk.handlers import Cancelled, StopReason, TaskContext, WorkerCancelled, WorkerFailure
from orbit.sdk.handling import Delivery, Handler, InvalidDelivery
from orbit.sdk.runner import WorkerRunner
from orbit.sdk.runner_counts import RunnerCounts
from orbit.sdk.runner_health import Health
from orbit.sdk.worker import WorkerConnection, WorkerRegistration, new_worker_message_id, new_worker_registration
from orbit.sdk.worker_lease import WorkerLease, WorkerResult

__all__ = [
    "AssignedTask",
    "Assignment",
    "Attempt",
    "AttemptState",
    "Cancellation",
    "Cancelled",
    "Capability",
    "ConsumerCounts",
    "Credentials",
    "Delivery",
    "Disconnected",
    "Disposition",
    "DuplicateMessage",
    "EventConsumer",
    "Finish",
    "HTTPError",
    "Handler",
    "Health",
    "InvalidConfiguration",
    "InvalidDelivery",
    "InvalidRequest",
    "InvalidResponse",
    "NoAnswer",
    "NotSent",
    "OrbitClient",
    "OrbitError",
    "Outcome",
    "ProtocolMismatch",
    "Receipt",
    "Refused",
    "RunnerCounts",
    "SessionRefused",
    "StopReason",
    "TaskContext",
    "TransportError",
    "Unavailable",
    "Welcome",
    "WorkerBackpressure",
    "WorkerBusy",
    "WorkerCancelled",
    "WorkerClosed",
    "WorkerConnection",
    "WorkerDisconnected",
    "WorkerError",
    "WorkerFailure",
    "WorkerLease",
    "WorkerProtocolError",
    "WorkerRegistration",
    "WorkerResult",
    "WorkerRunner",
    "WorkerTimeout",
    "WrongQueue",
    "new_worker_message_id",
    "new_worker_registration",
]
