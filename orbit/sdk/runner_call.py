"""One call of a handler, async or sync: nothing that happens in it escapes, and how it ended is kept as a word."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
import traceback
from collections.abc import Callable
from typing import Final

from orbit.protocol.limits import Limits
from orbit.protocol.strict_json import Value
from orbit.sdk.handlers import (
    InvalidPayload,
    RegisteredHandler,
    StopReason,
    TaskContext,
    WorkerCancelled,
    WorkerFailure,
)
from orbit.sdk.runner_outcome import Broke, Code, Word, class_name, raised, returned
from orbit.sdk.runner_threads import Threads

TASK_NAME: Final = "orbit-handler"

_log = logging.getLogger(__name__)


class Call:
    """A handler that runs; made and used in the event loop."""

    def __init__(
        self,
        handler: RegisteredHandler,
        payload: Value,
        context: TaskContext,
        *,
        threads: Threads,
        limits: Limits,
        ended: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Call the handler at once; `ended` is called in the loop when it has ended."""
        self._handler = handler
        self._payload = payload
        self._context = context
        self._limits = limits
        self._clock = clock
        self._ended = ended
        self._task: asyncio.Task[None] | None = None
        self.word: Word | None = None
        """What it said, None until it has ended."""
        self.ended_at: float | None = None
        """When it ended, on the clock: before the loop heard of it."""
        if handler.is_async:
            name = f"{TASK_NAME} {handler} attempt {context.attempt_id}"
            self._task = asyncio.create_task(self._call_async(), name=name)
            self._task.add_done_callback(self._task_ended)
        else:
            loop = asyncio.get_running_loop()
            inside = contextvars.copy_context()
            threads.run(lambda: inside.run(self._call_sync, loop))

    @property
    def done(self) -> bool:
        """Whether the handler has ended."""
        return self.word is not None

    def stop(self, reason: StopReason) -> None:
        """Tell the handler to stop, through its context, and by a cancellation if it is async."""
        if not self.done:
            self._context.cancelled.set(reason)
            if self._task is not None:
                self._task.cancel()

    async def _call_async(self) -> None:
        # Nothing may get out: an exception would be nobody's, SystemExit would end the loop, and a cancellation that
        # somebody else meant is the handler's to pass on.
        try:
            value = await self._handler.function(*self._arguments())
        except BaseException as error:  # noqa: BLE001 - see above; what it means is decided in `raised`
            self._end(self._raised(error))
        else:
            self._end(returned(value, self._limits))

    def _call_sync(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            value = self._handler.function(*self._arguments())
        except BaseException as error:  # noqa: BLE001 - a thread has nobody to raise to
            self._end(self._raised(error))
        else:
            self._end(returned(value, self._limits))
        try:
            loop.call_soon_threadsafe(self._ended)
        except RuntimeError:  # the loop is closed: the runner ended without this handler
            _log.warning("handler %s: ended after its worker did", self._handler)

    def _arguments(self) -> tuple[object, ...]:
        return self._handler.arguments(self._payload, self._context)

    def _raised(self, error: BaseException) -> Word:
        if not isinstance(error, WorkerFailure | WorkerCancelled | InvalidPayload | asyncio.CancelledError):
            _log.warning(
                "handler %s: attempt %s raised %s at %s",
                self._handler,
                self._context.attempt_id,
                class_name(error),
                _where(error),
            )
        return raised(error, self._limits)

    def _end(self, word: Word) -> None:
        self.ended_at = self._clock()
        self.word = word

    def _task_ended(self, _: asyncio.Task[None]) -> None:
        if self.word is None:  # cancelled before its first step
            self._end(Broke(Code.HANDLER_CANCELLED))
        self._ended()


def _where(error: BaseException) -> str:
    """The line that raised, without the exception's text, which may quote the payload."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an unknown line"
