"""The credentials file, and the environment over it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from orbit.sdk import Credentials, InvalidConfiguration, OrbitClient

TOKEN = "orbit_canary_4f1d2c3b5a69788796a5b4c3d2e1f001"
QUEUE = "a" * 32
CONTENT: dict[str, Any] = {
    "application": "inbox-example",
    "namespace": "default",
    "environment": "development",
    "queue": "inbox-demo",
    "queue_id": QUEUE,
    "token": TOKEN,
    "permissions": ["events:read", "events:consume"],
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "credentials.json"
    path.touch(0o600)
    path.write_text(json.dumps(CONTENT))
    return path


def test_the_file_of_bootstrap_is_read(file: Path) -> None:
    credentials = Credentials.load(file)
    assert (credentials.application, credentials.namespace, credentials.environment, credentials.queue) == (
        "inbox-example",
        "default",
        "development",
        "inbox-demo",
    )
    assert credentials.queue_id == QUEUE
    assert credentials.token.reveal() == TOKEN
    assert credentials.permissions == {"events:read", "events:consume"}
    assert TOKEN not in repr(credentials)
    assert TOKEN not in str(credentials)


def test_members_of_a_newer_bootstrap_are_ignored(file: Path) -> None:
    file.write_text(json.dumps({**CONTENT, "expires_at": "2030-01-01T00:00:00Z"}))
    assert Credentials.load(file).queue_id == QUEUE


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"queue_id": "A" * 32}, "queue_id: must be 32 lowercase"),
        ({"queue_id": 7}, "is not a credentials file"),
        ({"token": "short"}, "token: must be 16 to 512 visible ASCII"),
        ({"token": TOKEN + "\n"}, "token: must be 16 to 512 visible ASCII"),
        ({"token": "x" * 513}, "token: must be 16 to 512 visible ASCII"),
        ({"permissions": None}, "is not a credentials file"),
    ],
)
def test_a_wrong_member_is_named_and_not_quoted(file: Path, change: dict[str, Any], rule: str) -> None:
    file.write_text(json.dumps({**CONTENT, **change}))
    with pytest.raises(InvalidConfiguration) as caught:
        Credentials.load(file, source="ORBIT_CREDENTIALS_FILE")
    assert str(caught.value).startswith("ORBIT_CREDENTIALS_FILE")
    assert rule in str(caught.value)
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"token":"a","token":"b"}', "\ufeff{}"])
def test_what_is_no_credentials_file_is_refused(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(InvalidConfiguration, match="is not a credentials file"):
        Credentials.load(file)


def test_a_file_of_more_than_64_kib_is_refused(file: Path) -> None:
    file.write_text(json.dumps(CONTENT) + " " * 65_536)
    with pytest.raises(InvalidConfiguration, match="credentials file: is larger than 65536 bytes"):
        Credentials.load(file)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o601])
def test_a_file_that_others_can_access_is_refused(file: Path, mode: int) -> None:
    file.chmod(mode)
    with pytest.raises(InvalidConfiguration, match="chmod 600"):
        Credentials.load(file)


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="cannot be read"):
        Credentials.load(tmp_path / "missing.json")
    with pytest.raises(InvalidConfiguration):
        Credentials.load(tmp_path)
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(InvalidConfiguration, match="regular file"):
        Credentials.load(tmp_path / "fifo")


def test_token_and_queue_of_the_environment_win_over_the_file(file: Path) -> None:
    variables = {
        "ORBIT_CREDENTIALS_FILE": str(file),
        "ORBIT_TOKEN": "another-token-of-sixteen",
        "ORBIT_QUEUE_ID": "b" * 32,
    }
    credentials = Credentials.from_environment(variables)
    assert (credentials.token.reveal(), credentials.queue_id) == ("another-token-of-sixteen", "b" * 32)
    assert credentials.queue == "inbox-demo"
    only_file = Credentials.from_environment({"ORBIT_CREDENTIALS_FILE": str(file), "ORBIT_TOKEN": ""})
    assert (only_file.token.reveal(), only_file.queue_id) == (TOKEN, QUEUE)


def test_token_and_queue_do_without_a_file(tmp_path: Path) -> None:
    credentials = Credentials.from_environment({"ORBIT_TOKEN": TOKEN, "ORBIT_QUEUE_ID": QUEUE})
    assert (credentials.queue_id, credentials.queue, credentials.permissions) == (QUEUE, None, frozenset())
    secret = tmp_path / "token"
    secret.touch(0o600)
    secret.write_text(TOKEN + "\n")
    from_file = Credentials.from_environment({"ORBIT_TOKEN_FILE": str(secret), "ORBIT_QUEUE_ID": QUEUE})
    assert from_file.token.reveal() == TOKEN


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({}, "ORBIT_CREDENTIALS_FILE"),
        ({"ORBIT_TOKEN": TOKEN}, "ORBIT_CREDENTIALS_FILE"),
        ({"ORBIT_QUEUE_ID": QUEUE}, "ORBIT_CREDENTIALS_FILE"),
        ({"ORBIT_TOKEN": "bad token", "ORBIT_QUEUE_ID": QUEUE}, "ORBIT_TOKEN"),
        ({"ORBIT_TOKEN": TOKEN, "ORBIT_QUEUE_ID": "queue"}, "ORBIT_QUEUE_ID"),
        ({"ORBIT_TOKEN": TOKEN, "ORBIT_TOKEN_FILE": "/nowhere", "ORBIT_QUEUE_ID": QUEUE}, "ORBIT_TOKEN"),
    ],
)
def test_a_missing_or_wrong_variable_is_named(variables: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        Credentials.from_environment(variables)
    assert str(caught.value).startswith(f"{named}: ")
    assert TOKEN not in str(caught.value)


async def test_a_client_is_made_of_the_environment(file: Path) -> None:
    variables = {"ORBIT_URL": "http://127.0.0.1:9", "ORBIT_CREDENTIALS_FILE": str(file)}
    async with OrbitClient.from_environment(variables) as client:
        assert client.credentials.queue_id == QUEUE
        assert TOKEN not in repr(client)
    with pytest.raises(InvalidConfiguration, match="ORBIT_URL: is not set"):
        OrbitClient.from_environment({"ORBIT_CREDENTIALS_FILE": str(file)})
    with pytest.raises(InvalidConfiguration, match="ORBIT_URL: http:// is accepted for a loopback host only"):
        OrbitClient.from_environment({**variables, "ORBIT_URL": "http://orbit.example"})
