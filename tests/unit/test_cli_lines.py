"""What a line of a command holds: expected lines written by hand."""

from __future__ import annotations

import json

import pytest
from msgspec import Raw

from orbit.cli.lines import line, members, shown, word
from orbit.protocol.http_v1 import Queue

QUEUE = Queue(
    queue_id="a" * 32, namespace="default", environment="dev", name="orders", created_at="2026-01-31T08:15:30Z"
)


def text(document: str) -> str:
    """The line of an object given as JSON."""
    return line(members(Raw(document.encode())), as_json=False)


def test_a_line_has_names_and_values() -> None:
    assert line(members(QUEUE), as_json=False) == (
        f"queue_id={'a' * 32} namespace=default environment=dev name=orders created_at=2026-01-31T08:15:30Z"
        " paused=false"
    )


def test_json_has_the_same_members() -> None:
    assert json.loads(line(members(QUEUE), as_json=True)) == {
        "queue_id": "a" * 32,
        "namespace": "default",
        "environment": "dev",
        "name": "orders",
        "created_at": "2026-01-31T08:15:30Z",
        "paused": False,
    }


@pytest.mark.parametrize(
    ("given", "shown_as"),
    [
        ('"plain"', "plain"),
        ('"5"', "5"),
        ('""', '""'),
        ('"two words"', '"two words"'),
        ('"a=b"', '"a=b"'),
        ('"say \\"hi\\""', '"say \\"hi\\""'),
        ('"{"', '"{"'),
        ('"[1]"', '"[1]"'),
        ('"line\\nbreak"', '"line\\nbreak"'),
        ('"\\u001b[2J"', '"\\u001b[2J"'),
        ('"\\u009b2J"', '"\\u009b2J"'),
        ('"\\u202eabc"', '"\\u202eabc"'),
        ('"\\u2028"', '"\\u2028"'),
        ('"\\ud83d\\ude00"', "😀"),
        ('"é"', "é"),
        ("true", "true"),
        ("null", "null"),
        ("18446744073709551617.10", "18446744073709551617.10"),
        ('{ "b" : 1.10,\n "a" : [ ] }', '{"a":[],"b":1.10}'),
        ('{"a":"\\u009b"}', '{"a":"\\u009b"}'),
    ],
)
def test_a_value_is_one_word_or_json_and_never_a_sign_that_a_terminal_obeys(given: str, shown_as: str) -> None:
    assert text(f'{{"x":{given}}}') == f"x={shown_as}"
    as_json = line(members(Raw(f'{{"x":{given}}}'.encode())), as_json=True)
    assert as_json.isprintable()
    assert json.loads(as_json) == json.loads(f'{{"x":{given}}}')


def test_documents_are_left_out_unless_they_are_asked_for_and_some_members_come_first() -> None:
    given = members(Raw(b'{"payload":1,"state":"FAILED","result":2,"evidence":3,"task_id":"t"}'))

    assert line(shown(given, first=("task_id", "gone")), as_json=False) == "task_id=t state=FAILED"
    assert line(shown(given, documents={"result"}), as_json=False) == "state=FAILED result=2 task_id=t"
    assert list(shown(given, first=("result",))) == ["state", "task_id"]
    assert line(shown(given, documents={"payload", "evidence"}), as_json=True) == (
        '{"evidence":3,"payload":1,"state":"FAILED","task_id":"t"}'
    )


def test_a_word_is_any_text() -> None:
    assert json.loads(bytes(word('a "b" é\n'))) == 'a "b" é\n'
