"""One MySQL connection, packet by packet: phases, COMMIT by two signals, what is unrecognised, round trips."""

from __future__ import annotations

import pytest

from toxiproxy.packets import Packet, ProtocolViolation, encode
from toxiproxy.session import Command, Greeted, LoggedIn, MySQLSession, Phase, Refused, Reply, Unsolicited
from toxiproxy.transactions import TransactionTrace

COMPRESS, LOCAL_FILES, PROTOCOL_41, SSL = 0x20, 0x80, 0x200, 0x800
DEPRECATE_EOF, OPTIONAL_METADATA, ZSTD, QUERY_ATTRIBUTES = 1 << 24, 1 << 25, 1 << 26, 1 << 27

IDLE, IN_TRANS, AUTOCOMMIT, MORE, NO_BACKSLASH = 0, 1, 2, 8, 0x200


def greeting(capabilities: int) -> bytes:
    lower, upper = capabilities.to_bytes(4, "little")[:2], capabilities.to_bytes(4, "little")[2:]
    before = b"\x0a9.7.4-2\x00" + b"\x2a\x01\x00\x00" + b"abcdefgh\x00"
    after = b"\x15" + bytes(10) + b"ijklmnopqrst\x00caching_sha2_password\x00"
    return before + lower + b"\xff\x02\x00" + upper + after


def packet(payload: bytes, sequence: int = 0) -> Packet:
    return Packet(sequence, payload, encode(payload, sequence))


def response(capabilities: int = PROTOCOL_41) -> Packet:
    return packet(capabilities.to_bytes(4, "little") + bytes(28) + b"user\x00\x00", 1)


def ok(status: int) -> Packet:
    return packet(b"\x00\x00\x00" + status.to_bytes(2, "little") + b"\x00\x00", 1)


def err(errno: int) -> Packet:
    return packet(b"\xff" + errno.to_bytes(2, "little") + b"#HY000x", 1)


def logged_in(capabilities: int = PROTOCOL_41, status: int = IDLE) -> MySQLSession:
    session = MySQLSession()
    session.from_server(packet(greeting(0xFFFFFFFF)))
    session.from_client(response(capabilities))
    assert session.from_server(ok(status)) == LoggedIn(None)
    return session


def send(session: MySQLSession, text: str) -> Command:
    command = session.from_client(packet(b"\x03" + text.encode()))
    assert isinstance(command, Command)
    return command


def run(session: MySQLSession, text: str, *answer: Packet) -> Reply:
    send(session, text)
    replies = [session.from_server(part) for part in answer]
    assert isinstance(replies[-1], Reply)
    return replies[-1]


def test_the_greeting_loses_what_cannot_be_read_and_nothing_else() -> None:
    session = MySQLSession()
    event = session.from_server(packet(greeting(0xFFFFFFFF)))
    assert isinstance(event, Greeted)
    # SSL, COMPRESS, ZSTD, LOCAL_FILES and OPTIONAL_RESULTSET_METADATA.
    assert event.greeting.cleared == 0x06000000 | 0x8A0
    assert event.greeting.raw == encode(greeting(0xF9FFF75F), 0)
    assert event.greeting.thread_id == session.thread_id == 298
    assert event.greeting.server_version == 90704


@pytest.mark.parametrize("payload", [b"", b"\x09old\x00", b"\x0a9.7.4\x00short", b"\x0anoversion\x00" + bytes(40)])
def test_another_greeting_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        MySQLSession().from_server(packet(payload))


def test_a_server_may_answer_the_connect_with_an_error() -> None:
    assert MySQLSession().from_server(err(1040)) == LoggedIn(1040)


@pytest.mark.parametrize(
    ("capabilities", "wanted"),
    [
        (PROTOCOL_41 | SSL, "TLS"),
        (PROTOCOL_41 | COMPRESS, "compression"),
        (PROTOCOL_41 | ZSTD, "compression"),
        (PROTOCOL_41 | OPTIONAL_METADATA, "optional result set metadata"),
        (0, "a protocol older than 4.1"),
    ],
)
def test_a_client_that_asks_for_what_was_not_offered_is_refused(capabilities: int, wanted: str) -> None:
    session = MySQLSession()
    session.from_server(packet(greeting(0xFFFFFFFF)))
    assert session.from_client(response(capabilities)) == Refused(wanted)


