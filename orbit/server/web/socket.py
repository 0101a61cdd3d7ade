"""The socket loop: one WebSocket, one conversation, whatever the subprotocol.

What a subprotocol says is its `Vocabulary`, what it does is a `Service`; the loop moves frames between the two.

    reader    takes frames, checks them with `ServerSession`, queues requests
    answerer  answers the queued requests one after the other, in the order they came
    pusher    the service's own: sends what nobody asked for

All three belong to one TaskGroup; whichever ends first ends the conversation. Frames are written one at a time, and a
peer that does not read them holds up whoever wants to write: that is all the backpressure there is, and there are no
queues of frames. How a conversation ends, by close code (RFC 6455, section 7.4.1, and the IANA registry):

| code | because                                                                                |
| ---- | -------------------------------------------------------------------------------------- |
| 1002 | a frame broke the envelope's or the conversation's rules; an error frame said which    |
| 1003 | the message was binary                                                                 |
| 1007 | the text was no UTF-8 (uvicorn's)                                                      |
| 1008 | no hello, a refused hello, a peer that says or reads nothing for too long, or a worker |
|      | whose session was fenced by a newer one                                                |
| 1009 | the message was larger than `Limits.frame_bytes` (uvicorn's)                           |
| 1011 | an error of ours                                                                       |
| 1012 | the node is stopping (uvicorn's)                                                       |
| 1013 | the hello could not be answered, because the database was not available; try again     |
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from starlette.websockets import WebSocketDisconnect

from orbit.mysql.errors import CommitUnconfirmed, DatabaseError
from orbit.protocol import events_v1, worker_v1
from orbit.protocol.errors import ApiError, ErrorCode, ProtocolError
from orbit.protocol.session import Hello, Invalid, Requested, ServerSession
from orbit.protocol.values import new_id
from orbit.runtime.logs import get_logger
from orbit.server.services.access import Permission, require
from orbit.server.web.auth import caller_of
from orbit.server.web.consumer import Consumer
from orbit.server.web.errors import error_response, refusal
from orbit.server.web.worker import Worker

if TYPE_CHECKING:
    from starlette.websockets import WebSocket

    from orbit.protocol.limits import Limits
    from orbit.protocol.vocabulary import Body, Vocabulary
    from orbit.server.parts import Platform
    from orbit.server.services.access import Caller

Reply: TypeAlias = Callable[[Any], Awaitable[None]]
"""Sends the answer to one request, given its body."""
Push: TypeAlias = Callable[[str, Any], Awaitable[None]]
"""Sends a frame of a type with a body. Raises InvalidValue, and sends nothing, for a body that cannot be sent."""

OUTCOME_UNKNOWN: Final = "the database did not confirm it: the outcome is unknown; send the same content again"
NOT_DONE: Final = "the database is not available: nothing was changed; send it again"

REASON_MAX: Final = 120
"""Bytes of a close frame's reason (RFC 6455, section 5.5: 123); ours are ASCII."""

_log = get_logger(__name__)


class Service(Protocol):
    """What stands behind one connection.

    ApiError and DatabaseError are refusals of the request at hand; ApiError SESSION_FENCED ends the conversation.
    """

    async def greet(self, hello: Any) -> Body:
        """Check the hello and give the welcome."""
        ...

    async def serve(self, request: Requested, reply: Reply) -> None:
        """Do what is asked, then `reply`, once. Pushes that must precede or follow the reply are the service's care."""
        ...

    async def push_all(self, push: Push) -> None:
        """Push until cancelled. Starts after the welcome; the session refuses pushes before the first capacity."""
        ...


class _Ended(Exception):
    """The conversation is over. `code` None: the peer is gone, there is nobody to close."""

    def __init__(self, code: int | None, reason: str = "", error: ErrorCode | None = None) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason
        self.error = error


async def events_socket(websocket: WebSocket) -> None:
    """Serve `/v1/events`: `pulse.events.v1`."""
    await serve_socket(websocket, events_v1.VOCABULARY, (Permission.EVENTS_CONSUME,), Consumer)


async def workers_socket(websocket: WebSocket) -> None:
    """Serve `/v1/workers`: `pulse.worker.v1`."""
    permissions = Permission.WORKERS_CONNECT, Permission.WORKERS_CONSUME
    await serve_socket(websocket, worker_v1.VOCABULARY, permissions, Worker)


async def serve_socket(
    websocket: WebSocket,
    vocabulary: Vocabulary,
    permissions: Iterable[Permission],
    make_service: Callable[[Platform, Caller], Service],
) -> None:
    """Authenticate, upgrade and converse until either end ends it.

    Refusals before the upgrade are HTTP responses with the usual error body. Cancelling drops the connection.
    """
    platform: Platform = websocket.app.state.platform
    request_id = new_id()
    try:
        caller = await caller_of(websocket.headers, platform)
        for permission in permissions:
            require(caller, permission)
        if vocabulary.subprotocol not in websocket.scope["subprotocols"]:
            raise ApiError(ErrorCode.UNSUPPORTED_PROTOCOL, f"offer the WebSocket subprotocol {vocabulary.subprotocol}")
    except (ApiError, DatabaseError) as error:
        await websocket.send_denial_response(error_response(refusal(error, request_id), request_id))
        return
    await websocket.accept(subprotocol=vocabulary.subprotocol)
    session = ServerSession(vocabulary, platform.limits)
    await Conversation(websocket, session, make_service(platform, caller), platform.limits).run()


