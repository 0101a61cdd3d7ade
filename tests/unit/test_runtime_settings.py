"""Settings: what a variable or a secret's file may hold, and that no error repeats it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orbit.runtime.settings import SECRET_FILE_BYTES, Environment, SettingsError


def secret_file(directory: Path, content: bytes, mode: int = 0o600) -> str:
    path = directory / "secret"
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)


def test_text_prefers_the_variable_over_the_default() -> None:
    environment = Environment({"NAME": "set"})
    assert environment.text("NAME", "default") == "set"
    assert environment.text("OTHER", "default") == "default"


def test_an_empty_variable_counts_as_not_set() -> None:
    environment = Environment({"NAME": ""})
    assert environment.optional("NAME") is None
    assert environment.text("NAME", "default") == "default"
    assert environment.optional_secret("NAME") is None


def test_a_missing_text_names_its_variable() -> None:
    with pytest.raises(SettingsError) as raised:
        Environment({}).text("ORBIT_URL")
    assert str(raised.value) == "ORBIT_URL: is not set"
    assert raised.value.variable == "ORBIT_URL"


def test_a_missing_secret_names_both_ways_to_give_it() -> None:
    with pytest.raises(SettingsError, match=r"^ORBIT_TOKEN: is not set, nor is ORBIT_TOKEN_FILE$"):
        Environment({}).secret("ORBIT_TOKEN")


def test_a_secret_comes_from_its_variable() -> None:
    assert Environment({"ORBIT_TOKEN": "abc\n"}).secret("ORBIT_TOKEN") == "abc\n"


@pytest.mark.parametrize(
    ("content", "secret"),
    [(b"abc", "abc"), (b"abc\n", "abc"), (b"abc\r\n", "abc"), (b"abc\n\n", "abc\n"), (b" abc ", " abc ")],
)
def test_a_secret_file_loses_one_newline_and_nothing_else(tmp_path: Path, content: bytes, secret: str) -> None:
    assert Environment({"ORBIT_TOKEN_FILE": secret_file(tmp_path, content)}).secret("ORBIT_TOKEN") == secret


def test_both_ways_at_once_are_refused(tmp_path: Path) -> None:
    environment = Environment({"ORBIT_TOKEN": "a", "ORBIT_TOKEN_FILE": secret_file(tmp_path, b"b")})
    with pytest.raises(SettingsError, match="both set"):
        environment.secret("ORBIT_TOKEN")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o644])
def test_a_secret_file_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    environment = Environment({"ORBIT_TOKEN_FILE": secret_file(tmp_path, b"hidden-value", mode)})
    with pytest.raises(SettingsError, match="others than its owner") as raised:
        environment.secret("ORBIT_TOKEN")
    assert "hidden-value" not in str(raised.value)


def test_a_read_only_secret_file_is_accepted(tmp_path: Path) -> None:
    assert Environment({"ORBIT_TOKEN_FILE": secret_file(tmp_path, b"abc", 0o400)}).secret("ORBIT_TOKEN") == "abc"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "holds nothing"),
        (b"\n", "holds nothing"),
        (b"\xff", "not UTF-8"),
        (b"a" * (SECRET_FILE_BYTES + 1), "larger"),
    ],
)
def test_a_secret_file_without_a_secret_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    environment = Environment({"ORBIT_TOKEN_FILE": secret_file(tmp_path, content)})
    with pytest.raises(SettingsError, match=reason) as raised:
        environment.secret("ORBIT_TOKEN")
    assert raised.value.variable == "ORBIT_TOKEN_FILE"


def test_a_path_that_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o600)
    for path, reason in (
        (fifo, "regular file"),
        (tmp_path / "missing", "cannot be read"),
        (tmp_path, "cannot be read"),
    ):
        with pytest.raises(SettingsError, match=reason):
            Environment({"ORBIT_TOKEN_FILE": str(path)}).secret("ORBIT_TOKEN")


def test_the_repr_shows_no_variable() -> None:
    assert repr(Environment({"ORBIT_TOKEN": "hidden-value"})) == "Environment(…)"