def test_every_packet_of_a_full_authentication_passes() -> None:
    session = MySQLSession()
    session.from_server(packet(greeting(0xFFFFFFFF)))
    assert session.from_client(response()) is None
    assert session.from_server(packet(b"\x01\x04", 2)) is None  # full authentication, please
    assert session.from_client(packet(b"\x02", 3)) is None  # the public key, please
    assert session.from_server(packet(b"\x01-----BEGIN PUBLIC KEY-----", 4)) is None
    assert session.from_client(packet(b"\x00" * 256, 5)) is None
    assert session.from_server(ok(AUTOCOMMIT)) == LoggedIn(None)
    assert session.phase is Phase.COMMAND


def test_a_switch_of_the_authentication_method_passes() -> None:
    session = MySQLSession()
    session.from_server(packet(greeting(0xFFFFFFFF)))
    session.from_client(response())
    assert session.from_server(packet(b"\xfesha256_password\x00" + bytes(20), 2)) is None
    assert session.from_client(packet(b"secret\x00", 3)) is None
    assert session.from_server(err(1045)) == LoggedIn(1045)


def test_commit_needs_its_text_and_a_transaction() -> None:
    session = logged_in()
    assert send(session, "COMMIT") == Command("COMMIT", in_transaction=False, is_commit=False, expects_reply=True)
    session.from_server(ok(IDLE))
    run(session, "INSERT INTO t VALUES (1)", ok(IN_TRANS))
    assert send(session, "SELECT 'COMMIT'").is_commit is False
    session.from_server(ok(IN_TRANS))
    assert send(session, "COMMIT") == Command("COMMIT", in_transaction=True, is_commit=True, expects_reply=True)
    reply = session.from_server(ok(IDLE))
    assert isinstance(reply, Reply)
    assert (reply.errno, reply.unrecognised, reply.in_transaction) == (None, False, False)


def test_commit_behind_query_attributes_is_recognised() -> None:
    session = logged_in(PROTOCOL_41 | QUERY_ATTRIBUTES)
    session.from_client(packet(b"\x03\x00\x01INSERT"))
    session.from_server(ok(IN_TRANS))
    command = session.from_client(packet(b"\x03\x00\x01COMMIT"))
    assert isinstance(command, Command)
    assert command.is_commit


@pytest.mark.parametrize(
    "attributes",
    [
        # count, sets, null bitmap, new-params flag, (type, flag, name)..., values
        b"\x01\x01\x00\x01" + b"\x0f\x00\x01n" + b"\x05value",
        b"\x01\x01\x01\x01" + b"\x0f\x00\x01n",
        b"\x02\x01\x00\x01" + b"\x08\x00\x01a" + b"\x0c\x00\x01b" + bytes(8) + b"\x07" + bytes(7),
        b"\x02\x01\x02\x01" + b"\x03\x80\x00" + b"\xfd\x00\x02xy" + bytes(4),
        b"\x01\x01\x00\x01" + b"\x0f\x00\x00" + b"\xfc\x00\x01" + b"v" * 256,
    ],
    ids=["string", "null", "integer and date", "unsigned and null", "long string"],
)
def test_query_attributes_are_skipped_whatever_they_hold(attributes: bytes) -> None:
    session = logged_in(PROTOCOL_41 | QUERY_ATTRIBUTES, status=IN_TRANS)
    command = session.from_client(packet(b"\x03" + attributes + b"COMMIT"))
    assert isinstance(command, Command)
    assert command.is_commit


