"""Where the SDK connects to, and where it refuses to send a token."""

from __future__ import annotations

import ssl

import pytest

from orbit.sdk.endpoint import Endpoint, is_loopback, tls_context
from orbit.sdk.errors import InvalidConfiguration


@pytest.mark.parametrize(
    ("url", "base", "websocket"),
    [
        ("https://orbit.example", "https://orbit.example", "wss://orbit.example/v1/events"),
        ("https://orbit.example:8443/", "https://orbit.example:8443", "wss://orbit.example:8443/v1/events"),
        ("https://orbit.example/team/a/", "https://orbit.example/team/a", "wss://orbit.example/team/a/v1/events"),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080", "ws://127.0.0.1:8080/v1/events"),
        ("http://127.1.2.3", "http://127.1.2.3", "ws://127.1.2.3/v1/events"),
        ("http://[::1]:8080", "http://[::1]:8080", "ws://[::1]:8080/v1/events"),
        ("http://localhost", "http://localhost", "ws://localhost/v1/events"),
    ],
)
def test_a_url_gives_both_addresses(url: str, base: str, websocket: str) -> None:
    endpoint = Endpoint.parse(url)
    assert endpoint.base_url == base
    assert endpoint.websocket_url("/v1/events") == websocket
    assert endpoint.encrypted == url.startswith("https")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://orbit.example", "loopback"),
        ("http://10.0.0.1", "loopback"),
        ("http://128.0.0.1", "loopback"),
        ("http://localhost.example", "loopback"),
        ("http://[::2]", "loopback"),
        ("ws://127.0.0.1", "https://"),
        ("orbit.example", "https://"),
        ("", "https://"),
        ("https://", "host"),
        ("https://:443", "host"),
        ("https://orbit.example:0", "host"),
        ("https://orbit.example:99999", "not a URL"),
        ("https://[::1", "not a URL"),
        ("https://user@orbit.example", "user or a password"),
        ("https://user:hunter2@orbit.example", "user or a password"),
        ("https://orbit.example?token=hunter2", "query"),
        ("https://orbit.example/?", "query"),
        ("https://orbit.example#hunter2", "query or a fragment"),
        ("https://orbit.example/a b", "printable"),
        ("https://orbit.example/\n", "printable"),
        ("https://örbit.example", "printable"),
    ],
)
def test_a_bad_url_is_refused_without_being_quoted(url: str, reason: str) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        Endpoint.parse(url, source="ORBIT_URL")
    assert str(caught.value).startswith("ORBIT_URL: ")
    assert reason in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_loopback_is_what_cannot_leave_the_host() -> None:
    assert [is_loopback(host) for host in ("localhost", "127.0.0.1", "::1", "0.0.0.0", "localhost.")] == [
        True,
        True,
        True,
        False,
        False,
    ]


def test_tls_verifies_or_is_refused() -> None:
    secure, plain = Endpoint.parse("https://orbit.example"), Endpoint.parse("http://127.0.0.1")
    made = tls_context(secure, None)
    assert made is not None
    assert (made.verify_mode, made.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert tls_context(plain, None) is None
    own = ssl.create_default_context()
    assert tls_context(secure, own) is own
    own.check_hostname = False
    with pytest.raises(InvalidConfiguration, match="must verify"):
        tls_context(secure, own)
    own.verify_mode = ssl.CERT_NONE
    with pytest.raises(InvalidConfiguration, match="must verify"):
        tls_context(plain, own)
