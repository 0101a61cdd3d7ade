"""The MySQL packet reader: every split of the stream, long packets, sequence numbers."""

from __future__ import annotations

import pytest

from toxiproxy.packets import PacketReader, ProtocolViolation, encode, error_packet, length_encoded_int

# Written by hand: an OK packet (sequence 1) and a COM_QUERY of COMMIT (sequence 0).
OK = bytes.fromhex("0700000100000000000000")
COMMIT = bytes.fromhex("0700000003434f4d4d4954")


@pytest.mark.parametrize("size", range(1, 23))
def test_packets_are_the_same_for_every_size_of_the_pieces(size: int) -> None:
    stream = OK + COMMIT
    reader = PacketReader()
    packets = [p for at in range(0, len(stream), size) for p in reader.feed(stream[at : at + size])]
    assert [(p.sequence, p.payload, p.raw) for p in packets] == [(1, bytes(7), OK), (0, b"\x03COMMIT", COMMIT)]


def test_a_packet_of_exactly_the_largest_length_ends_with_an_empty_one() -> None:
    full = b"x" * 0xFFFFFF
    reader = PacketReader()
    assert reader.feed(b"\xff\xff\xff\x05" + full) == []
    (packet,) = reader.feed(b"\x00\x00\x00\x06")
    assert packet.sequence == 5
    assert packet.payload == full
    assert packet.raw == b"\xff\xff\xff\x05" + full + b"\x00\x00\x00\x06"


def test_a_continued_packet_is_one_payload() -> None:
    reader = PacketReader()
    (packet,) = reader.feed(b"\xff\xff\xff\xff" + b"a" * 0xFFFFFF + b"\x02\x00\x00\x00bc" + OK[:3])
    assert packet.sequence == 255
    assert packet.payload == b"a" * 0xFFFFFF + b"bc"
    assert [p.raw for p in reader.feed(OK[3:])] == [OK]


def test_an_empty_packet_is_a_packet() -> None:
    (packet,) = PacketReader().feed(b"\x00\x00\x00\x03")
    assert (packet.sequence, packet.payload) == (3, b"")


def test_a_packet_beyond_the_bound_is_refused_before_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toxiproxy.packets.MAX_PAYLOAD", 10)
    assert len(PacketReader().feed(b"\x0a\x00\x00\x00" + bytes(10))) == 1
    with pytest.raises(ProtocolViolation):
        PacketReader().feed(b"\x0b\x00\x00\x00")


@pytest.mark.parametrize(
    ("payload", "sequence", "wire"),
    [
        (b"", 0, b"\x00\x00\x00\x00"),
        (b"abc", 7, b"\x03\x00\x00\x07abc"),
        (b"y" * 0xFFFFFF, 255, b"\xff\xff\xff\xff" + b"y" * 0xFFFFFF + b"\x00\x00\x00\x00"),
    ],
    ids=["empty", "short", "full"],
)
def test_a_payload_is_written_as_mysql_writes_it(payload: bytes, sequence: int, wire: bytes) -> None:
    assert encode(payload, sequence) == wire


def test_an_error_packet_has_number_state_and_message() -> None:
    assert error_packet(1180, "HY000", "no", 1) == bytes.fromhex("0b000001ff9c042348593030306e6f")


@pytest.mark.parametrize(
    ("data", "value", "after"),
    [
        (b"\x00", 0, 1),
        (b"\xfa", 250, 1),
        (b"\xfc\x01\x02", 513, 3),
        (b"\xfd\x01\x00\x02", 131073, 4),
        (b"\xfe\x01\x00\x00\x00\x00\x00\x00\x80", 2**63 + 1, 9),
    ],
)
def test_length_encoded_integers(data: bytes, value: int, after: int) -> None:
    assert length_encoded_int(data, 0) == (value, after)


@pytest.mark.parametrize("data", [b"", b"\xfb", b"\xff", b"\xfc\x01", b"\xfd\x01\x02", b"\xfe" + bytes(7)])
def test_what_is_no_length_encoded_integer_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        length_encoded_int(data, 0)
