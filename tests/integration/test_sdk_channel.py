"""The SDK's one WebSocket, against servers that are late, rude, large or gone; and TLS, for it and for HTTP."""

from __future__ import annotations

import asyncio
import datetime
import http
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from orbit.protocol.limits import Limits
from orbit.protocol.values import Secret
from orbit.sdk import Credentials, OrbitClient
from orbit.sdk.channel import Channel
from orbit.sdk.errors import Disconnected, HTTPError, ProtocolMismatch, TransportError

TOKEN = Secret("orbit_canary_6e1d2c3b5a69788796a5b4c3d2e1f003")
NAME = "pulse.events.v1"
WAIT_S = 20.0


async def _echo(socket: ServerConnection) -> None:
    async for message in socket:
        await socket.send(message)


@asynccontextmanager
async def server(handler: Callable[[ServerConnection], Any] = _echo, **options: Any) -> AsyncIterator[int]:
    """A WebSocket server; gives its port."""
    options.setdefault("subprotocols", [Subprotocol(NAME)])
    async with serve(handler, "127.0.0.1", 0, close_timeout=0.2, **options) as running:
        yield next(iter(running.sockets)).getsockname()[1]


@asynccontextmanager
async def raw(answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]) -> AsyncIterator[int]:
    """A TCP server that says what the test wants; gives its port."""

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        finally:
            writer.close()

    running = await asyncio.start_server(serve_one, "127.0.0.1", 0)
    try:
        yield running.sockets[0].getsockname()[1]
    finally:
        running.close()


async def dial(port: int, *, scheme: str = "ws", tls: ssl.SSLContext | None = None, **limits: Any) -> Channel:
    host = "127.0.0.1" if scheme == "ws" else "localhost"
    return await Channel.dial(f"{scheme}://{host}:{port}/v1/events", TOKEN, NAME, limits=Limits(**limits), tls=tls)


async def test_text_goes_both_ways_byte_for_byte() -> None:
    async with server() as port:
        channel = await dial(port)
        text = '{"a":"äöü 中文 \\u0000"}'.encode()
        await channel.send(text)
        assert await channel.receive() == text
        await channel.close()
        await channel.close()


async def test_the_upgrade_offers_the_subprotocol_the_token_and_nothing_else() -> None:
    seen: list[Request] = []

    def look(_: ServerConnection, request: Request) -> None:
        seen.append(request)

    async with server(process_request=look) as port:
        await (await dial(port)).close()
    [request] = seen
    assert request.path == "/v1/events"
    assert request.headers["Authorization"] == f"Bearer {TOKEN.reveal()}"
    assert request.headers["Sec-WebSocket-Protocol"] == NAME
    assert request.headers["User-Agent"] == "orbit-sdk"
    assert "Sec-WebSocket-Extensions" not in request.headers


@pytest.mark.parametrize("status", [401, 403, 404, 426, 429, 500, 503])
async def test_a_refused_upgrade_is_an_http_error_with_the_platforms_code(status: int) -> None:
    content = b'{"code":"SOME_CODE","message":"m","request_id":"r-7"}'

    def refuse(_: ServerConnection, __: Request) -> Response:
        headers = Headers({"Content-Length": str(len(content)), "Connection": "close"})
        return Response(status, http.HTTPStatus(status).phrase, headers, content)

    async with server(process_request=refuse) as port:
        with pytest.raises(HTTPError) as caught:
            await dial(port)
    assert (caught.value.status, caught.value.code, caught.value.request_id) == (status, "SOME_CODE", "r-7")
    assert caught.value.__context__ is None


