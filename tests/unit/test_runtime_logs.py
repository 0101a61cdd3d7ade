"""Logs: one JSON line a record, and nothing secret in it whoever writes it."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from orbit.runtime.logs import configure_logging, get_logger


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    """Give the process back the logging that pytest had set up."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    logging.captureWarnings(False)
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


def written(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_record_is_one_json_object_with_its_facts() -> None:
    stream = io.StringIO()
    configure_logging(stream=stream)
    get_logger("receiver.consume").info("event applied", event_id="ab", task_version=3, duplicate=False)
    (record,) = written(stream)
    assert list(record)[:4] == ["timestamp", "level", "logger", "message"]
    assert record.pop("timestamp").endswith("Z")
    assert record == {
        "message": "event applied",
        "level": "info",
        "logger": "receiver.consume",
        "event_id": "ab",
        "task_version": 3,
        "duplicate": False,
    }


def test_a_terminal_gets_plain_lines_without_colour() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    configure_logging(stream=stream)
    get_logger("x").warning("paused", reason="outage")
    assert "paused" in stream.getvalue()
    assert "reason=outage" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize(
    "name", ["token", "orbit_token", "password", "secret", "lease_secret", "result", "payload", "dsn"]
)
def test_members_that_hold_a_credential_or_a_body_are_dropped(name: str) -> None:
    stream = io.StringIO()
    configure_logging(stream=stream)
    get_logger("x").info("said", **{name: "hidden-value"})
    assert "hidden-value" not in stream.getvalue()
    assert len(written(stream)) == 1


@pytest.mark.parametrize(
    "value", [b"hidden-value", {"a": "hidden-value"}, ["hidden-value"], ValueError("hidden-value")]
)
def test_values_that_are_not_scalar_appear_as_their_type(value: object) -> None:
    stream = io.StringIO()
    configure_logging(stream=stream)
    get_logger("x").info("said", thing=value)
    assert "hidden-value" not in stream.getvalue()
    assert written(stream)[0]["thing"] == f"<{type(value).__name__}>"


def test_an_object_given_as_the_message_appears_as_its_type() -> None:
    stream = io.StringIO()
    configure_logging(stream=stream)
    get_logger("x").info({"result": "hidden-value"})  # type: ignore[arg-type]  # the mistake this is about
    assert written(stream)[0]["message"] == "<dict>"


def test_an_exception_is_logged_as_classes_and_positions_without_texts() -> None:
    stream = io.StringIO()
    configure_logging(stream=stream)
    try:
        try:
            raise KeyError("hidden-value")
        except KeyError as error:
            raise ValueError("hidden-value") from error
    except ValueError:
        get_logger("x").exception("failed")
    assert "hidden-value" not in stream.getvalue()
    (record,) = written(stream)
    assert record["error"] == "ValueError <- KeyError"
    assert record["at"].startswith("test_runtime_logs.py:")
    assert record["at"].endswith(":test_an_exception_is_logged_as_classes_and_positions_without_texts")


def test_a_library_record_takes_the_same_way() -> None:
    stream = io.StringIO()
    configure_logging(stream=stream)
    try:
        raise ValueError("hidden-value")
    except ValueError:
        logging.getLogger("asyncio").exception("Task exception was never retrieved\nfuture: hidden-value")
    logging.getLogger("some.library").info("took %d ms", 3)
    assert "hidden-value" not in stream.getvalue()
    first, second = written(stream)
    assert (first["message"], first["error"]) == ("Task exception was never retrieved", "ValueError")
    assert (second["message"], second["logger"]) == ("took 3 ms", "some.library")


def test_levels_below_the_chosen_one_and_request_lines_of_libraries_are_left_out() -> None:
    stream = io.StringIO()
    configure_logging("INFO", stream=stream)
    get_logger("x").debug("detail")
    logging.getLogger("httpx").info("HTTP Request: GET http://127.0.0.1/")
    assert stream.getvalue() == ""
