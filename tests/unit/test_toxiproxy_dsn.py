"""Putting the proxy's address into a DSN."""

from __future__ import annotations

import pytest

from toxiproxy.dsn import InvalidDSN, read_dsn


@pytest.mark.parametrize(
    ("text", "host", "port", "through"),
    [
        ("mysql://u:p@db:3307/d", "db", 3307, "mysql://u:p@127.0.0.1:9/d"),
        ("mysql://u:p@db/d", "db", 3306, "mysql://u:p@127.0.0.1:9/d"),
        ("mysql://u:p%40%2F%3A@db:1/d", "db", 1, "mysql://u:p%40%2F%3A@127.0.0.1:9/d"),
        ("mysql://u:p@one:1,two:2/d", "one", 1, "mysql://u:p@127.0.0.1:9/d"),
        ("mysql://u:p@[::1]:4/d", "::1", 4, "mysql://u:p@127.0.0.1:9/d"),
        ("mysql://db", "db", 3306, "mysql://127.0.0.1:9"),
        ("mysql://u:p@db/d?ssl_mode=disabled", "db", 3306, "mysql://u:p@127.0.0.1:9/d?ssl_mode=disabled"),
        ("mysql://u@p@db:5/d", "db", 5, "mysql://u@p@127.0.0.1:9/d"),
    ],
)
def test_only_the_address_changes(text: str, host: str, port: int, through: str) -> None:
    target = read_dsn(text)
    assert (target.host, target.port) == (host, port)
    assert target.through("127.0.0.1", 9) == through


@pytest.mark.parametrize(
    "text",
    [
        "postgres://secret@db/d",
        "mysql:/secret@db/d",
        "mysql://u:secret@/d",
        "mysql://u:secret@db:x/d",
        "mysql://u:secret@db:0/d",
        "mysql://u:secret@db:70000/d",
        "mysql://u:secret@db/d?ssl_ca=/x",
        "mysql://u:secret@db/d?ssl_mode=REQUIRED",
        "mysql://u:secret@db/d?x=1&ssl_mode=VERIFY_CA",
        "mysql://u:secret@db/d#f",
    ],
)
def test_what_cannot_be_used_is_refused_without_being_quoted(text: str) -> None:
    with pytest.raises(InvalidDSN) as refused:
        read_dsn(text)
    assert "secret" not in str(refused.value)


def test_a_target_does_not_show_the_password() -> None:
    assert "secret" not in repr(read_dsn("mysql://u:secret@db/d"))
