"""Where a platform listens: one URL, checked once, from which every request's address is made."""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import urlsplit

from orbit.sdk.errors import InvalidConfiguration

_WEBSOCKET: Final = {"http": "ws", "https": "wss"}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The base URL of a platform, without a slash at its end; its scheme is http or https."""

    base_url: str

    @classmethod
    def parse(cls, url: str, *, source: str = "url") -> Self:
        """Check a URL such as https://orbit.example or http://127.0.0.1:8080; a path before the API's is allowed.

        Raise InvalidConfiguration, which names `source`, for another scheme, user information, a query, a fragment, a
        bad port, and for http to a host that is not loopback: the token would cross the network in the clear.
        """
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            raise InvalidConfiguration(f"{source}: is not a URL") from None
        if not url.isascii() or not url.isprintable() or " " in url:
            raise InvalidConfiguration(f"{source}: must be printable ASCII without blanks")
        if parts.scheme not in _WEBSOCKET:
            raise InvalidConfiguration(f"{source}: must start with https:// (or http:// on the same host)")
        if not host or port == 0:
            raise InvalidConfiguration(f"{source}: must name a host")
        if parts.username is not None or parts.password is not None:
            raise InvalidConfiguration(f"{source}: must not hold a user or a password; the token has its own setting")
        if parts.query or parts.fragment or "?" in url or "#" in url:
            raise InvalidConfiguration(f"{source}: must not have a query or a fragment")
        if parts.scheme == "http" and not is_loopback(host):
            raise InvalidConfiguration(f"{source}: http:// is accepted for a loopback host only; use https://")
        return cls(f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}")

    @property
    def encrypted(self) -> bool:
        """Whether the connection is TLS."""
        return self.base_url.startswith("https://")

    def websocket_url(self, path: str) -> str:
        """The address of a WebSocket at `path`, which starts with a slash."""
        scheme, rest = self.base_url.split("://", 1)
        return f"{_WEBSOCKET[scheme]}://{rest}{path}"


def is_loopback(host: str) -> bool:
    """Whether a host name or address can only mean this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def tls_context(endpoint: Endpoint, given: ssl.SSLContext | None) -> ssl.SSLContext | None:
    """Return the TLS settings for HTTP and WebSocket alike, None for http.

    Without `given`, the system's authorities count (OpenSSL's SSL_CERT_FILE adds a private one). Raise
    InvalidConfiguration for a context that does not verify certificate and host name.
    """
    if given is not None and (given.verify_mode is not ssl.CERT_REQUIRED or not given.check_hostname):
        raise InvalidConfiguration("tls: the context must verify the certificate and the host name")
    if not endpoint.encrypted:
        return None
    return given if given is not None else ssl.create_default_context()