def test_malformed_query_attributes_are_refused() -> None:
    session = logged_in(PROTOCOL_41 | QUERY_ATTRIBUTES)
    with pytest.raises(ProtocolViolation):
        session.from_client(packet(b"\x03\x01\x01\x00\x01\x08\x00\x01a\x00\x00"))


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("CALL p()", [ok(IDLE)]),
        ("EXECUTE s", [ok(IDLE)]),
        ("SET autocommit=1", [ok(AUTOCOMMIT)]),
        ("CREATE TABLE x (a INT)", [ok(IDLE)]),
        ("BEGIN", [ok(IN_TRANS)]),
        ("START TRANSACTION", [ok(IN_TRANS)]),
        ("LOCK TABLES t READ", [ok(IN_TRANS)]),
        ("INSERT INTO t VALUES (1);COMMIT", [ok(IN_TRANS | MORE), ok(IDLE)]),
        ("COMMIT; BEGIN", [ok(MORE), ok(IN_TRANS)]),
        ("COMMIT AND CHAIN; SELECT 1", [ok(IN_TRANS | MORE), ok(IN_TRANS)]),
    ],
)
def test_a_transaction_ended_in_another_way_is_unrecognised(text: str, answer: list[Packet]) -> None:
    session = logged_in(status=IN_TRANS)
    assert run(session, text, *answer).unrecognised


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("COMMIT", [ok(IDLE)]),
        ("COMMIT AND CHAIN", [ok(IN_TRANS)]),
        ("ROLLBACK", [ok(IDLE)]),
        ("ROLLBACK AND CHAIN", [ok(IN_TRANS)]),
        ("ROLLBACK TO a", [ok(IN_TRANS)]),
        ("SELECT 1; ROLLBACK", [ok(IN_TRANS | MORE), ok(IDLE)]),
        ("PREPARE s FROM 'COMMIT'", [ok(IN_TRANS)]),
    ],
)
def test_what_is_understood_is_not_unrecognised(text: str, answer: list[Packet]) -> None:
    session = logged_in(status=IN_TRANS)
    assert not run(session, text, *answer).unrecognised


def test_beginning_outside_a_transaction_is_understood() -> None:
    session = logged_in()
    assert not run(session, "BEGIN", ok(IN_TRANS)).unrecognised


def test_a_prepared_commit_is_unrecognised() -> None:
    session = logged_in(status=IN_TRANS)
    session.from_client(packet(b"\x16COMMIT"))
    assert isinstance(session.from_server(packet(b"\x00\x01\x00\x00\x00" + bytes(7), 1)), Reply)
    command = session.from_client(packet(b"\x17\x01\x00\x00\x00\x00\x01\x00\x00\x00"))
    assert command == Command("COM_STMT_EXECUTE", in_transaction=True, is_commit=False, expects_reply=True)
    reply = session.from_server(ok(IDLE))
    assert isinstance(reply, Reply)
    assert reply.unrecognised


def test_a_deadlock_ends_the_transaction_though_its_error_says_nothing() -> None:
    session = logged_in(status=AUTOCOMMIT)
    run(session, "BEGIN", ok(IN_TRANS))
    run(session, "UPDATE t SET a=1", err(1213))
    assert send(session, "COMMIT").is_commit is False
    session.from_server(ok(AUTOCOMMIT))
    assert session.transactions == [TransactionTrace(round_trips=2, statements=0, ended="error")]


@pytest.mark.parametrize("errno", [1205, 1180])
def test_after_an_error_that_may_have_ended_it_the_state_is_unknown(errno: int) -> None:
    session = logged_in(status=IN_TRANS)
    run(session, "UPDATE t SET a=1", err(errno))
    assert not run(session, "SELECT 1", ok(IDLE)).unrecognised
    session = logged_in(status=IN_TRANS)
    run(session, "UPDATE t SET a=1", err(errno))
    assert send(session, "COMMIT") == Command("COMMIT", in_transaction=None, is_commit=True, expects_reply=True)


def test_an_ordinary_error_leaves_the_transaction_open() -> None:
    session = logged_in(status=IN_TRANS)
    run(session, "INSERT INTO t VALUES (1)", err(1062))
    assert run(session, "CREATE TABLE x (a INT)", ok(IDLE)).unrecognised


def test_an_error_to_commit_leaves_its_fate_open() -> None:
    session = logged_in(status=IN_TRANS)
    reply = run(session, "COMMIT", err(1598))
    assert (reply.errno, reply.in_transaction) == (1598, None)


