"""The Python SDK of Orbit: a client of its HTTP interface and a consumer of its events.

    async with OrbitClient.from_environment(os.environ) as client:
        consumer = EventConsumer(client, subscription_id, handler)
        await consumer.run()

It imports no database driver and nothing of the platform. docs/sdk.md explains the guarantees.
"""

from __future__ import annotations

from orbit.sdk.book import ConsumerCounts
from orbit.sdk.client import OrbitClient
from orbit.sdk.consumer import EventConsumer
from orbit.sdk.credentials import Credentials
from orbit.sdk.errors import (
    Disconnected,
    HTTPError,
    InvalidConfiguration,
    InvalidRequest,
    InvalidResponse,
    OrbitError,
    ProtocolMismatch,
    Refused,
    SessionRefused,
    TransportError,
    Unavailable,
    WrongQueue,
)
from orbit.sdk.handling import Delivery, Handler, InvalidDelivery

__all__ = [
    "ConsumerCounts",
    "Credentials",
    "Delivery",
    "Disconnected",
    "EventConsumer",
    "HTTPError",
    "Handler",
    "InvalidConfiguration",
    "InvalidDelivery",
    "InvalidRequest",
    "InvalidResponse",
    "OrbitClient",
    "OrbitError",
    "ProtocolMismatch",
    "Refused",
    "SessionRefused",
    "TransportError",
    "Unavailable",
    "WrongQueue",
]
