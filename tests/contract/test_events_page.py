"""docs/protocol-events.md: its tables are those of the code, its examples a conversation that both ends accept."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orbit.protocol import events_v1
from orbit.protocol.errors import ErrorCode
from orbit.protocol.event import RULES, Event, Presence
from orbit.protocol.frame import ACK, ERROR
from orbit.protocol.phases import TRANSITIONS, Kind, Phase
from orbit.protocol.session import (
    ClientSession,
    Ended,
    Hello,
    Push,
    Refused,
    Reply,
    Requested,
    ServerSession,
    Welcomed,
)
from tests.support.schema_corpus import SchemaCorpus

PAGE = Path(__file__).parents[2].joinpath("docs", "protocol-events.md").read_text("utf-8")
CORPUS = SchemaCorpus(Path(events_v1.__file__).with_name("events.schema.json"))
BLOCKS = re.findall(r"^```json (client|server)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def table(header: str) -> list[list[str]]:
    """The rows, below its header and rule, of the table whose header line starts so."""
    lines = iter(PAGE.splitlines())
    for line in lines:
        if line.startswith(header):
            break
    else:
        raise AssertionError(f"no table {header}")
    next(lines)
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def test_the_table_of_phases_is_the_machine() -> None:
    said = {
        (re.split(r"[`:]", label)[1], phase, None if after == "-" else after)
        for label, _, *cells in table("| frame | from | GREETING")
        for phase, after in zip(("GREETING", "READY", "OPEN", "CLOSED"), cells, strict=True)
    }
    assert said == {(str(kind), str(phase), TRANSITIONS[phase].get(kind)) for kind in Kind for phase in Phase}


def test_the_table_of_messages_is_the_vocabulary() -> None:
    vocabulary = events_v1.VOCABULARY
    said = {name.strip("`"): (side, answer.strip("`")) for name, side, _, answer in table("| type | from")}
    assert said == {
        vocabulary.hello: ("client", vocabulary.welcome),
        **dict.fromkeys(vocabulary.requests, ("client", ACK)),
        **dict.fromkeys(vocabulary.pushes, ("server", "nothing")),
    }
    # Every member of a body is named in its row or its section.
    for name in said:
        frame = next(one for one in CORPUS.examples("#") if one["type"] == name)
        for member in frame["body"]:
            assert f"`{member}`" in PAGE


def test_the_table_of_events_is_the_rules() -> None:
    words = {"required": Presence.REQUIRED, "optional": Presence.OPTIONAL, "absent": Presence.ABSENT}
    said = {
        name.strip("`"): (state.strip("`"), words[error_code], words[result])
        for name, state, error_code, result in table("| `event_type` | `state`")
    }
    assert said == {name: tuple(rule) for name, rule in RULES.items()}


def conversations() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """The blocks of the page, a new conversation with each hello."""
    conversation: list[tuple[str, dict[str, Any]]] = []
    for side, text in BLOCKS:
        frame = json.loads(text)
        if frame["type"] == events_v1.VOCABULARY.hello and conversation:
            yield conversation
            conversation = []
        conversation.append((side, frame))
    yield conversation


@pytest.mark.parametrize("conversation", list(conversations()), ids=["granted", "refused"])
def test_the_examples_are_a_conversation_that_both_ends_would_have(
    conversation: list[tuple[str, dict[str, Any]]],
) -> None:
    """Each end takes the other's frames, and given the same bodies makes exactly the frames of its own."""
    ids = iter(frame["message_id"] for side, frame in conversation if side == "server" and "reply_to" in frame)
    fatal = [frame["message_id"] for side, frame in conversation if frame["type"] == ERROR and "reply_to" not in frame]
    made = iter([*ids, *fatal])
    client = ClientSession(events_v1.VOCABULARY)
    server = ServerSession(events_v1.VOCABULARY, make_id=lambda: next(made))
    for side, frame in conversation:
        data = json.dumps(frame).encode()
        assert CORPUS.accepts(f"#/$defs/{side}Frame", frame)
        again = (
            _from_client(client, server, frame, data) if side == "client" else _from_server(client, server, frame, data)
        )
        assert json.loads(again) == frame
    assert (client.phase, server.phase) == (Phase.CLOSED, Phase.CLOSED)
    assert client.lost() == server.lost() == ()


def _from_client(client: ClientSession, server: ServerSession, frame: dict[str, Any], data: bytes) -> bytes:
    match server.receive(data):
        case Hello(message_id=message_id, body=body):
            return client.hello(body, message_id)
        case Requested(message_id=message_id, type=name, body=body):
            return client.request(name, body, message_id)
        case other:
            raise AssertionError(f"{frame['type']} was taken as {other}")


def _from_server(client: ClientSession, server: ServerSession, frame: dict[str, Any], data: bytes) -> bytes:
    match client.receive(data):
        case Welcomed(body=body):
            return server.welcome(frame["session_id"], frame["reply_to"], body)
        case Reply(message_id=message_id, body=body):
            return server.reply(message_id, body)
        case Push(type=name, body=body):
            assert Event.parse(body.event).task_version == 2
            assert CORPUS.accepts("#/$defs/event", frame["body"]["event"])
            return server.push(name, body, frame["message_id"])
        case Refused(message_id=message_id, code=code, message=message):
            return server.refuse(message_id, ErrorCode(code), message)
        case Ended(code=code, message=message):
            if "reply_to" in frame:
                return server.refuse(frame["reply_to"], ErrorCode(code), message)
            return server.fatal(ErrorCode(code), message)


def test_the_examples_show_every_type_of_message() -> None:
    vocabulary = events_v1.VOCABULARY
    shown = {json.loads(text)["type"] for _, text in BLOCKS}
    assert shown == {vocabulary.hello, vocabulary.welcome, ACK, ERROR, *vocabulary.requests, *vocabulary.pushes}
