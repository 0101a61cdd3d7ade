"""docs/protocol-events.md: its tables are those of the code, its examples a conversation that both ends accept."""

from __future__ import annotations

from pathlib import Path

import pytest

from orbit.protocol import events_v1
from orbit.protocol.event import RULES, Event, Presence
from orbit.protocol.frame import ACK, ERROR
from tests.support.pages import Conversation, Page, replay
from tests.support.schema_corpus import SchemaCorpus

PAGE = Page("protocol-events.md")
CORPUS = SchemaCorpus(Path(events_v1.__file__).with_name("events.schema.json"))
VOCABULARY = events_v1.VOCABULARY
CONVERSATIONS = PAGE.conversations(VOCABULARY)


def test_the_table_of_messages_is_the_vocabulary() -> None:
    said = {name.strip("`"): (side, answer.strip("`")) for name, side, _, answer in PAGE.table("| type | from")}
    assert said == {
        VOCABULARY.hello: ("client", VOCABULARY.welcome),
        **dict.fromkeys(VOCABULARY.requests, ("client", ACK)),
        **dict.fromkeys(VOCABULARY.pushes, ("server", "nothing")),
    }
    # Every member of a body is named in its row or its section.
    for name in said:
        frame = next(one for one in CORPUS.examples("#") if one["type"] == name)
        for member in frame["body"]:
            assert f"`{member}`" in PAGE.text


def test_the_table_of_events_is_the_rules() -> None:
    words = {"required": Presence.REQUIRED, "optional": Presence.OPTIONAL, "absent": Presence.ABSENT}
    said = {
        name.strip("`"): (state.strip("`"), words[error_code], words[result])
        for name, state, error_code, result in PAGE.table("| `event_type` | `state`")
    }
    assert said == {name: tuple(rule) for name, rule in RULES.items()}


def test_the_table_of_members_has_every_declared_one() -> None:
    said = {name.strip("`") for cell, _ in PAGE.table("| member | |") for name in cell.split(", ")}
    declared = CORPUS.document["$defs"]["event"]
    by_type = {name for one in declared["oneOf"] for name in one["properties"]}
    assert said == declared["properties"].keys() | by_type


@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=["granted", "refused"])
def test_the_examples_are_a_conversation_that_both_ends_would_have(conversation: Conversation) -> None:
    for side, frame in conversation:
        assert CORPUS.accepts(f"#/$defs/{side}Frame", frame)
    pushes, lost = replay(VOCABULARY, conversation)
    assert lost == ()
    for push in pushes:
        assert Event.parse(push.body.event).task_version == 2


def test_the_events_in_the_examples_are_events() -> None:
    events = [frame["body"]["event"] for one in CONVERSATIONS for _, frame in one if frame["type"] == "event.deliver"]
    assert len(events) == 1
    assert CORPUS.accepts("#/$defs/event", events[0])


def test_the_examples_show_every_type_of_message() -> None:
    shown = {frame["type"] for conversation in CONVERSATIONS for _, frame in conversation}
    assert shown == {VOCABULARY.hello, VOCABULARY.welcome, ACK, ERROR, *VOCABULARY.requests, *VOCABULARY.pushes}
