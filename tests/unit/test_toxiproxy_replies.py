"""Where an answer ends, and which status it carries: hand-written packets of every kind of answer."""

from __future__ import annotations

import pytest

from toxiproxy.packets import ProtocolViolation
from toxiproxy.replies import Com, ReplyReader, Result

OK = b"\x00\x00\x00\x02\x00\x00\x00"  # autocommit
OK_IN_TRANS = b"\x00\x01\x00\x01\x00\x00\x00"
OK_MORE = b"\x00\x00\x00\x08\x00\x00\x00"
ERR = b"\xff\x15\x04#28000no"  # 1045
COLUMN = b"\x03def\x00\x00\x00\x01a\x00\x0c\x3f\x00\x01\x00\x00\x00\x08\x81\x00\x00\x00\x00"
EOF = b"\xfe\x00\x00\x02\x00"
EOF_IN_TRANS = b"\xfe\x00\x00\x01\x00"
EOF_MORE = b"\xfe\x00\x00\x0a\x00"
EOF_CURSOR = b"\xfe\x00\x00\x42\x00"
OK_AS_EOF = b"\xfe\x00\x00\x01\x00\x00\x00"
OK_AS_EOF_MORE = b"\xfe\x00\x00\x08\x00\x00\x00"
ROW = b"\x011"
NULL_ROW = b"\xfb"


def follow(command: Com, packets: list[bytes], *, deprecate_eof: bool = False) -> list[Result | None]:
    reader = ReplyReader(command, deprecate_eof=deprecate_eof)
    return [reader.feed(packet) for packet in packets]


@pytest.mark.parametrize(
    ("packet", "result"),
    [
        (OK, Result(status=2, errno=None, last=True)),
        (OK_IN_TRANS, Result(status=1, errno=None, last=True)),
        (ERR, Result(status=None, errno=1045, last=True)),
        (b"\x00\xfc\x10\x27\xfd\x01\x00\x01\x03\x00\x00\x00more text", Result(status=3, errno=None, last=True)),
    ],
    ids=["ok", "in transaction", "error", "wide counts and session state"],
)
def test_an_answer_of_one_packet(packet: bytes, result: Result) -> None:
    assert follow(Com.QUERY, [packet]) == [result]


def test_a_result_set_with_eof_packets() -> None:
    results = follow(Com.QUERY, [b"\x02", COLUMN, COLUMN, EOF, ROW, NULL_ROW, EOF_IN_TRANS])
    assert results == [None] * 6 + [Result(status=1, errno=None, last=True)]


def test_a_result_set_without_eof_packets() -> None:
    results = follow(Com.QUERY, [b"\x01", COLUMN, ROW, OK_AS_EOF], deprecate_eof=True)
    assert results == [None] * 3 + [Result(status=1, errno=None, last=True)]


def test_a_result_set_without_rows() -> None:
    assert follow(Com.QUERY, [b"\x01", COLUMN, EOF, EOF])[-1] == Result(status=2, errno=None, last=True)
    assert follow(Com.QUERY, [b"\x01", COLUMN, OK_AS_EOF], deprecate_eof=True)[-1] == Result(1, None, last=True)


def test_an_error_may_end_the_rows() -> None:
    assert follow(Com.QUERY, [b"\x01", COLUMN, EOF, ROW, ERR])[-1] == Result(None, 1045, last=True)


def test_a_row_that_starts_like_the_end_is_a_row() -> None:
    long_row = b"\xfe" + (2**24).to_bytes(8, "little") + b"x"
    assert follow(Com.QUERY, [b"\x01", COLUMN, EOF, long_row, EOF])[-2:] == [None, Result(2, None, last=True)]
    # Without EOF packets only the length tells: the end may carry text, a row of this kind has 2^24 bytes.
    huge_row = b"\xfe" + (2**24).to_bytes(8, "little") + bytes(2**24)
    results = follow(Com.QUERY, [b"\x01", COLUMN, huge_row, OK_AS_EOF], deprecate_eof=True)
    assert results[-2:] == [None, Result(1, None, last=True)]


def test_the_end_of_the_rows_may_carry_text() -> None:
    end = b"\xfe\x00\x00\x01\x40\x00\x00" + b"\x0csession state"
    assert follow(Com.QUERY, [b"\x01", COLUMN, ROW, end], deprecate_eof=True)[-1] == Result(0x4001, None, last=True)


def test_several_results_end_with_the_one_that_says_so() -> None:
    packets = [OK_MORE, b"\x01", COLUMN, EOF, ROW, EOF_MORE, OK_IN_TRANS]
    results = [r for r in follow(Com.QUERY, packets) if r is not None]
    assert results == [Result(8, None, last=False), Result(10, None, last=False), Result(1, None, last=True)]


def test_an_error_among_several_results_ends_them() -> None:
    assert follow(Com.QUERY, [OK_MORE, ERR])[-1] == Result(None, 1045, last=True)


@pytest.mark.parametrize(
    ("columns", "parameters", "deprecate_eof", "rest"),
    [
        (0, 0, False, []),
        (0, 2, False, [COLUMN, COLUMN, EOF]),
        (1, 2, False, [COLUMN, COLUMN, EOF, COLUMN, EOF]),
        (1, 2, True, [COLUMN, COLUMN, COLUMN]),
    ],
)
def test_a_prepared_statement(columns: int, parameters: int, deprecate_eof: bool, rest: list[bytes]) -> None:
    first = b"\x00\x01\x00\x00\x00" + columns.to_bytes(2, "little") + parameters.to_bytes(2, "little") + b"\x00\x00\x00"
    results = follow(Com.STMT_PREPARE, [first, *rest], deprecate_eof=deprecate_eof)
    assert results == [None] * len(rest) + [Result(status=None, errno=None, last=True)]


def test_a_statement_that_cannot_be_prepared() -> None:
    assert follow(Com.STMT_PREPARE, [ERR]) == [Result(None, 1045, last=True)]


def test_a_cursor_sends_no_rows_with_the_columns() -> None:
    assert follow(Com.STMT_EXECUTE, [b"\x01", COLUMN, EOF_CURSOR])[-1] == Result(0x42, None, last=True)


def test_fetched_rows_come_without_columns() -> None:
    assert follow(Com.STMT_FETCH, [b"\x00\x00\x01", EOF]) == [None, Result(2, None, last=True)]


def test_statistics_is_one_packet_of_text() -> None:
    assert follow(Com.STATISTICS, [b"Uptime: 1"]) == [Result(None, None, last=True)]


@pytest.mark.parametrize(
    ("command", "packets"),
    [
        (Com.QUERY, [b""]),
        (Com.QUERY, [b"\xfb/etc/passwd"]),
        (Com.QUERY, [b"\x00\x00"]),
        (Com.QUERY, [b"\x00\x00\x00\x01"]),
        (Com.QUERY, [b"\xff\x15"]),
        (Com.QUERY, [b"\x01", COLUMN, ROW]),
        (Com.QUERY, [b"\x01", COLUMN, b"\xfe\x00"]),
        (Com.STMT_PREPARE, [b"\x00\x01\x00"]),
        (Com.STMT_PREPARE, [COLUMN]),
    ],
)
def test_what_no_server_may_answer_is_refused(command: Com, packets: list[bytes]) -> None:
    with pytest.raises(ProtocolViolation):
        follow(command, packets)
