"""Say where a MySQL database is, in one line of text.

    mysql://user:password@host:3306[,host2:port2]/database[?ssl_ca=/path/ca.pem][&ssl_mode=VERIFY_CA]

Reserved characters in the user name, password and database name are percent-encoded (RFC 3986, section 2.1). Several
hosts are the members of one replicated database: a connection takes the first that answers and accepts writes.

TLS is off unless asked for. `ssl_ca` alone means VERIFY_IDENTITY: the chain and the host name are checked. The modes
are those of the MySQL client (manual 6.3.1): DISABLED, REQUIRED (encrypted, nobody verified), VERIFY_CA (for the
certificates MySQL makes itself, which carry no host name), VERIFY_IDENTITY. PREFERRED is refused: it falls back to
plain text without a word.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from urllib.parse import parse_qsl, quote, unquote

DEFAULT_PORT = 3306


class InvalidDSN(ValueError):
    """The text is no usable DSN; says which setting it came from and what is wrong, never what it holds."""

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(source, reason)
        self.source = source
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.source}: {self.reason}"


class SSLMode(StrEnum):
    DISABLED = "DISABLED"
    REQUIRED = "REQUIRED"
    VERIFY_CA = "VERIFY_CA"
    VERIFY_IDENTITY = "VERIFY_IDENTITY"


@dataclass(frozen=True, slots=True)
class SSLOptions:
    """How a connection is encrypted; `ca` is a file of trusted certificates, None means the system's."""

    mode: SSLMode = SSLMode.DISABLED
    ca: str | None = None


@dataclass(frozen=True, slots=True)
class DSN:
    """Address, account and database. `str` and `repr` hide the password; `render` does not."""

    hosts: tuple[tuple[str, int], ...]
    user: str
    password: str = field(repr=False)
    database: str | None
    ssl: SSLOptions = SSLOptions()

    @classmethod
    def parse(cls, text: str, *, source: str = "DSN", require_database: bool = True) -> DSN:
        """Read a DSN; `source` names the setting in errors.

        Raises InvalidDSN.
        """
        scheme, separator, rest = text.strip().partition("://")
        if not separator or scheme != "mysql":
            raise InvalidDSN(source, "must start with mysql://")
        if "#" in rest:
            raise InvalidDSN(source, "write # as %23")
        rest, _, query = rest.partition("?")
        authority, _, path = rest.partition("/")
        if "@" in path or "@" in query:
            raise InvalidDSN(source, "percent-encode @, / and ? in the user name, password and database")
        account, at, addresses = authority.rpartition("@")
        user, _, password = account.partition(":")
        if not at or not user:
            raise InvalidDSN(source, "names no user")
        return cls(
            hosts=tuple(_host(address, source) for address in addresses.split(",")),
            user=_decode(user, source),
            password=_password(password, source),
            database=_database(path, source, required=require_database),
            ssl=_ssl(query, source),
        )

    def with_database(self, name: str | None) -> DSN:
        """Give the same account on another database (None: no database selected)."""
        return replace(self, database=name)

    def with_host(self, host: str, port: int) -> DSN:
        """Give the same database behind one other address, such as a proxy's."""
        return replace(self, hosts=((host, port),))

    def with_account(self, user: str, password: str) -> DSN:
        """Give the same database for another account."""
        return replace(self, user=user, password=password)

    def render(self) -> str:
        """Write the DSN WITH its password, for a child's environment; `parse` reads it back."""
        return self._text(quote(self.password, safe=""))

    def __str__(self) -> str:
        return self._text("***")

    def __repr__(self) -> str:
        return f"DSN({str(self)!r})"

    def _text(self, password: str) -> str:
        addresses = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        text = f"mysql://{quote(self.user, safe='')}:{password}@{addresses}/{quote(self.database or '', safe='')}"
        options = []
        if self.ssl.ca is not None:
            options.append(f"ssl_ca={quote(self.ssl.ca)}")
        if self.ssl.mode is not SSLMode.DISABLED:
            options.append(f"ssl_mode={self.ssl.mode}")
        return text + ("?" + "&".join(options) if options else "")


def _decode(text: str, source: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        # The error object quotes its input; it must not become the context of ours.
        pass
    raise InvalidDSN(source, "a percent-encoded part is not UTF-8")


def _password(text: str, source: str) -> str:
    password = _decode(text, source)
    if any(ord(character) > 0xFF for character in password):
        # The driver sends passwords as latin-1.
        raise InvalidDSN(source, "the password has a character outside latin-1")
    return password


def _host(address: str, source: str) -> tuple[str, int]:
    if address.startswith("["):
        host, bracket, port = address[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            raise InvalidDSN(source, "an IPv6 address is written [address]:port")
        port = port[1:]
    else:
        host, _, port = address.partition(":")
    if not host:
        raise InvalidDSN(source, "names no host")
    if not port:
        return host, DEFAULT_PORT
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        raise InvalidDSN(source, "a port is a number from 1 to 65535")
    return host, int(port)


def _database(path: str, source: str, *, required: bool) -> str | None:
    name = _decode(path, source)
    if not name and required:
        raise InvalidDSN(source, "names no database")
    if "/" in name or len(name) > 64:
        raise InvalidDSN(source, "the database name is not usable")
    return name or None


def _ssl(query: str, source: str) -> SSLOptions:
    options: dict[str, str] = {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), errors="strict")
    except ValueError:
        pairs = [("", "")]
    for name, value in pairs:
        if name not in {"ssl_ca", "ssl_mode"}:
            raise InvalidDSN(source, "the only options are ssl_ca and ssl_mode")
        if name in options or not value:
            raise InvalidDSN(source, f"{name} is empty or given twice")
        options[name] = value
    ca = options.get("ssl_ca")
    if "ssl_mode" not in options:
        return SSLOptions(SSLMode.VERIFY_IDENTITY if ca else SSLMode.DISABLED, ca)
    name = options["ssl_mode"].upper().replace("-", "_")
    if name == "PREFERRED":
        raise InvalidDSN(source, "ssl_mode=PREFERRED may fall back to plain text; choose REQUIRED or VERIFY_CA")
    if name not in SSLMode.__members__:
        raise InvalidDSN(source, f"ssl_mode is one of {', '.join(SSLMode)}")
    mode = SSLMode[name]
    if ca and mode in {SSLMode.DISABLED, SSLMode.REQUIRED}:
        raise InvalidDSN(source, f"ssl_mode={mode} would ignore ssl_ca")
    return SSLOptions(mode, ca)
