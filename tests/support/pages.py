"""A page of the protocols: its tables, and its conversations, which both sessions must have as they stand there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, TypeAlias

from orbit.protocol.errors import ErrorCode
from orbit.protocol.frame import ERROR
from orbit.protocol.phases import Phase
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
from orbit.protocol.vocabulary import Vocabulary

DOCS = Path(__file__).parents[2] / "docs"

Conversation: TypeAlias = list[tuple[str, dict[str, Any]]]
"""Who sent what, in order: "client" or "server", and the frame."""


class Page:
    """One file of `docs/`."""

    def __init__(self, name: str) -> None:
        self.text = DOCS.joinpath(name).read_text("utf-8")

    def table(self, header: str) -> list[list[str]]:
        """The rows, below its header and rule, of the table whose header line starts so."""
        lines = iter(self.text.splitlines())
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

    def conversations(self, vocabulary: Vocabulary) -> list[Conversation]:
        """The blocks of the page, a new conversation with each hello."""
        found: list[Conversation] = []
        for side, text in re.findall(r"^```json (client|server)\n(.*?)^```$", self.text, re.DOTALL | re.MULTILINE):
            frame = json.loads(text)
            if frame["type"] == vocabulary.hello:
                found.append([])
            found[-1].append((side, frame))
        return found


def replay(vocabulary: Vocabulary, conversation: Conversation) -> tuple[list[Push], tuple[str, ...]]:
    """Let both sessions have a conversation: each takes the other's frames and makes exactly its own.

    Gives the pushes, and the ids of the requests that are unanswered when the connection is gone.
    """
    made = iter(
        [frame["message_id"] for side, frame in conversation if side == "server" and "reply_to" in frame]
        + [frame["message_id"] for side, frame in conversation if _is_fatal(frame)]
    )
    client = ClientSession(vocabulary)
    server = ServerSession(vocabulary, make_id=lambda: next(made))
    pushes: list[Push] = []
    for side, frame in conversation:
        data = json.dumps(frame).encode()
        if side == "client":
            again = _from_client(client, server, data)
        else:
            again = _from_server(client, server, frame, data, pushes)
        assert json.loads(again) == frame
    assert client.phase is server.phase
    ended = conversation[-1][1]["type"] == ERROR
    assert (client.phase is Phase.CLOSED) == ended
    lost = client.lost()
    assert server.lost() == lost
    return pushes, lost


def _is_fatal(frame: dict[str, Any]) -> bool:
    return frame["type"] == ERROR and "reply_to" not in frame


def _from_client(client: ClientSession, server: ServerSession, data: bytes) -> bytes:
    match server.receive(data):
        case Hello(message_id=message_id, body=body):
            return client.hello(body, message_id)
        case Requested(message_id=message_id, type=name, body=body):
            return client.request(name, body, message_id)
        case other:
            raise AssertionError(f"a request was taken as {other}")


def _from_server(
    client: ClientSession, server: ServerSession, frame: dict[str, Any], data: bytes, pushes: list[Push]
) -> bytes:
    match client.receive(data):
        case Welcomed(body=body):
            return server.welcome(frame["session_id"], frame["reply_to"], body)
        case Reply(message_id=message_id, body=body):
            return server.reply(message_id, body)
        case Push(type=name, body=body) as push:
            pushes.append(push)
            return server.push(name, body, frame["message_id"])
        case Refused(message_id=message_id, code=code, message=message):
            return server.refuse(message_id, ErrorCode(code), message)
        case Ended(code=code, message=message):
            if "reply_to" in frame:
                return server.refuse(frame["reply_to"], ErrorCode(code), message)
            return server.fatal(ErrorCode(code), message)
