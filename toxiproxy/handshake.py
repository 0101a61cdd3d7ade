"""The greeting and the login of a MySQL connection: what must be read, and what must be cleared. Sans I/O.

The proxy reads every packet, so neither TLS nor compression may begin: the greeting no longer offers them, and a
client that asks all the same is refused. Source: MySQL source documentation, "Connection Phase", "Capability Flags".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from toxiproxy.packets import Packet, ProtocolViolation, encode, length_encoded_int

CLIENT_COMPRESS: Final = 1 << 5
CLIENT_LOCAL_FILES: Final = 1 << 7
CLIENT_PROTOCOL_41: Final = 1 << 9
CLIENT_SSL: Final = 1 << 11
CLIENT_DEPRECATE_EOF: Final = 1 << 24
CLIENT_OPTIONAL_RESULTSET_METADATA: Final = 1 << 25
CLIENT_ZSTD_COMPRESSION_ALGORITHM: Final = 1 << 26
CLIENT_QUERY_ATTRIBUTES: Final = 1 << 27

NOT_OFFERED: Final = (
    CLIENT_SSL
    | CLIENT_COMPRESS
    | CLIENT_ZSTD_COMPRESSION_ALGORITHM
    | CLIENT_OPTIONAL_RESULTSET_METADATA
    | CLIENT_LOCAL_FILES
)
"""Capabilities that the greeting no longer offers: the proxy could not read what follows from them."""

_VERSION: Final = re.compile(rb"(\d+)\.(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class Greeting:
    """The server's greeting: who it is, and its bytes with the capabilities of NOT_OFFERED cleared."""

    thread_id: int
    server_version: int
    cleared: int
    raw: bytes


def read_greeting(packet: Packet) -> Greeting:
    """Read a protocol 10 greeting. Raises ProtocolViolation for any other."""
    payload = bytearray(packet.payload)
    end_of_version = payload.find(0, 1)
    lower = end_of_version + 1 + 4 + 8 + 1
    upper = lower + 2 + 1 + 2
    if not payload or payload[0] != 10 or end_of_version < 0 or len(payload) < upper + 2:
        raise ProtocolViolation("the greeting is not one of MySQL's protocol 10")
    version = _VERSION.match(payload, 1)
    if version is None:
        raise ProtocolViolation("the greeting names no server version")
    major, minor, patch = (int(part) for part in version.groups())
    thread_id = int.from_bytes(payload[end_of_version + 1 : end_of_version + 5], "little")
    offered = int.from_bytes(payload[lower : lower + 2] + payload[upper : upper + 2], "little")
    kept = (offered & ~NOT_OFFERED).to_bytes(4, "little")
    payload[lower : lower + 2] = kept[:2]
    payload[upper : upper + 2] = kept[2:]
    return Greeting(
        thread_id,
        major * 10000 + minor * 100 + patch,
        offered & NOT_OFFERED,
        encode(bytes(payload), packet.sequence),
    )


def read_capabilities(payload: bytes) -> int:
    """The capabilities that the client's first packet chooses. Raises ProtocolViolation."""
    if len(payload) < 4:
        raise ProtocolViolation("the client's handshake response is too short")
    return int.from_bytes(payload[:4], "little")


# Binary widths of the column types a query attribute may have; every other type is a length-encoded string.
_WIDTHS: Final = {0x01: 1, 0x02: 2, 0x03: 4, 0x04: 4, 0x05: 8, 0x06: 0, 0x08: 8, 0x09: 4, 0x0D: 2}
_TEMPORAL: Final = frozenset({0x07, 0x0A, 0x0B, 0x0C})


def skip_query_attributes(payload: bytes) -> int:
    """Where the text of a COM_QUERY begins when CLIENT_QUERY_ATTRIBUTES was agreed. Raises ProtocolViolation."""
    count, at = length_encoded_int(payload, 1)
    _, at = length_encoded_int(payload, at)
    if count == 0:
        return at
    nulls = payload[at : at + (count + 7) // 8]
    at += len(nulls) + 1
    kinds: list[int] = []
    for _ in range(count):
        kinds.append(payload[at] if at < len(payload) else 0)
        length, at = length_encoded_int(payload, at + 2)
        at += length
    for index, kind in enumerate(kinds):
        if nulls[index // 8] >> (index % 8) & 1:
            continue
        if kind in _TEMPORAL:
            at += 1 + (payload[at] if at < len(payload) else 0)
        elif kind in _WIDTHS:
            at += _WIDTHS[kind]
        else:
            length, at = length_encoded_int(payload, at)
            at += length
    if at > len(payload):
        raise ProtocolViolation("the query attributes are malformed")
    return at