class Conversation:
    """One accepted WebSocket from hello to close."""

    def __init__(self, websocket: WebSocket, session: ServerSession, service: Service, limits: Limits) -> None:
        self._websocket = websocket
        self._session = session
        self._service = service
        self._limits = limits
        self._log = _log.bind(subprotocol=session.vocabulary.subprotocol)
        # Never full: the session lets no more requests than this be in flight.
        self._requests: asyncio.Queue[Requested | Invalid] = asyncio.Queue(limits.control_in_flight)
        self._writing = asyncio.Lock()

    async def run(self) -> None:
        """Converse until the end, then close. Raises nothing but a cancellation."""
        ended = await self._converse()
        self._log.info("conversation ended", close_code=ended.code, reason=ended.reason)
        try:
            if ended.code is not None:
                if ended.error is not None:
                    await self._write(partial(self._session.fatal, ended.error, ended.reason))
                async with asyncio.timeout(self._limits.control_s):
                    await self._websocket.close(ended.code, ended.reason[:REASON_MAX])
        except (_Ended, TimeoutError, WebSocketDisconnect):
            self._log.info("the peer did not take the end")
        finally:
            self._session.lost()

    async def _converse(self) -> _Ended:
        endings: list[_Ended] = []
        try:
            try:
                async with asyncio.TaskGroup() as group:
                    await self._greet()
                    group.create_task(self._answer_all(), name="answerer")
                    group.create_task(self._push_all(), name="pusher")
                    await self._read_all()
            except* _Ended as several:
                endings.extend(one for one in several.exceptions if isinstance(one, _Ended))
        except ExceptionGroup as failures:
            # Defects only: refusals and the database's failures were answered where they arose.
            self._log.error("conversation failed", exc_info=failures)
            return _Ended(1011, "internal error", ErrorCode.INTERNAL)
        return endings[0]

    async def _greet(self) -> None:
        try:
            async with asyncio.timeout(self._limits.handshake_s):
                hello = await self._read()
                if isinstance(hello, Invalid):
                    await self._refuse(hello.message_id, hello.code, hello.message)
                    raise _Ended(1008, "hello refused")
                assert isinstance(hello, Hello), "the session takes nothing else first"
                await self._welcome(hello)
        except TimeoutError:
            raise _Ended(1008, "no hello in time") from None

    async def _welcome(self, hello: Hello) -> None:
        try:
            body = await self._service.greet(hello.body)
        except (ApiError, DatabaseError) as error:
            refused = _refusal(error)
            await self._refuse(hello.message_id, refused.code, refused.message)
            raise _Ended(1013 if refused.code is ErrorCode.UNAVAILABLE else 1008, "hello refused") from None
        session_id = new_id()
        self._log = self._log.bind(session_id=session_id)
        await self._write(partial(self._session.welcome, session_id, hello.message_id, body))
        self._log.info("conversation began")

    async def _read_all(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._limits.read_idle_s):
                    request = await self._read()
            except TimeoutError:
                raise _Ended(1008, "idle") from None
            assert not isinstance(request, Hello), "the session takes one hello"
            self._requests.put_nowait(request)

    async def _read(self) -> Hello | Requested | Invalid:
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            raise _Ended(None, "disconnected")
        text = message.get("text")
        if text is None:
            raise _Ended(1003, "binary message")
        try:
            return self._session.receive(text.encode())
        except ProtocolError as error:
            raise _Ended(1002, str(error), ErrorCode.INVALID_ARGUMENT) from None

    async def _answer_all(self) -> None:
        while True:
            request = await self._requests.get()
            if isinstance(request, Invalid):
                await self._refuse(request.message_id, request.code, request.message)
                continue
            try:
                await self._service.serve(request, partial(self._reply, request.message_id))
            except (ApiError, DatabaseError) as error:
                _end_if_fenced(error)
                refused = _refusal(error)
                await self._refuse(request.message_id, refused.code, refused.message)

    async def _push_all(self) -> None:
        try:
            await self._service.push_all(self._push)
        except ApiError as error:
            _end_if_fenced(error)
            raise

    async def _reply(self, message_id: str, body: Body) -> None:
        await self._write(partial(self._session.reply, message_id, body))

    async def _refuse(self, message_id: str, code: ErrorCode, message: str) -> None:
        await self._write(partial(self._session.refuse, message_id, code, message))

    async def _push(self, name: str, body: Body) -> None:
        await self._write(partial(self._session.push, name, body, new_id()))

    async def _write(self, make: Callable[[], bytes]) -> None:
        """Make a frame and write it: in one piece, so that frames leave in the order in which the session made them."""
        async with self._writing:
            text = make().decode()
            try:
                async with asyncio.timeout(self._limits.control_s):
                    await self._websocket.send({"type": "websocket.send", "text": text})
            except TimeoutError:
                raise _Ended(1008, "the peer does not read") from None
            except WebSocketDisconnect:
                raise _Ended(None, "disconnected") from None


def _end_if_fenced(error: Exception) -> None:
    """A session that a newer one has taken the place of is over, whatever was asked of it."""
    if isinstance(error, ApiError) and error.code is ErrorCode.SESSION_FENCED:
        raise _Ended(1008, error.message, ErrorCode.SESSION_FENCED) from None


def _refusal(error: ApiError | DatabaseError) -> ApiError:
    """What the peer is told. Nobody guesses what became of an unconfirmed COMMIT: its content is to be sent again."""
    if isinstance(error, ApiError):
        return error
    _log.warning("request failed", error=type(error).__name__, errno=error.errno, kind=error.kind)
    unknown = isinstance(error, CommitUnconfirmed)
    if unknown or error.kind.passes:
        return ApiError(ErrorCode.UNAVAILABLE, OUTCOME_UNKNOWN if unknown else NOT_DONE)
    return ApiError(ErrorCode.INTERNAL, "an internal error; the server's log has more")
