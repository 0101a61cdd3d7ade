"""HTTP without a network: what is sent, what is accepted, what an error says about the request's fate."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import msgspec
import pytest

from orbit.protocol.limits import Limits
from orbit.protocol.values import Secret
from orbit.sdk.endpoint import Endpoint
from orbit.sdk.errors import HTTPError, InvalidRequest, InvalidResponse, OrbitError, TransportError
from orbit.sdk.http import HTTP, RESPONSE_BYTES, check_operation_key

TOKEN = "orbit_canary_5e1d2c3b5a69788796a5b4c3d2e1f002"


class Thing(msgspec.Struct):
    name: str


class Body(msgspec.Struct):
    text: str


def http_over(answer: Callable[[httpx.Request], httpx.Response], **limits: Any) -> HTTP:
    return HTTP(
        Endpoint.parse("https://orbit.example/base"),
        Secret(TOKEN),
        limits=Limits(**limits),
        transport=httpx.MockTransport(answer),
    )


async def get(answer: Callable[[httpx.Request], httpx.Response]) -> Thing:
    return await http_over(answer).call("GET", "/v1/things", Thing)


async def test_a_request_carries_the_token_in_one_header_and_nowhere_else() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"name": "a", "newer": True})

    http = http_over(answer)
    thing = await http.call("POST", "/v1/things", Thing, query={"after": "x y"}, body=Body("ä"), operation_key="key-1")
    await http.close()
    assert thing == Thing("a")
    [request] = seen
    assert (request.method, str(request.url)) == ("POST", "https://orbit.example/base/v1/things?after=x+y")
    assert request.content == '{"text":"ä"}'.encode()
    headers = dict(request.headers)
    assert headers.pop("authorization") == f"Bearer {TOKEN}"
    assert headers == {
        "host": "orbit.example",
        "accept": "application/json",
        "accept-encoding": "identity",
        "connection": "keep-alive",
        "content-length": "13",
        "content-type": "application/json",
        "idempotency-key": "key-1",
        "user-agent": "orbit-sdk",
    }
    assert TOKEN not in str(request.url)


async def test_a_request_without_body_or_key_has_neither_header() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert "content-type" not in request.headers
        assert "idempotency-key" not in request.headers
        return httpx.Response(200, json={"name": "a"})

    assert await get(answer) == Thing("a")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(status: int) -> None:
    calls: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        calls.append(str(request.url))
        return httpx.Response(status, headers={"Location": "https://elsewhere.example/"})

    with pytest.raises(HTTPError) as caught:
        await get(answer)
    assert caught.value.status == status
    assert len(calls) == 1


@pytest.mark.parametrize("status", [400, 401, 404, 409, 500, 503])
async def test_a_refusal_is_raised_once_and_nothing_is_retried(status: int) -> None:
    calls = 0

    def answer(_: httpx.Request) -> httpx.Response:
        nonlocal calls
        calls += 1
        return httpx.Response(status, json={"code": "SOME_CODE", "message": "m", "request_id": "r"})

    with pytest.raises(HTTPError) as caught:
        await get(answer)
    assert (caught.value.status, caught.value.code, calls) == (status, "SOME_CODE", 1)


@pytest.mark.parametrize(
    ("failure", "outcome_unknown"),
    [
        (httpx.ConnectError, False),
        (httpx.ConnectTimeout, False),
        (httpx.PoolTimeout, False),
        (httpx.ProxyError, False),
        (httpx.UnsupportedProtocol, False),
        (httpx.LocalProtocolError, False),
        (httpx.ReadTimeout, True),
        (httpx.WriteTimeout, True),
        (httpx.ReadError, True),
        (httpx.WriteError, True),
        (httpx.CloseError, True),
        (httpx.RemoteProtocolError, True),
        (httpx.DecodingError, True),
    ],
)
async def test_a_lost_request_says_whether_it_may_have_been_carried_out(
    failure: type[httpx.RequestError], outcome_unknown: bool
) -> None:
    calls = 0

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal calls
        calls += 1
        raise failure(f"with {request.headers}", request=request)

    with pytest.raises(TransportError) as caught:
        await get(answer)
    assert (caught.value.outcome_unknown, calls) == (outcome_unknown, 1)
    assert failure.__name__ in str(caught.value)
    # The library's error holds the request and with it the token.
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


async def test_the_whole_call_has_a_deadline() -> None:
    async def stall(_: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    http = HTTP(
        Endpoint.parse("https://orbit.example"),
        Secret(TOKEN),
        limits=Limits(handshake_s=0.02, control_s=0.02),
        transport=httpx.MockTransport(stall),
    )
    with pytest.raises(TransportError) as caught:
        await http.call("POST", "/v1/things", Thing)
    assert caught.value.outcome_unknown
    assert str(caught.value) == "no answer in time; the outcome is unknown"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "strict JSON"),
        (b"<html></html>", "strict JSON"),
        (b'{"name":"a","name":"b"}', "strict JSON"),
        (b'{"name":"\\ud800"}', "strict JSON"),
        (b'{"name":"a","x":NaN}', "strict JSON"),
        (b'{"name":"a","x":' + b"[" * 40 + b"]" * 40 + b"}", "strict JSON"),
        (b'{"name":"\xff"}', "strict JSON"),
        (b'{"name":1}', "another shape"),
        (b"[]", "another shape"),
        (b"null", "another shape"),
    ],
)
async def test_a_success_that_cannot_be_read_leaves_the_outcome_unknown(content: bytes, reason: str) -> None:
    with pytest.raises(InvalidResponse) as caught:
        await get(lambda _: httpx.Response(200, content=content))
    assert reason in str(caught.value)
    assert caught.value.outcome_unknown


@pytest.mark.parametrize("status", [200, 404])
async def test_an_answer_is_read_up_to_its_bound_only(status: int) -> None:
    taken = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal taken
        while True:
            taken += 65_536
            yield b"x" * 65_536

    with pytest.raises(OrbitError) as caught:
        await get(lambda _: httpx.Response(status, content=endless()))
    assert isinstance(caught.value, InvalidResponse if status == 200 else HTTPError)
    assert taken <= RESPONSE_BYTES + 65_536


async def test_a_compressed_answer_is_not_unpacked() -> None:
    async def packed() -> AsyncIterator[bytes]:
        yield b"\x1f\x8b"

    headers = {"Content-Encoding": "gzip"}
    with pytest.raises(InvalidResponse, match="compressed"):
        await get(lambda _: httpx.Response(200, headers=headers, content=packed()))
    with pytest.raises(HTTPError) as caught:
        await get(lambda _: httpx.Response(403, headers=headers, content=packed()))
    assert (caught.value.status, caught.value.code) == (403, None)


async def test_the_largest_answer_fits() -> None:
    content = json.dumps({"name": "x" * (RESPONSE_BYTES - 11)}, separators=(",", ":"))
    assert len(content) == 2 * 1024 * 1024
    assert len((await get(lambda _: httpx.Response(200, content=content))).name) == RESPONSE_BYTES - 11


async def test_a_body_over_the_limit_is_not_sent() -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        raise AssertionError("it was sent")

    with pytest.raises(InvalidRequest, match="larger than 100 bytes"):
        await http_over(answer, request_body_bytes=100).call("POST", "/v1/things", Thing, body=Body("x" * 100))


@pytest.mark.parametrize("key", ["", "a b", "ä", "a\n", "x" * 129])
async def test_a_bad_operation_key_is_not_sent(key: str) -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        raise AssertionError("it was sent")

    with pytest.raises(InvalidRequest, match="operation_key"):
        await http_over(answer).call("POST", "/v1/things", Thing, operation_key=key)


def test_keys_of_visible_ascii_are_accepted() -> None:
    assert check_operation_key("!" + "~" * 127) == "!" + "~" * 127


async def test_the_environment_brings_no_proxy_and_no_credentials(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login someone password else\n")
    monkeypatch.setenv("NETRC", str(netrc))
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    requests: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 12\r\nConnection: close\r\n\r\n{"name":"a"}')
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        http = HTTP(Endpoint.parse(f"http://127.0.0.1:{port}"), Secret(TOKEN), limits=Limits())
        assert await http.call("GET", "/v1/things", Thing) == Thing("a")
        await http.close()
    [request] = requests
    assert request.startswith(b"GET /v1/things HTTP/1.1\r\n")
    assert request.lower().count(b"authorization:") == 1
    assert f"Authorization: Bearer {TOKEN}".encode() in request


async def test_the_library_logs_no_header_at_any_level(caplog: pytest.LogCaptureFixture) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 200 OK\r\nSet-Cookie: canary-cookie\r\nContent-Length: 12\r\n"
            b'Connection: close\r\n\r\n{"name":"a"}'
        )
        await writer.drain()
        writer.close()

    for name in ("httpx", "httpcore", "httpcore.http11", "httpcore.connection"):
        caplog.set_level(logging.DEBUG, logger=name)
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        http = HTTP(Endpoint.parse(f"http://127.0.0.1:{port}"), Secret(TOKEN), limits=Limits())
        await http.call("GET", "/v1/things", Thing)
        await http.close()
    assert "connect_tcp.started" in caplog.text  # the level was really on
    assert "canary-cookie" not in caplog.text
    assert TOKEN not in caplog.text
