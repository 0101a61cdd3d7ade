"""The WebSocket relay in front of a real server (uvicorn, as the product has it), with httpx and websockets."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, ConnectionClosedError, InvalidStatus

from toxiproxy import (
    CutAtFrame,
    DropFrame,
    End,
    FrameRelay,
    HoldFrame,
    Point,
    RefuseConnect,
    UnfiredFault,
    UnrecognisedTraffic,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request
    from starlette.websockets import WebSocket

DEADLINE_S: Final = 10.0


async def echo(request: Request) -> PlainTextResponse:
    body = await request.body()
    return PlainTextResponse(f"{request.url.path} {request.headers.get('authorization')} {len(body)}")


async def talk(socket: WebSocket) -> None:
    """Say what the handshake brought, then answer each message with an ack that names it."""
    if socket.headers.get("authorization") != "Bearer t":
        await socket.close(1008)
        return
    await socket.accept(subprotocol=socket.scope["subprotocols"][0])
    welcome = {"type": "welcome", "path": socket.url.path, "extensions": socket.headers.get("sec-websocket-extensions")}
    await socket.send_text(json.dumps(welcome))
    number = 0
    async for text in socket.iter_text():
        number += 1
        message = json.loads(text)
        if message["type"] == "bye":
            await socket.close(4000)
            return
        answer = {"type": "ack", "message_id": f"s{number}", "reply_to": message["message_id"]}
        await socket.send_text(json.dumps(answer | {"size": len(text)}))


@pytest.fixture(scope="module")
async def upstream() -> AsyncIterator[int]:
    """The port of a server with an HTTP route and a WebSocket."""
    app = Starlette(routes=[Route("/echo", echo, methods=["POST"]), WebSocketRoute("/v1/talk", talk)])
    server = uvicorn.Server(uvicorn.Config(app, ws="websockets-sansio", log_level="critical", lifespan="off"))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        async with asyncio.timeout(DEADLINE_S):
            while not server.started:
                await asyncio.sleep(0.01)
        yield port
        server.should_exit = True
        await serving


@asynccontextmanager
async def talking(relay: FrameRelay, **options: Any) -> AsyncIterator[ClientConnection]:
    """A WebSocket through the relay that has been welcomed."""
    async with connect(
        relay.url.replace("http://", "ws://") + "/v1/talk",
        additional_headers={"Authorization": "Bearer t"},
        subprotocols=["talk.v1"],  # type: ignore[list-item]  # - the library's NewType of str
        proxy=None,
        ping_interval=None,
        close_timeout=1,
        **options,
    ) as client:
        assert json.loads(await client.recv())["type"] == "welcome"
        yield client


async def say(client: ClientConnection, kind: str, message_id: str) -> None:
    await client.send(json.dumps({"type": kind, "message_id": message_id}))


async def hear(client: ClientConnection) -> str:
    """What the next message answers."""
    message = json.loads(await asyncio.wait_for(client.recv(), DEADLINE_S))
    return str(message["reply_to"])


async def test_ordinary_requests_pass_and_keep_their_connection(upstream: int) -> None:
    async with FrameRelay("127.0.0.1", upstream) as relay, httpx.AsyncClient(base_url=relay.url) as client:
        for size in (3, 300_000):
            answer = await client.post("/echo", content=b"x" * size, headers={"Authorization": "Bearer t"})
            assert answer.text == f"/echo Bearer t {size}"
        assert [(e.connection, e.command) for e in relay.journal.at(Point.HTTP)] == [(1, "POST")]


async def test_a_websocket_passes_with_its_headers_and_without_compression(upstream: int) -> None:
    async with FrameRelay("127.0.0.1", upstream) as relay:
        async with connect(
            relay.url.replace("http://", "ws://") + "/v1/talk",
            additional_headers={"Authorization": "Bearer t"},
            subprotocols=["talk.v1"],  # type: ignore[list-item]  # - the library's NewType of str
            compression="deflate",
            proxy=None,
        ) as client:
            assert client.subprotocol == "talk.v1"
            assert json.loads(await client.recv()) == {"type": "welcome", "path": "/v1/talk", "extensions": None}
            await say(client, "event.ack", "c1")
            assert await hear(client) == "c1"
        (upgrade,) = relay.journal.at(Point.UPGRADE)
        assert upgrade.command == "talk.v1"
        frames = [(e.point, e.command) for e in relay.journal.at(Point.CLIENT_FRAME, Point.SERVER_FRAME)]
        assert frames[:3] == [
            (Point.SERVER_FRAME, "welcome"),
            (Point.CLIENT_FRAME, "event.ack"),
            (Point.SERVER_FRAME, "ack"),
        ]
        assert (Point.CLIENT_FRAME, "(close)") in frames


async def test_a_refused_upgrade_passes(upstream: int) -> None:
    async with FrameRelay("127.0.0.1", upstream) as relay:
        with pytest.raises(InvalidStatus) as refused:
            await connect(relay.url.replace("http://", "ws://") + "/v1/talk", proxy=None)
        assert refused.value.response.status_code == 403


@pytest.mark.parametrize("size", [1, 200, 100_000, 500_000])
async def test_messages_of_every_size_pass(upstream: int, size: int) -> None:
    async with FrameRelay("127.0.0.1", upstream) as relay, talking(relay) as client:
        text = json.dumps({"type": "big", "message_id": "c1", "fill": "x" * size})
        await client.send(text)
        answer = json.loads(await client.recv())
        assert answer["size"] == len(text)


async def test_one_server_frame_is_dropped_and_the_rest_passes(upstream: int) -> None:
    async with FrameRelay("127.0.0.1", upstream) as relay, talking(relay) as client:
        armed = relay.drop("ack", nth=2)
        for name in ("c1", "c2", "c3"):
            await say(client, "event.ack", name)
        assert [await hear(client), await hear(client)] == ["c1", "c3"]
        entry = await armed.wait(DEADLINE_S)
        assert (entry.point, entry.command, entry.fired) == (Point.SERVER_FRAME, "ack", "DropFrame")


async def test_the_answer_to_one_kind_of_message_is_dropped(upstream: int) -> None:
    async with FrameRelay("127.0.0.1", upstream) as relay, talking(relay) as client:
        armed = relay.drop("ack", answers="event.ack")
        for kind, name in (("consumer.capacity", "c1"), ("event.ack", "c2"), ("event.release", "c3")):
            await say(client, kind, name)
        assert [await hear(client), await hear(client)] == ["c1", "c3"]
        assert armed.fired


async def test_a_client_frame_is_dropped(upstream: int) -> None:
    async with FrameRelay("127.0.0.1", upstream) as relay, talking(relay) as client:
        relay.arm(DropFrame("event.ack", "client"))
        await say(client, "event.ack", "c1")
        await say(client, "event.ack", "c2")
        assert await hear(client) == "c2"


async def test_a_fragmented_message_is_one_message(upstream: int) -> None:
    async with FrameRelay("127.0.0.1", upstream) as relay, talking(relay) as client:
        relay.drop("event.ack", direction="client")
        await client.send(iter(['{"type":"event', '.ack","message_id":"c1"}']))
        await client.send(iter(['{"type":"oth', 'er","message_id":"c2"}']))
        assert await hear(client) == "c2"


@pytest.mark.parametrize("end", [End.FIN, End.RST])
async def test_the_connection_is_cut_before_a_frame(upstream: int, end: End) -> None:
    async with FrameRelay("127.0.0.1", upstream) as relay, talking(relay) as client:
        armed = relay.arm(CutAtFrame("ack", end=end))
        await say(client, "event.ack", "c1")
        with pytest.raises(ConnectionClosedError):
            await asyncio.wait_for(client.recv(), DEADLINE_S)
        assert armed.fired
        await relay.journal.wait_for(lambda e: e.point is Point.SERVER_CLOSED, DEADLINE_S)


@pytest.mark.parametrize("end", [End.FIN, End.RST])
async def test_the_connection_is_cut_after_a_frame(upstream: int, end: End) -> None:
    async with FrameRelay("127.0.0.1", upstream) as relay, talking(relay) as client:
        relay.arm(CutAtFrame("ack", when="after", end=end))
        await say(client, "event.ack", "c1")
        assert await hear(client) == "c1"
        with pytest.raises(ConnectionClosedError):
            await asyncio.wait_for(client.recv(), DEADLINE_S)


async def test_a_client_frame_may_be_the_last_that_arrives(upstream: int) -> None:
    async with FrameRelay("127.0.0.1", upstream) as relay, talking(relay) as client:
        relay.arm(CutAtFrame("event.ack", "client", when="after"))
        await say(client, "event.ack", "c1")
        with pytest.raises(ConnectionClosedError):
            await asyncio.wait_for(client.recv(), DEADLINE_S)


async def test_silence_keeps_the_connection_and_delivers_nothing(upstream: int) -> None:
    async with FrameRelay("127.0.0.1", upstream) as relay, talking(relay) as client:
        armed = relay.arm(CutAtFrame("ack", end=End.SILENCE))
        await say(client, "event.ack", "c1")
        await armed.wait(DEADLINE_S)
        pong = asyncio.ensure_future(await client.ping())
        receiving = asyncio.create_task(client.recv())
        async with talking(relay) as other:
            await say(other, "event.ack", "c1")
            assert await hear(other) == "c1"
        assert not receiving.done()
        assert not pong.done()
        client.transport.abort()
        await asyncio.wait([receiving])
        assert isinstance(receiving.exception(), ConnectionClosed)
        await asyncio.wait([pong])
        assert isinstance(pong.exception(), ConnectionClosed)


async def test_a_held_frame_holds_what_follows_and_is_delivered(upstream: int) -> None:
    release = asyncio.Event()
    async with FrameRelay("127.0.0.1", upstream) as relay, talking(relay) as client:
        armed = relay.arm(HoldFrame("ack", until=release, answers="first"))
        await say(client, "first", "c1")
        await say(client, "second", "c2")
        await armed.wait(DEADLINE_S)
        assert not armed.finished
        receiving = asyncio.create_task(client.recv())
        async with talking(relay) as other:
            await say(other, "second", "c1")
            assert await hear(other) == "c1"
        assert not receiving.done()
        release.set()
        assert json.loads(await receiving)["reply_to"] == "c1"
        assert await hear(client) == "c2"
        await armed.wait_finished(DEADLINE_S)
        assert len(relay.journal.at(Point.RELEASED)) == 1


async def test_the_end_of_the_server_reaches_the_client(upstream: int) -> None:
    async with FrameRelay("127.0.0.1", upstream) as relay, talking(relay) as client:
        await say(client, "bye", "c1")
        with pytest.raises(ConnectionClosedError) as closed:
            await asyncio.wait_for(client.recv(), DEADLINE_S)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 4000


async def test_a_refused_connect_is_one_connect(upstream: int) -> None:
    async with FrameRelay("127.0.0.1", upstream) as relay, httpx.AsyncClient(base_url=relay.url) as client:
        relay.arm(RefuseConnect())
        with pytest.raises(httpx.TransportError):
            await client.post("/echo")
        assert (await client.post("/echo")).status_code == 200


async def test_an_upstream_that_is_not_there_is_a_broken_connection() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        async with (
            FrameRelay("127.0.0.1", unused.getsockname()[1]) as relay,
            httpx.AsyncClient(base_url=relay.url) as client,
        ):
            with pytest.raises(httpx.TransportError):
                await client.post("/echo")
            assert len(relay.journal.at(Point.UPSTREAM_REFUSED)) == 1


async def test_an_unfired_fault_fails_the_run(upstream: int) -> None:
    relay = FrameRelay("127.0.0.1", upstream)
    await relay.__aenter__()
    relay.drop("ack", nth=2)
    async with talking(relay) as client:
        await say(client, "event.ack", "c1")
        assert await hear(client) == "c1"
    with pytest.raises(UnfiredFault, match=r"DropFrame \(matched 1 of 2\)"):
        await relay.__aexit__(None, None, None)


async def test_what_is_no_frame_fails_the_run(upstream: int) -> None:
    relay = FrameRelay("127.0.0.1", upstream)
    await relay.__aenter__()
    async with talking(relay) as client:
        client.transport.write(b"\xff\xff")
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(client.recv(), DEADLINE_S)
    with pytest.raises(UnrecognisedTraffic, match="malformed"):
        await relay.__aexit__(None, None, None)
