"""Everything that is logged, at DEBUG and by anybody, to be searched for what must not be in it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


class Everything(logging.Handler):
    """Keeps every record of every logger, formatted with its traceback, and its arguments' reprs."""

    def __init__(self) -> None:
        super().__init__(logging.NOTSET)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.name} {self.format(record)} {record.__dict__!r}")


@contextmanager
def everything_logged() -> Iterator[Everything]:
    """Turn every logger to DEBUG, but the fake peer's own, which is the server's end."""
    handler = Everything()
    loggers = [logging.getLogger()] + [
        logging.getLogger(name) for name in logging.root.manager.loggerDict if name != "fake-orbit"
    ]
    before = [(logger, logger.level, logger.disabled) for logger in loggers]
    logging.getLogger().addHandler(handler)
    for logger in loggers:
        logger.setLevel(logging.DEBUG)
        logger.disabled = False
    try:
        yield handler
    finally:
        logging.getLogger().removeHandler(handler)
        for logger, level, disabled in before:
            logger.setLevel(level)
            logger.disabled = disabled
