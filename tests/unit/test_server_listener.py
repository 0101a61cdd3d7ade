"""The socket that a node listens on."""

from __future__ import annotations

import socket

from orbit.server.serve import listener


def test_an_accepted_connection_sends_small_writes_at_once() -> None:
    with listener("127.0.0.1", 0) as bound, socket.create_connection(bound.getsockname()):
        accepted, _ = bound.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
