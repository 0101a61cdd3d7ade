"""HTTP to the platform. The only module that imports httpx, so that a maintained successor is a change in one place.

No redirects, no proxies or netrc from the environment, no cookies kept, no compression, no retries; every time and
size is bounded. The token travels in one header and appears in no URL, error or log.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Mapping
from typing import Final, TypeAlias, TypeVar

import httpx
import msgspec

from orbit.protocol import strict_json
from orbit.protocol.errors import InvalidJSON, InvalidValue
from orbit.protocol.http_v1 import to_json
from orbit.protocol.limits import Limits
from orbit.protocol.values import Secret, parse_key
from orbit.sdk.endpoint import Endpoint
from orbit.sdk.errors import (
    ERROR_BODY_BYTES,
    InvalidRequest,
    InvalidResponse,
    TransportError,
    http_error,
)

Transport: TypeAlias = httpx.AsyncBaseTransport
"""What carries the requests; tests pass `httpx.MockTransport` or `httpx.ASGITransport`."""

RESPONSE_BYTES: Final = 2 * 1024 * 1024
"""The largest answer that is read. A task with the largest payload and result needs less than half of it."""

CONNECTIONS: Final = 16
IDLE_CONNECTIONS: Final = 4
# Shorter than a server's own keep-alive (uvicorn: 5 s), so that no request is written to a connection that is closing.
IDLE_S: Final = 4.0
USER_AGENT: Final = "orbit-sdk"

# Raised before the first byte of a request is written.
_NOTHING_SENT: Final = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.ProxyError,
    httpx.UnsupportedProtocol,
    httpx.LocalProtocolError,
)

T = TypeVar("T")


class _NoHeaders(logging.Filter):
    """Drops httpcore's DEBUG records of headers, which may hold cookies or credentials."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "headers" not in str(record.msg)


_NO_HEADERS: Final = _NoHeaders()
for _name in ("httpcore.http11", "httpcore.http2", "httpcore.proxy"):
    logging.getLogger(_name).addFilter(_NO_HEADERS)


def check_operation_key(key: str) -> str:
    """Return an operation key of 1 to 128 visible ASCII characters; raise InvalidRequest for anything else."""
    try:
        return parse_key(key, "operation_key")
    except InvalidValue as error:
        raise InvalidRequest(str(error)) from None


class HTTP:
    """A pool of connections to one platform under one token. Open it in the event loop that uses it."""

    def __init__(
        self,
        endpoint: Endpoint,
        token: Secret,
        *,
        limits: Limits,
        tls: ssl.SSLContext | None = None,
        transport: Transport | None = None,
    ) -> None:
        self._limits = limits
        self._client = httpx.AsyncClient(
            base_url=endpoint.base_url,
            headers={
                "Accept": "application/json",
                "Accept-Encoding": "identity",
                "Authorization": f"Bearer {token.reveal()}",
                "User-Agent": USER_AGENT,
            },
            # Where every URL is http: a context that trusts nobody.
            verify=tls if tls is not None else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            trust_env=False,
            follow_redirects=False,
            timeout=httpx.Timeout(
                connect=limits.handshake_s, read=limits.control_s, write=limits.control_s, pool=limits.control_s
            ),
            limits=httpx.Limits(
                max_connections=CONNECTIONS, max_keepalive_connections=IDLE_CONNECTIONS, keepalive_expiry=IDLE_S
            ),
            transport=transport,
        )

    async def call(
        self,
        method: str,
        path: str,
        response: type[T],
        *,
        query: Mapping[str, str] | None = None,
        body: msgspec.Struct | None = None,
        operation_key: str | None = None,
    ) -> T:
        """Send one request, once, and return its answer.

        Raise InvalidRequest when the body is larger than a request may be, HTTPError for every status that is no
        success, a redirect included, InvalidResponse for a success that cannot be read, TransportError otherwise. The
        whole call takes at most `handshake_s` and twice `control_s` of the limits. Cancelling it leaves the outcome
        unknown and nothing behind.
        """
        content = None if body is None else to_json(body)
        if content is not None and len(content) > self._limits.request_body_bytes:
            raise InvalidRequest(f"body: is larger than {self._limits.request_body_bytes} bytes")
        headers = {}
        if content is not None:
            headers["Content-Type"] = "application/json"
        if operation_key is not None:
            headers["Idempotency-Key"] = check_operation_key(operation_key)
        status, answer = await self._exchange(method, path, query, content, headers)
        if not 200 <= status <= 299:
            raise http_error(status, answer)
        return _decode(answer, response, self._limits)

    async def close(self) -> None:
        """Close every connection; calls under way fail. Closing twice is harmless."""
        await self._client.aclose()

    async def _exchange(
        self, method: str, path: str, query: Mapping[str, str] | None, content: bytes | None, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        # httpx's errors hold the request and with it the token, so ours is raised when theirs is gone: `from None`
        # would still keep it as the context.
        failure: TransportError
        try:
            async with asyncio.timeout(self._limits.handshake_s + 2 * self._limits.control_s):
                request = self._client.build_request(method, path, params=query, content=content, headers=headers)
                answer = await self._client.send(request, stream=True)
                try:
                    return answer.status_code, await _read(answer)
                finally:
                    await answer.aclose()
        except TimeoutError:
            failure = TransportError("no answer in time", outcome_unknown=True)
        except _NOTHING_SENT as error:
            failure = TransportError(f"cannot connect ({type(error).__name__})", outcome_unknown=False)
        except (httpx.HTTPError, httpx.StreamError) as error:
            failure = TransportError(f"no answer ({type(error).__name__})", outcome_unknown=True)
        raise failure


async def _read(answer: httpx.Response) -> bytes:
    """Return the body. A refusal's is cut short of what cannot be the platform's; a success's must be whole."""
    success = answer.is_success
    if answer.headers.get("Content-Encoding", "identity") != "identity":
        # Nobody asked for it, and a few bytes may unpack to any number of them.
        if success:
            raise InvalidResponse("the answer is compressed")
        return b""
    limit = RESPONSE_BYTES if success else ERROR_BODY_BYTES
    body = bytearray()
    async for chunk in answer.aiter_bytes():
        body += chunk
        if len(body) > limit:
            if success:
                raise InvalidResponse(f"the answer is larger than {limit} bytes")
            return b""
    return bytes(body)


def _decode(answer: bytes, response: type[T], limits: Limits) -> T:
    try:
        strict_json.parse(answer, max_bytes=RESPONSE_BYTES, max_depth=limits.json_depth)
        return msgspec.json.decode(answer, type=response)
    except InvalidJSON:
        reason = "the answer is not strict JSON"
    except msgspec.ValidationError:
        reason = "the answer has another shape"
    raise InvalidResponse(reason)