def test_round_trips_of_a_transaction_without_begin() -> None:
    session = logged_in()
    run(session, "SET autocommit=0", ok(IDLE))
    run(session, "INSERT INTO a VALUES (1)", ok(IN_TRANS))
    reply = run(session, "INSERT INTO b VALUES (1)", ok(IN_TRANS))
    assert reply.statement == 2
    assert session.transactions == [TransactionTrace(round_trips=2, statements=2, ended=None)]
    run(session, "COMMIT", ok(IDLE))
    assert session.transactions == [TransactionTrace(round_trips=3, statements=2, ended="COMMIT")]
    assert session.round_trips == 4


def test_round_trips_of_a_transaction_with_begin_and_an_error() -> None:
    session = logged_in(status=AUTOCOMMIT)
    run(session, "BEGIN", ok(IN_TRANS))
    assert run(session, "INSERT INTO a VALUES (1)", err(1062)).statement == 0
    assert run(session, "INSERT INTO a VALUES (2)", ok(IN_TRANS)).statement == 1
    run(session, "ROLLBACK", ok(AUTOCOMMIT))
    assert session.transactions == [TransactionTrace(round_trips=4, statements=1, ended="ROLLBACK")]


def test_a_chained_transaction_is_counted_apart() -> None:
    session = logged_in(status=IDLE)
    run(session, "INSERT INTO a VALUES (1)", ok(IN_TRANS))
    run(session, "COMMIT AND CHAIN", ok(IN_TRANS))
    run(session, "INSERT INTO a VALUES (2)", ok(IN_TRANS))
    run(session, "COMMIT", ok(IDLE))
    assert session.transactions == [
        TransactionTrace(round_trips=2, statements=1, ended="COMMIT"),
        TransactionTrace(round_trips=2, statements=1, ended="COMMIT"),
    ]


def test_commands_without_an_answer_are_no_round_trip() -> None:
    session = logged_in()
    for code in (b"\x19\x01\x00\x00\x00", b"\x18\x01\x00\x00\x00\x00\x00x", b"\x01"):
        command = session.from_client(packet(code))
        assert isinstance(command, Command)
        assert not command.expects_reply
        assert session.idle
    assert session.round_trips == 0


def test_a_reset_connection_has_rolled_back() -> None:
    session = logged_in(status=IN_TRANS)
    session.from_client(packet(b"\x1f"))
    reply = session.from_server(ok(IDLE))
    assert isinstance(reply, Reply)
    assert not reply.unrecognised


def test_a_change_of_user_is_a_login_again() -> None:
    session = logged_in()
    run(session, "INSERT INTO a VALUES (1)", ok(IN_TRANS))
    session.from_client(packet(b"\x11user\x00"))
    assert session.phase is Phase.LOGIN
    assert session.from_server(packet(b"\xfeplugin\x00", 1)) is None
    assert session.from_server(ok(IDLE)) == LoggedIn(None)
    assert session.transactions[0].ended == "ROLLBACK"
    assert session.in_transaction is False


def test_an_error_that_nobody_asked_for_is_unsolicited() -> None:
    assert logged_in().from_server(err(4031)) == Unsolicited(4031)


@pytest.mark.parametrize("payload", [b"", b"\x12", b"\x1e", b"\xee"])
def test_a_command_that_is_not_understood_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        logged_in().from_client(packet(payload))


def test_an_answer_to_nothing_is_refused() -> None:
    with pytest.raises(ProtocolViolation):
        logged_in().from_server(ok(IDLE))


def test_the_session_follows_the_meaning_of_backslashes() -> None:
    session = logged_in(status=IN_TRANS | NO_BACKSLASH)
    assert send(session, r"SELECT '\'; COMMIT").name == "MULTI"


def test_a_command_sent_before_the_last_answer_has_an_unknown_state() -> None:
    session = logged_in(status=IN_TRANS)
    send(session, "INSERT INTO t VALUES (1)")
    assert send(session, "COMMIT").in_transaction is None


def test_a_command_that_was_not_forwarded_expects_nothing() -> None:
    session = logged_in(status=IN_TRANS)
    send(session, "COMMIT")
    assert not session.idle
    session.not_forwarded()
    assert session.idle
