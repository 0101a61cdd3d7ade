"""The phases of a connection and the table that moves between them.

GREETING --welcome--> READY --first capacity confirmed--> OPEN --ended--> CLOSED
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class Phase(StrEnum):
    """How far a connection has got."""

    GREETING = "GREETING"
    READY = "READY"
    OPEN = "OPEN"
    CLOSED = "CLOSED"


class Kind(StrEnum):
    """What a frame means for the phase."""

    HELLO = "hello"
    WELCOME = "welcome"
    REQUEST = "request"
    CONFIRMATION = "confirmation"  # the ack of a capacity
    ACK = "ack"
    REFUSAL = "refusal"  # an error that answers a request
    PUSH = "push"
    FATAL = "fatal"  # an error that answers no request, or the hello


TRANSITIONS: Final[Mapping[Phase, Mapping[Kind, Phase]]] = MappingProxyType(
    {
        Phase.GREETING: {
            Kind.HELLO: Phase.GREETING,
            Kind.WELCOME: Phase.READY,
            Kind.FATAL: Phase.CLOSED,
        },
        Phase.READY: {
            Kind.REQUEST: Phase.READY,
            Kind.CONFIRMATION: Phase.OPEN,
            Kind.ACK: Phase.READY,
            Kind.REFUSAL: Phase.READY,
            Kind.FATAL: Phase.CLOSED,
        },
        Phase.OPEN: {
            Kind.REQUEST: Phase.OPEN,
            Kind.CONFIRMATION: Phase.OPEN,
            Kind.ACK: Phase.OPEN,
            Kind.REFUSAL: Phase.OPEN,
            Kind.PUSH: Phase.OPEN,
            Kind.FATAL: Phase.CLOSED,
        },
        Phase.CLOSED: {},
    }
)
"""The next phase for every kind of frame a phase allows. Losing the connection leads to CLOSED from everywhere."""
