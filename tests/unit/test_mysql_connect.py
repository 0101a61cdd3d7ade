"""What a failed connect means, what a session is set to, and the driver's insides that we rely on."""

from __future__ import annotations

import inspect
import socket
import ssl
from dataclasses import replace

import aiomysql
import pytest
from aiomysql.connection import MySQLResult
from pymysql.err import InternalError, OperationalError

from orbit.mysql.connect import SQL_MODE, explain, session_settings, ssl_context
from orbit.mysql.driver import Connection, Refused, errno_of
from orbit.mysql.dsn import SSLMode, SSLOptions
from orbit.mysql.errors import Kind, Stage
from orbit.mysql.times import LaneTimes


def _unreachable(cause: Exception) -> OperationalError:
    error = OperationalError(2003, "Can't connect to MySQL server on 'canary'")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "errno", "kind", "reason"),
    [
        (Refused("the server offers no TLS"), None, Kind.CONFIGURATION, "the server offers no TLS"),
        (TimeoutError(), None, Kind.RECONNECT, "no answer in time"),
        (_unreachable(TimeoutError()), 2003, Kind.RECONNECT, "no answer in time"),
        (_unreachable(ConnectionRefusedError()), 2003, Kind.RECONNECT, "connection refused"),
        (_unreachable(socket.gaierror(-2, "canary")), 2003, Kind.RECONNECT, "the host name is unknown"),
        (_unreachable(OSError(113, "no route")), 2003, Kind.RECONNECT, ""),
        (
            _unreachable(ssl.SSLCertVerificationError("canary")),
            2003,
            Kind.CONFIGURATION,
            "the server's certificate is not trusted",
        ),
        (_unreachable(ssl.SSLError("canary")), 2003, Kind.RECONNECT, "the TLS handshake failed"),
        (OperationalError(1045, "Access denied for user 'canary'"), 1045, Kind.CONFIGURATION, ""),
        (OperationalError(1040, "Too many connections"), 1040, Kind.BACK_OFF, ""),
        (OperationalError(2013, "Lost connection"), 2013, Kind.RECONNECT, ""),
        (RuntimeError("'cryptography' package is required"), None, Kind.CONFIGURATION, "the driver cannot log in"),
        (OperationalError("caching sha2: Unknown packet"), None, Kind.RECONNECT, ""),
        (InternalError("Packet sequence number wrong - got 1 expected 2"), None, Kind.RECONNECT, ""),
    ],
)
def test_a_failed_connect_is_explained_without_the_servers_text(
    error: Exception, errno: int | None, kind: Kind, reason: str
) -> None:
    failure = explain(error)
    assert (failure.errno, failure.kind, failure.stage, failure.reason) == (errno, kind, Stage.OPENING, reason)
    assert "canary" not in str(failure)


@pytest.mark.parametrize(
    ("error", "errno"),
    [
        (OperationalError(1205, "x"), 1205),
        (OperationalError("no number"), None),
        (OperationalError(), None),
        (RuntimeError(1205), None),
        (OSError(111, "x"), None),
    ],
)
def test_an_error_number_is_only_taken_from_the_drivers_own_errors(error: Exception, errno: int | None) -> None:
    assert errno_of(error) == errno


def test_a_session_is_set_by_one_statement() -> None:
    times = LaneTimes(wait_timeout_s=31, row_lock_s=4, metadata_lock_s=5)
    assert session_settings(times).decode() == (
        "SET SESSION autocommit = 0, SESSION transaction_isolation = 'READ-COMMITTED',"
        " SESSION completion_type = 'NO_CHAIN', SESSION sql_mode = 'ONLY_FULL_GROUP_BY,STRICT_TRANS_TABLES,"
        "NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION,NO_BACKSLASH_ESCAPES',"
        " SESSION time_zone = '+00:00', SESSION collation_connection = 'utf8mb4_0900_bin', SESSION wait_timeout = 31,"
        " SESSION innodb_lock_wait_timeout = 4, SESSION lock_wait_timeout = 5"
    )
    assert "STRICT_TRANS_TABLES" in SQL_MODE.split(",")


@pytest.mark.parametrize(
    ("mode", "check_hostname", "verify_mode"),
    [
        (SSLMode.VERIFY_IDENTITY, True, ssl.CERT_REQUIRED),
        (SSLMode.VERIFY_CA, False, ssl.CERT_REQUIRED),
        (SSLMode.REQUIRED, False, ssl.CERT_NONE),
    ],
)
def test_tls_checks_what_its_mode_says(mode: SSLMode, check_hostname: bool, verify_mode: ssl.VerifyMode) -> None:
    context = ssl_context(SSLOptions(mode, None))
    assert context is not None
    assert context.check_hostname is check_hostname
    assert context.verify_mode is verify_mode
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2


def test_without_tls_there_is_no_context() -> None:
    assert ssl_context(SSLOptions(SSLMode.DISABLED, None)) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"connect_s": 0.0},
        {"statement_s": -1.0},
        {"commit_s": 0.0},
        {"cleanup_s": 0.0},
        {"idle_s": 0.0},
        {"unacknowledged_s": 0.0},
        {"wait_timeout_s": 0},
        {"row_lock_s": 0},
        {"metadata_lock_s": 0},
        {"idle_s": 30.0, "wait_timeout_s": 30},
    ],
)
def test_times_that_make_no_sense_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"lane are positive|below wait_timeout_s"):
        replace(LaneTimes(), **changes)  # type: ignore[arg-type]  # - mypy cannot see which field is which


def test_the_server_gives_up_waiting_before_the_client_does() -> None:
    times = LaneTimes()
    assert max(times.row_lock_s, times.metadata_lock_s) < min(times.statement_s, times.commit_s)


def _source(function: object) -> str:
    return inspect.getsource(function)  # type: ignore[arg-type]  # - a function, from a driver without types


def test_the_driver_has_the_insides_that_driver_py_relies_on() -> None:
    """Breaks when aiomysql changes them; then orbit/mysql/driver.py has to be read again."""
    assert aiomysql.__version__.startswith("0.3.")
    base = aiomysql.Connection
    # A command is written at once and nothing is awaited between the call and the write, so "COMMIT was handed to the
    # socket" is "commit() was called on an open connection".
    execute = _source(base._execute_command)
    assert "_ensure_alive()" in execute
    assert "drain" not in execute
    assert _source(base.commit).count("await") == 2
    # A cancelled read closes the connection, and the flags of an OK packet are kept.
    assert _source(base._read_packet).count("_close_on_cancel()") == 2
    assert "self.server_status = ok.server_status" in _source(base._read_ok_packet)
    # What is overridden is called by that name, and its answer is used.
    assert "await self._read_query_result" in _source(base.query)
    assert "await self._get_server_information()" in _source(base._connect)
    assert "await self._request_authentication()" in _source(base._connect)
    assert "self._check_packet_is_eof(packet)" in _source(MySQLResult._read_rowdata_packet)
    assert "_show_warnings" not in _source(base.query) + _source(base._read_query_result)
    for name in ("_read_query_result", "_get_server_information", "_request_authentication", "close"):
        assert inspect.signature(getattr(base, name)) == inspect.signature(getattr(Connection, name)).replace(
            return_annotation=inspect.Signature.empty,
            parameters=[
                parameter.replace(annotation=inspect.Parameter.empty)
                for parameter in inspect.signature(getattr(Connection, name)).parameters.values()
            ],
        )
