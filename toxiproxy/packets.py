"""MySQL packets, sans I/O: bytes in, whole packets out.

A packet on the wire is a 3-byte little-endian length, a 1-byte sequence number and that many bytes; a length of
0xFFFFFF says that the next packet continues this one, so an exact multiple ends with an empty packet.
Source: MySQL source documentation, "MySQL Packets".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_HEADER: Final = 4
_FULL: Final = 0xFFFFFF
MAX_PAYLOAD: Final = 256 * 1024 * 1024
"""Largest logical packet that is held in memory; four times MySQL's default max_allowed_packet."""


class ProtocolViolation(Exception):
    """The byte stream is not one this package understands. The message never quotes the bytes."""


@dataclass(frozen=True, slots=True)
class Packet:
    """One logical packet: the sequence number of its first wire packet, its payload, and its bytes on the wire."""

    sequence: int
    payload: bytes
    raw: bytes


class PacketReader:
    """Cut one direction of a connection into logical packets."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._parts: list[bytes] = []
        self._raw: list[bytes] = []
        self._size = 0
        self._sequence = 0

    def feed(self, data: bytes) -> list[Packet]:
        """Take the next bytes; return the packets they complete.

        Raises ProtocolViolation for a packet larger than MAX_PAYLOAD.
        """
        self._buffer += data
        packets: list[Packet] = []
        start = 0
        while len(self._buffer) - start >= _HEADER:
            length = int.from_bytes(self._buffer[start : start + 3], "little")
            end = start + _HEADER + length
            if self._size + length > MAX_PAYLOAD:
                raise ProtocolViolation(f"a packet is larger than {MAX_PAYLOAD} bytes")
            if len(self._buffer) < end:
                break
            if not self._parts:
                self._sequence = self._buffer[start + 3]
            self._raw.append(bytes(self._buffer[start:end]))
            self._parts.append(self._raw[-1][_HEADER:])
            self._size += length
            start = end
            if length < _FULL:
                packets.append(Packet(self._sequence, b"".join(self._parts), b"".join(self._raw)))
                self._parts, self._raw, self._size = [], [], 0
        del self._buffer[:start]
        return packets


def encode(payload: bytes, sequence: int) -> bytes:
    """The wire form of a payload; `sequence` is that of its first wire packet and wraps at 255."""
    wire = bytearray()
    for start in range(0, len(payload) + 1, _FULL):
        part = payload[start : start + _FULL]
        wire += len(part).to_bytes(3, "little") + bytes([sequence & 0xFF]) + part
        sequence += 1
    return bytes(wire)


def error_packet(errno: int, sqlstate: str, message: str, sequence: int) -> bytes:
    """The wire form of an ERR packet. `sqlstate` has five characters."""
    payload = b"\xff" + errno.to_bytes(2, "little") + b"#" + sqlstate.encode("ascii") + message.encode("utf-8")
    return encode(payload, sequence)


def length_encoded_int(data: bytes, at: int) -> tuple[int, int]:
    """Read a length-encoded integer at an offset; return it and the offset behind it.

    Raises ProtocolViolation when the data end too early or the first byte is no length.
    """
    if at >= len(data):
        raise ProtocolViolation("a length-encoded integer is missing")
    first = data[at]
    if first < 0xFB:
        return first, at + 1
    width = {0xFC: 2, 0xFD: 3, 0xFE: 8}.get(first)
    if width is None or at + 1 + width > len(data):
        raise ProtocolViolation("a length-encoded integer is malformed")
    return int.from_bytes(data[at + 1 : at + 1 + width], "little"), at + 1 + width
