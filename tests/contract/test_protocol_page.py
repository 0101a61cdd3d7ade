"""docs/protocol.md: its tables are those of the code, its conversations ones that both ends accept."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from orbit.protocol import events_v1, worker_v1
from orbit.protocol.attempt_v1 import RECEIPTS, Decision, Finish, Outcome
from orbit.protocol.errors import ErrorCode, InvalidValue
from orbit.protocol.frame import ACK, ERROR
from orbit.protocol.limits import Limits
from orbit.protocol.phases import TRANSITIONS, Kind, Phase
from orbit.protocol.strict_json import parse
from tests.support.pages import Page, replay
from tests.support.schema_corpus import SchemaCorpus
from tests.support.worker_conversations import attempt

PAGE = Page("protocol.md")
CORPUS = SchemaCorpus(Path(worker_v1.__file__).with_name("worker.schema.json"))
VOCABULARY = worker_v1.VOCABULARY
CONVERSATIONS = PAGE.conversations(VOCABULARY)
A_TASK, LOST, AGAIN, ZOMBIE, REFUSED = CONVERSATIONS

# The page's name of each body, and the definitions that make it up.
BODIES = {
    "hello": ["hello"],
    "capability": ["capability"],
    "welcome": ["welcome", "confirmedWelcome"],
    "capacity": ["capacity"],
    "assignment": ["assignment"],
    "assignedTask": ["assignedTask"],
    "attempt": ["attempt"],
    "lease": ["leaseActive", "leaseInactive"],
    "commandResult": ["resultApplied", "resultEvidence"],
    "receipt": ["receiptGranted", "receiptFinished", "receiptEvidence"],
    "finish": ["finishSucceeded", "finishFailed", "finishOther"],
    "cancellation": ["cancellation"],
}


def plain(cell: str) -> list[str]:
    """The names in a cell, without their backquotes."""
    return [name.strip("`") for name in cell.split(", ")]


# --- Both subprotocols -------------------------------------------------------


def test_the_table_of_subprotocols_is_the_code() -> None:
    said = {name.strip("`"): path.strip("`") for name, path, _ in PAGE.table("| subprotocol | path")}
    assert said == {one.SUBPROTOCOL: one.PATH for one in (worker_v1, events_v1)}


def test_the_table_of_phases_is_the_machine() -> None:
    said = {
        (re.split(r"[`:]", label)[1], phase, None if after == "-" else after)
        for label, _, *cells in PAGE.table("| frame | from | GREETING")
        for phase, after in zip(("GREETING", "READY", "OPEN", "CLOSED"), cells, strict=True)
    }
    assert said == {(str(kind), str(phase), TRANSITIONS[phase].get(kind)) for kind in Kind for phase in Phase}


def test_the_table_of_error_codes_has_every_code_once() -> None:
    said = [name for cell, _, _ in PAGE.table("| code | meaning") for name in plain(cell)]
    assert sorted(said) == sorted(ErrorCode)


def test_the_numbers_on_the_page_are_the_limits() -> None:
    limits = Limits()
    text = " ".join(PAGE.text.split())
    for number, sentence in (
        (limits.frame_bytes // 1024, "at most {} KiB, strict"),
        (limits.json_depth, "at most {} levels of nesting"),
        (limits.control_in_flight, "At most {} requests are in flight"),
        (limits.handshake_s, "connecting, upgrade and welcome {:.0f} s"),
        (limits.control_s, "gives a request {:.0f} s"),
        (limits.read_idle_s, "sends no frame for {:.0f} s"),
        (limits.heartbeat_s, "sends a capacity every {:.0f} s"),
        (limits.session_s, "unless a capacity renews it: {:.0f} s"),
        (limits.task_lease_s, "A lease lasts {:.0f} s"),
        (limits.local_margin_s * 1000, "(lease_until - server_time) - {:.0f} ms"),
        (limits.payload_bytes // 1024, "any JSON | at most {} KiB"),
        (limits.result_bytes // 1024, "at most {} KiB as UTF-8"),
        (limits.content_depth, "without blanks, {} levels"),
        (limits.number_digits, "within {:,} digits"),
        (limits.number_exponent, "exponents of {:,}"),
        (limits.assignment_buffer, "at most {} assignments"),
        (limits.cancellation_buffer, "at most {} such notifications"),
    ):
        assert sentence.format(number) in text, sentence


# --- pulse.worker.v1 ---------------------------------------------------------


def test_the_table_of_messages_is_the_vocabulary() -> None:
    said = {
        name.strip("`"): (side, plain(body), [part.strip("`") for part in answer.split(": ")])
        for name, side, body, answer in PAGE.table("| type | from | body")
    }
    answers = {
        "worker.capacity": ("capacity", "welcome"),
        "worker.resume": ("attempt", "lease"),
        "task.start": ("attempt", "commandResult"),
        "task.renew": ("attempt", "commandResult"),
        "task.finish": ("finish", "commandResult"),
    }
    assert answers.keys() == VOCABULARY.requests.keys()
    assert said == {
        VOCABULARY.hello: ("client", ["hello"], [VOCABULARY.welcome, "welcome"]),
        **{name: ("client", [body], [ACK, reply]) for name, (body, reply) in answers.items()},
        "task.assign": ("server", ["assignment"], ["nothing"]),
        "task.cancel": ("server", ["cancellation"], ["nothing"]),
    }
    assert {"task.assign", "task.cancel"} == VOCABULARY.pushes.keys()


@pytest.mark.parametrize("name", BODIES)
def test_the_table_of_a_body_has_its_members_and_says_which_are_optional(name: str) -> None:
    parts = [CORPUS.document["$defs"][part] for part in BODIES[name]]
    declared = {member for part in parts for member, inner in part["properties"].items() if inner is not False}
    required = set.intersection(*(set(part["required"]) for part in parts))
    rows = PAGE.table(f"| `{name}` | form")
    assert [member for cell, _, _ in rows for member in plain(cell)] == [
        member for member in dict.fromkeys(one for part in parts for one in part["properties"]) if member in declared
    ]
    assert {cell.strip("`") for cell, form, _ in rows if not form.startswith("optional")} == required


def test_the_table_of_receipts_is_the_code() -> None:
    header = "| operation | disposition | `lease_until` | `decision` | `next_available_at` |"
    said = {(one, two): cells for one, two, *cells in PAGE.table(header)}
    members = ("lease_until", "decision", "next_available_at")
    assert said == {
        key: ["required" if m in extra.required else "optional" if m in extra.optional else "absent" for m in members]
        for key, extra in RECEIPTS.items()
    }


def test_the_table_of_outcomes_is_what_a_report_may_say() -> None:
    rows = {outcome: (code, retryable) for outcome, code, retryable, _ in PAGE.table("| outcome | `error_code`")}
    assert list(rows) == list(Outcome)
    for outcome, (code, retryable) in rows.items():
        for given in (None, "", "X"):
            for again in (None, False, True):
                code_fits = given != "X" if code == "absent, or empty" else given == "X"
                retry_fits = again is not True or retryable == "true or false"
                said = {"outcome": outcome, "error_code": given, "retryable": again}
                assert _reports(said) is (code_fits and retry_fits), said


def _reports(said: dict[str, Any]) -> bool:
    body = {**attempt().to_body(), **{name: value for name, value in said.items() if value is not None}}
    try:
        Finish.parse(parse(json.dumps(body).encode(), max_bytes=1_000))
    except InvalidValue:
        return False
    return True


def test_the_table_of_decisions_has_every_one() -> None:
    assert [name for cell, _ in PAGE.table("| decision | because") for name in plain(cell)] == list(Decision)


def test_the_table_of_refusals_names_requests_and_codes_that_there_are() -> None:
    refusals = PAGE.table("| request | code | because")
    requests = {one for cell, _, _ in refusals for one in plain(cell)} - {"any about an attempt", "every one"}
    assert requests <= VOCABULARY.requests.keys() | {VOCABULARY.hello}
    assert {one for _, cell, _ in refusals for one in plain(cell)} <= set(ErrorCode)


# --- The conversations -------------------------------------------------------


@pytest.mark.parametrize(
    ("conversation", "unanswered"),
    [
        (A_TASK, ()),
        (LOST, ("00000000000000000000000000000014",)),
        (AGAIN, ()),
        (ZOMBIE, ()),
        (REFUSED, ()),
    ],
    ids=["a task", "a lost answer", "connected again", "a zombie", "refused"],
)
def test_the_conversations_are_ones_that_both_ends_would_have(
    conversation: list[tuple[str, dict[str, Any]]], unanswered: tuple[str, ...]
) -> None:
    for side, frame in conversation:
        assert CORPUS.accepts(f"#/$defs/{side}Frame", frame)
    _, lost = replay(VOCABULARY, conversation)
    assert lost == unanswered


def test_the_conversations_show_every_type_of_message() -> None:
    shown = {frame["type"] for conversation in CONVERSATIONS for _, frame in conversation}
    assert shown == {VOCABULARY.hello, VOCABULARY.welcome, ACK, ERROR, *VOCABULARY.requests, *VOCABULARY.pushes}


def test_a_report_is_repeated_as_it_was_over_the_same_instances_next_session() -> None:
    first = next(frame for _, frame in LOST if frame["type"] == "task.finish")
    second = next(frame for _, frame in AGAIN if frame["type"] == "task.finish")
    assert (first["message_id"], first["body"]) == (second["message_id"], second["body"])
    assert first["session_id"] != second["session_id"]
    assert LOST[0][1]["body"] == AGAIN[0][1]["body"]


def test_every_secret_on_the_page_is_one_of_its_own() -> None:
    secrets = {
        (body.get("instance_id") or body["attempt_id"]): body.get("instance_secret") or body["lease_secret"]
        for conversation in CONVERSATIONS[:-1]
        for side, frame in conversation
        if side == "client" and {"instance_secret", "lease_secret"} & (body := frame["body"]).keys()
    }
    assert len(set(secrets.values())) == len(secrets) == 7
