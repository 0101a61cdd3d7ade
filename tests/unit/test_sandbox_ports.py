"""The sandbox's ports stay out of the way of outgoing connections."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from orbit.sandbox.container import publish_address
from orbit.sandbox.ports import free_port


def test_a_free_port_can_be_bound_and_is_no_port_of_outgoing_connections() -> None:
    lowest_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])

    port = free_port()

    assert 10_000 <= port < lowest_outgoing
    with socket.socket() as server:
        server.bind(("127.0.0.1", port))


@pytest.mark.parametrize(
    ("host", "address"), [("localhost", "127.0.0.1"), ("127.0.0.1", "127.0.0.1"), ("172.17.0.1", "0.0.0.0")]
)
def test_a_container_of_this_machine_is_published_on_loopback_only(host: str, address: str) -> None:
    assert publish_address(host) == address
