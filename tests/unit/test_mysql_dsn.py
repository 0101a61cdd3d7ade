"""Reading and writing DSNs; what is wrong is said without quoting it."""

from __future__ import annotations

import pytest

from orbit.mysql.dsn import DSN, InvalidDSN, SSLMode, SSLOptions


def test_all_parts_are_read() -> None:
    dsn = DSN.parse("mysql://ann:s%40c%2Fr%3At@db.example:3307/inbox")
    assert dsn == DSN(hosts=(("db.example", 3307),), user="ann", password="s@c/r:t", database="inbox", ssl=SSLOptions())


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("mysql://u:p@h/d", (("h", 3306),)),
        ("mysql://u:p@h:1/d", (("h", 1),)),
        ("mysql://u:p@a:1,b,c:65535/d", (("a", 1), ("b", 3306), ("c", 65535))),
        ("mysql://u:p@[::1]:3307,[fe80::2]/d", (("::1", 3307), ("fe80::2", 3306))),
    ],
)
def test_hosts_are_read_in_order(text: str, hosts: tuple[tuple[str, int], ...]) -> None:
    assert DSN.parse(text).hosts == hosts


@pytest.mark.parametrize(
    ("query", "ssl"),
    [
        ("", SSLOptions(SSLMode.DISABLED, None)),
        ("?ssl_ca=/etc/ca.pem", SSLOptions(SSLMode.VERIFY_IDENTITY, "/etc/ca.pem")),
        ("?ssl_ca=/etc/ca.pem&ssl_mode=verify-ca", SSLOptions(SSLMode.VERIFY_CA, "/etc/ca.pem")),
        ("?ssl_mode=VERIFY_IDENTITY", SSLOptions(SSLMode.VERIFY_IDENTITY, None)),
        ("?ssl_mode=required", SSLOptions(SSLMode.REQUIRED, None)),
        ("?ssl_mode=DISABLED", SSLOptions(SSLMode.DISABLED, None)),
    ],
)
def test_tls_options_are_read(query: str, ssl: SSLOptions) -> None:
    assert DSN.parse(f"mysql://u:p@h/d{query}").ssl == ssl


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "must start with mysql://"),
        ("u:p@h/d", "must start with mysql://"),
        ("postgres://u:p@h/d", "must start with mysql://"),
        ("mysql://h/d", "names no user"),
        ("mysql://:p@h/d", "names no user"),
        ("mysql://u:p@/d", "names no host"),
        ("mysql://u:p@a,,b/d", "names no host"),
        ("mysql://u:p@h", "names no database"),
        ("mysql://u:p@h/", "names no database"),
        ("mysql://u:p@h/a%2Fb", "the database name is not usable"),
        (f"mysql://u:p@h/{'d' * 65}", "the database name is not usable"),
        ("mysql://u:p@h:0/d", "a port is a number from 1 to 65535"),
        ("mysql://u:p@h:65536/d", "a port is a number from 1 to 65535"),
        ("mysql://u:p@h:x/d", "a port is a number from 1 to 65535"),
        ("mysql://u:p@h:٣/d", "a port is a number from 1 to 65535"),
        ("mysql://u:p@[::1/d", "an IPv6 address is written [address]:port"),
        ("mysql://u:p@[::1]3306/d", "an IPv6 address is written [address]:port"),
        ("mysql://u:s/ecret@h/d", "percent-encode @, / and ? in the user name, password and database"),
        ("mysql://u:s?ecret@h/d", "percent-encode @, / and ? in the user name, password and database"),
        ("mysql://u:s#ecret@h/d", "write # as %23"),
        ("mysql://u:%ff@h/d", "a percent-encoded part is not UTF-8"),
        ("mysql://u:%E4%BD%A0@h/d", "the password has a character outside latin-1"),
        ("mysql://u:p@h/d?charset=latin1", "the only options are ssl_ca and ssl_mode"),
        ("mysql://u:p@h/d?ssl_ca", "the only options are ssl_ca and ssl_mode"),
        ("mysql://u:p@h/d?ssl_ca=", "ssl_ca is empty or given twice"),
        ("mysql://u:p@h/d?ssl_ca=/a&ssl_ca=/b", "ssl_ca is empty or given twice"),
        ("mysql://u:p@h/d?ssl_mode=off", "ssl_mode is one of DISABLED, REQUIRED, VERIFY_CA, VERIFY_IDENTITY"),
        (
            "mysql://u:p@h/d?ssl_mode=PREFERRED",
            "ssl_mode=PREFERRED may fall back to plain text; choose REQUIRED or VERIFY_CA",
        ),
        ("mysql://u:p@h/d?ssl_ca=/a&ssl_mode=DISABLED", "ssl_mode=DISABLED would ignore ssl_ca"),
        ("mysql://u:p@h/d?ssl_ca=/a&ssl_mode=REQUIRED", "ssl_mode=REQUIRED would ignore ssl_ca"),
    ],
)
def test_what_is_wrong_is_named_with_its_setting(text: str, reason: str) -> None:
    with pytest.raises(InvalidDSN) as caught:
        DSN.parse(text, source="ORBIT_RECEIVER_DSN")
    assert str(caught.value) == f"ORBIT_RECEIVER_DSN: {reason}"
    assert caught.value.__context__ is None or not isinstance(caught.value.__context__, UnicodeError)


def test_an_administrators_dsn_may_name_no_database() -> None:
    assert DSN.parse("mysql://root:@h/", require_database=False).database is None
    assert DSN.parse("mysql://root:@h", require_database=False).database is None


@pytest.mark.parametrize(
    "text",
    [
        "mysql://u:p@h:3306/d",
        "mysql://u:a%2Fb%40c%3Ad%25%23%3F%E9@h:3306/d%20e",
        "mysql://u:@a:1,[::1]:2/d?ssl_ca=/x/ca.pem&ssl_mode=VERIFY_CA",
        "mysql://u:p@h:3306/d?ssl_mode=REQUIRED",
    ],
)
def test_render_is_read_back_as_the_same(text: str) -> None:
    text = text.replace("%E9", "%C3%A9")
    dsn = DSN.parse(text)
    assert dsn.render() == text
    assert DSN.parse(dsn.render()) == dsn


def test_the_password_is_in_no_text_but_render() -> None:
    dsn = DSN.parse("mysql://ann:canary-7@h:3306/d?ssl_ca=/ca.pem")
    assert str(dsn) == "mysql://ann:***@h:3306/d?ssl_ca=/ca.pem&ssl_mode=VERIFY_IDENTITY"
    assert repr(dsn) == f"DSN('{dsn}')"
    assert "canary" not in f"{dsn} {dsn!r} {[dsn]}"


def test_parts_are_exchanged_one_by_one() -> None:
    dsn = DSN.parse("mysql://u:p@a:1,b:2/d?ssl_mode=REQUIRED")
    assert dsn.with_host("127.0.0.1", 9).render() == "mysql://u:p@127.0.0.1:9/d?ssl_mode=REQUIRED"
    assert dsn.with_database("e").render() == "mysql://u:p@a:1,b:2/e?ssl_mode=REQUIRED"
    assert dsn.with_account("v", "q").render() == "mysql://v:q@a:1,b:2/d?ssl_mode=REQUIRED"
