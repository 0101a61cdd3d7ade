"""From what a conversation raises to what a worker's caller is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from orbit.sdk.errors import (
    Disconnected,
    NoAnswer,
    NotSent,
    OrbitError,
    ProtocolMismatch,
    SessionRefused,
    WorkerBusy,
    WorkerDisconnected,
    WorkerError,
    WorkerProtocolError,
    WorkerTimeout,
)

UNACCEPTABLE: Final = frozenset({1002, 1003, 1007, 1009})
"""Close codes by which one end says that it cannot take what the other sent (RFC 6455 section 7.4.1)."""


def _disconnected(error: Disconnected) -> OrbitError:
    if error.close_code in UNACCEPTABLE:
        return WorkerProtocolError(str(error))
    return WorkerDisconnected(error.reason, error.close_code)


_OF: Final[Mapping[type[OrbitError], Callable[[Any], OrbitError]]] = MappingProxyType(
    {
        SessionRefused: lambda error: WorkerError(error.code),
        Disconnected: _disconnected,
        NoAnswer: lambda error: WorkerTimeout(error.reason),
        ProtocolMismatch: lambda error: WorkerProtocolError(str(error)),
        NotSent: lambda error: WorkerBusy(str(error)),
    }
)


def worker_error(error: OrbitError) -> OrbitError:
    """Return the worker's error for a conversation's; any other, a worker's own included, is returned as it is."""
    make = _OF.get(type(error))
    return error if make is None else make(error)


def lost(error: OrbitError) -> OrbitError:
    """Return the error for a request that had no answer when its connection ended with `error`.

    A session that the platform ended is no refusal of the request, which may have been carried out.
    """
    if isinstance(error, SessionRefused):
        return WorkerDisconnected(f"the platform ended the session: {error.code}")
    return worker_error(error)
