"""Logs on stderr: structlog through the standard library, so that libraries' records take the same way.

One line a record; JSON when the stream is no terminal. Nothing secret gets out by accident: members whose name says
that they hold a credential or a body are dropped, values that are not plain scalars appear as the name of their type,
and exceptions as classes and positions, without their texts (a database's text quotes the row it refused).
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import MutableMapping
from types import TracebackType
from typing import Any, Final, TextIO, TypeAlias

import structlog

DENIED: Final = ("token", "password", "secret", "proof", "result", "payload", "dsn", "authorization")
"""Words that, as a whole part of a member's name, keep that member out of every log."""

FRAMES: Final = 12
# These report each request at INFO, with its URL; the product's own lines say what happened.
_QUIET: Final = ("httpx", "httpcore", "websockets", "asyncio", "aiomysql", "alembic")

_FIRST: Final = ("timestamp", "level", "logger", "message")

_Record: TypeAlias = MutableMapping[str, Any]


def configure_logging(level: str = "INFO", stream: TextIO | None = None, *, json: bool | None = None) -> None:
    """Send all records of `level` and above to `stream` (default: stderr), as JSON unless it is a terminal.

    Replaces what was configured before; call it once, at the start of a process.
    """
    out = sys.stderr if stream is None else stream
    as_json = not out.isatty() if json is None else json
    common: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _describe_exception,
        _drop_bodies,
    ]
    renderer: list[Any] = [structlog.processors.EventRenamer("message"), _lead]
    if as_json:
        renderer.append(structlog.processors.JSONRenderer(ensure_ascii=False))
    else:
        renderer.append(structlog.dev.ConsoleRenderer(colors=False, event_key="message"))
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*common, _first_line],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(formatter)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.captureWarnings(True)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *common,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """The logger of a module; pass `__name__`. Facts go in as keyword arguments, the message is a fixed phrase."""
    return structlog.stdlib.get_logger(name)


def _lead(_logger: Any, _method: str, record: _Record) -> _Record:
    # What every line has comes first, so that lines can be read in a column.
    return {name: record.pop(name) for name in _FIRST if name in record} | dict(record)


def _drop_bodies(_logger: Any, _method: str, record: _Record) -> _Record:
    for name in list(record):
        if name.startswith("_"):
            continue
        if any(part in DENIED for part in name.lower().split("_")):
            del record[name]
        elif not isinstance(record[name], str | int | float | None):
            record[name] = f"<{type(record[name]).__name__}>"
    return record


def _first_line(_logger: Any, _method: str, record: _Record) -> _Record:
    # asyncio puts the repr of a task's exception, and with it the database's text, on the following lines.
    message = str(record.get("event", ""))
    record["event"] = message.splitlines()[0] if message else ""
    return record


def _describe_exception(_logger: Any, _method: str, record: _Record) -> _Record:
    given = record.pop("exc_info", None)
    if given is True:
        given = sys.exc_info()
    error = given[1] if isinstance(given, tuple) else given
    if not isinstance(error, BaseException):
        return record
    record["error"] = _classes(error)
    record["at"] = _positions(error.__traceback__)
    return record


def _classes(error: BaseException) -> str:
    names: list[str] = []
    current: BaseException | None = error
    while current is not None and len(names) < FRAMES:
        names.append(type(current).__name__)
        hidden = current.__suppress_context__
        current = current.__cause__ or (None if hidden else current.__context__)
    return " <- ".join(names)


def _positions(trace: TracebackType | None) -> str:
    frames = traceback.extract_tb(trace)[-FRAMES:]
    return " > ".join(f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno}:{frame.name}" for frame in frames)
