"""The vocabulary of errors."""

from __future__ import annotations

import pickle

import pytest

from orbit.protocol.errors import HTTP_STATUS, ApiError, ErrorCode, InvalidJSON, InvalidValue, ProtocolError
from orbit.protocol.frame import parse_code


def test_every_code_has_one_status() -> None:
    assert set(HTTP_STATUS) == set(ErrorCode)
    assert {int(code) for code in HTTP_STATUS.values()} <= {400, 401, 403, 404, 405, 409, 413, 415, 426, 429, 500, 503}


def test_every_code_is_one_the_wire_can_carry() -> None:
    for code in ErrorCode:
        assert code.value == code.name
        assert parse_code(code.value, "p") == code


@pytest.mark.parametrize("code", ["", "not_found", "A" * 65, "A-B", "1A", "_A", "A\n", None, 404, ["A"]])
def test_what_is_no_code(code: object) -> None:
    with pytest.raises(InvalidValue):
        parse_code(code, "p")


def test_what_errors_say() -> None:
    assert str(InvalidJSON(7, "not UTF-8")) == "invalid JSON at byte 7: not UTF-8"
    assert str(InvalidValue("body.epoch", "is required")) == "body.epoch: is required"
    assert str(ApiError(ErrorCode.NOT_FOUND, "no such task")) == "NOT_FOUND: no such task"
    assert issubclass(InvalidJSON, ProtocolError)
    assert issubclass(InvalidValue, ProtocolError)
    assert not issubclass(ApiError, ProtocolError)


def test_errors_survive_pickling() -> None:
    """Process pools and test runners pickle exceptions."""
    for error in (InvalidJSON(7, "r"), InvalidValue("p", "r"), ApiError(ErrorCode.NOT_FOUND, "m")):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again)) == (type(error), str(error))