async def test_a_redirect_is_not_followed_and_the_token_does_not_travel_on() -> None:
    elsewhere: list[bytes] = []

    async def other(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        elsewhere.append(await reader.read(100))

    async with raw(other) as target:

        def redirect(_: ServerConnection, __: Request) -> Response:
            headers = Headers({"Location": f"ws://127.0.0.1:{target}/v1/events", "Content-Length": "0"})
            return Response(307, "Temporary Redirect", headers)

        async with server(process_request=redirect) as port:
            with pytest.raises(HTTPError) as caught:
                await dial(port)
    assert caught.value.status == 307
    assert elsewhere == []


async def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "WS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    async with server() as port:
        await (await dial(port)).close()


async def test_a_server_without_the_subprotocol_is_a_mismatch() -> None:
    async with server(subprotocols=None) as port:
        with pytest.raises(ProtocolMismatch, match="no subprotocol"):
            await dial(port)


async def test_a_server_that_selects_another_subprotocol_is_a_mismatch() -> None:
    def other(_: ServerConnection, __: Any) -> Subprotocol:
        return Subprotocol("pulse.events.v2")

    async with server(subprotocols=None, select_subprotocol=other) as port:
        with pytest.raises(ProtocolMismatch, match="upgrade failed"):
            await dial(port)


async def test_no_server_is_a_transport_error_and_nothing_was_sent() -> None:
    async with server() as port:
        pass
    with pytest.raises(TransportError) as caught:
        await dial(port)
    assert not caught.value.outcome_unknown
    assert caught.value.temporary


async def test_a_server_that_closes_during_the_upgrade_is_a_transport_error() -> None:
    async def hang_up(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

    async with raw(hang_up) as port:
        with pytest.raises(TransportError) as caught:
            await dial(port)
    assert caught.value.temporary


async def test_a_server_that_never_answers_the_upgrade_is_given_up() -> None:
    async def stall(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async with raw(stall) as port:
        with pytest.raises(TransportError, match="no connection in time"):
            await asyncio.wait_for(dial(port, handshake_s=0.2), WAIT_S)


async def test_cancelling_the_dial_leaves_no_connection() -> None:
    arrived, gone = asyncio.Event(), asyncio.Event()

    async def stall(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        arrived.set()
        with suppress(ConnectionResetError):
            await reader.read()
        gone.set()

    async with raw(stall) as port:
        dialling = asyncio.create_task(dial(port))
        await asyncio.wait_for(arrived.wait(), WAIT_S)
        dialling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await dialling
        await asyncio.wait_for(gone.wait(), WAIT_S)


async def test_a_message_over_the_frame_limit_closes_with_1009() -> None:
    closed: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    async def flood(socket: ServerConnection) -> None:
        await socket.send("x" * 1_001)
        await socket.wait_closed()
        closed.set_result(socket.close_code)

    async with server(flood) as port:
        channel = await dial(port, frame_bytes=1_000)
        with pytest.raises(Disconnected) as caught:
            await channel.receive()
        assert (caught.value.close_code, str(caught.value)) == (1009, "closed by this end (close code 1009)")
        assert await asyncio.wait_for(closed, WAIT_S) == 1009


async def test_a_message_of_exactly_the_frame_limit_passes_in_one_piece_or_in_many() -> None:
    async def pieces() -> AsyncIterator[str]:
        for _ in range(10):
            yield "y" * 100

    async def say(socket: ServerConnection) -> None:
        await socket.send("x" * 1_000)
        await socket.send(pieces())
        await socket.wait_closed()

    async with server(say) as port:
        channel = await dial(port, frame_bytes=1_000)
        assert await channel.receive() == b"x" * 1_000
        assert await channel.receive() == b"y" * 1_000
        await channel.close()


async def test_text_that_is_no_utf8_closes_with_1007() -> None:
    async def say(socket: ServerConnection) -> None:
        await socket.send(b"\xff\xfe", text=True)
        await socket.wait_closed()

    async with server(say) as port:
        with pytest.raises(Disconnected) as caught:
            await (await dial(port)).receive()
        assert caught.value.close_code == 1007


async def test_a_silent_link_is_given_up_after_the_idle_time() -> None:
    async def say_nothing(socket: ServerConnection) -> None:
        await socket.wait_closed()

    async with server(say_nothing) as port:
        channel = await dial(port, read_idle_s=0.1)
        with pytest.raises(Disconnected, match="nothing came for too long"):
            await asyncio.wait_for(channel.receive(), WAIT_S)


async def test_pings_do_not_count_as_messages() -> None:
    async def ping_only(socket: ServerConnection) -> None:
        while True:
            await asyncio.wait_for(await socket.ping(), WAIT_S)

    async with server(ping_only) as port:
        channel = await dial(port, read_idle_s=0.2)
        with pytest.raises(Disconnected, match="nothing came for too long"):
            await asyncio.wait_for(channel.receive(), WAIT_S)


async def test_a_peer_that_does_not_read_is_given_up_after_the_control_time() -> None:
    ended = asyncio.Event()

    async def upgrade_then_stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        key = next(line.split(": ")[1] for line in head.split("\r\n") if line.lower().startswith("sec-websocket-key"))
        from websockets.utils import accept_key  # noqa: PLC0415 - only here

        writer.write(
            (
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                f"Sec-WebSocket-Accept: {accept_key(key)}\r\nSec-WebSocket-Protocol: {NAME}\r\n\r\n"
            ).encode()
        )
        await writer.drain()
        await ended.wait()

    async with raw(upgrade_then_stall) as port:
        channel = await dial(port, control_s=0.2)

        async def flood() -> None:
            while True:
                await channel.send(b"x" * 400_000)

        with pytest.raises(Disconnected, match="does not read"):
            await asyncio.wait_for(flood(), WAIT_S)
        ended.set()


async def test_the_other_ends_close_code_is_kept_and_its_reason_is_not() -> None:
    async def leave(socket: ServerConnection) -> None:
        await socket.close(1012, "canary reason")

    async with server(leave) as port:
        channel = await dial(port)
        with pytest.raises(Disconnected) as caught:
            await channel.receive()
        assert caught.value.close_code == 1012
        assert "canary" not in repr(caught.value) + str(caught.value)
        with pytest.raises(Disconnected):
            await channel.send(b"{}")


async def test_a_connection_cut_without_a_close_has_no_code() -> None:
    async def cut(socket: ServerConnection) -> None:
        socket.transport.abort()

    async with server(cut) as port:
        channel = await dial(port)
        with pytest.raises(Disconnected, match="the connection was lost") as caught:
            await channel.receive()
        assert caught.value.close_code is None


async def test_closing_is_bounded_when_the_other_end_does_not_answer() -> None:
    async def ignore(socket: ServerConnection) -> None:
        socket.transport.pause_reading()
        await asyncio.wait_for(socket.wait_closed(), WAIT_S)

    async with server(ignore) as port:
        channel = await dial(port)
        await asyncio.wait_for(channel.close(), WAIT_S)


class Authority:
    """A certificate for localhost that signs itself."""

    def __init__(self, folder: Path) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
        now = datetime.datetime.now(datetime.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        self.certificate = folder / "certificate.pem"
        self.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        secret = folder / "key.pem"
        secret.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        self.server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.server.load_cert_chain(self.certificate, secret)

    def trusted(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.certificate)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def test_a_certificate_that_nobody_trusts_gets_no_token(authority: Authority) -> None:
    requests: list[Request] = []

    def look(_: ServerConnection, request: Request) -> None:
        requests.append(request)

    async with server(process_request=look, ssl=authority.server) as port:
        with pytest.raises(TransportError) as dialled:
            await dial(port, scheme="wss", tls=ssl.create_default_context())
        async with OrbitClient(f"https://localhost:{port}", Credentials(queue_id="a" * 32, token=TOKEN)) as client:
            with pytest.raises(TransportError) as called:
                await client.get_task("b" * 32)
    assert not dialled.value.outcome_unknown
    assert not called.value.outcome_unknown
    assert requests == []


async def test_a_certificate_for_another_name_gets_no_token(authority: Authority) -> None:
    async with server(ssl=authority.server) as port:
        client = OrbitClient(
            f"https://127.0.0.1:{port}", Credentials(queue_id="a" * 32, token=TOKEN), tls=authority.trusted()
        )
        async with client:
            with pytest.raises(TransportError):
                await client.get_task("b" * 32)
            with pytest.raises(TransportError):
                await client.open_channel("/v1/events", NAME)


async def test_a_trusted_certificate_is_accepted_by_both(authority: Authority) -> None:
    def answer(_: ServerConnection, request: Request) -> Response | None:
        if "Upgrade" in request.headers:
            return None
        return Response(404, "Not Found", Headers({"Content-Length": "0", "Connection": "close"}))

    async with server(process_request=answer, ssl=authority.server) as port:
        credentials = Credentials(queue_id="a" * 32, token=TOKEN)
        async with OrbitClient(f"https://localhost:{port}", credentials, tls=authority.trusted()) as client:
            with pytest.raises(HTTPError) as caught:
                await client.get_task("b" * 32)
            assert caught.value.status == 404
            channel = await client.open_channel("/v1/events", NAME)
            await channel.send(b"{}")
            assert await channel.receive() == b"{}"
            await channel.close()
