"""The receiver's environment: complete or refused, by the name of the variable, before anything is opened."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from receiver.settings import WRONG, exposure, load, load_consume, load_dsn

QUEUE = "a" * 32
SUBSCRIPTION = "b" * 32
TOKEN = "hidden-token-0123456789"
DSN = "mysql://receiver:hidden-password@127.0.0.1:3307/receiver_example"


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    credentials = tmp_path / "credentials.json"
    credentials.touch(0o600)
    credentials.write_text(
        json.dumps(
            {
                "application": "inbox-example",
                "namespace": "default",
                "environment": "development",
                "queue": "inbox-demo",
                "queue_id": QUEUE,
                "token": TOKEN,
                "permissions": ["events:read"],
            }
        )
    )
    return {
        "ORBIT_URL": "http://127.0.0.1:8080",
        "ORBIT_CREDENTIALS_FILE": str(credentials),
        "ORBIT_RECEIVER_DSN": DSN,
        "ORBIT_SUBSCRIPTION_ID": SUBSCRIPTION,
    }


def test_everything_given_is_read(variables: dict[str, str]) -> None:
    settings = load_consume({**variables, "RECEIVER_NAME": "Other.view_2-x"})
    assert settings.consumer_name == "Other.view_2-x"
    assert settings.subscription_id == SUBSCRIPTION
    assert settings.url == "http://127.0.0.1:8080"
    assert settings.credentials.queue_id == QUEUE
    assert (settings.dsn.hosts, settings.dsn.database) == ((("127.0.0.1", 3307),), "receiver_example")


def test_the_name_has_its_default_and_the_demo_needs_no_subscription(variables: dict[str, str]) -> None:
    del variables["ORBIT_SUBSCRIPTION_ID"]
    assert load(variables).consumer_name == "task-result-view"


def test_token_and_queue_of_the_environment_override_the_file(variables: dict[str, str]) -> None:
    settings = load({**variables, "ORBIT_QUEUE_ID": "c" * 32, "ORBIT_TOKEN": "another-token-0123456789"})
    assert settings.credentials.queue_id == "c" * 32
    assert settings.credentials.token.reveal() == "another-token-0123456789"


def test_init_needs_the_database_alone() -> None:
    assert load_dsn({"ORBIT_RECEIVER_DSN": DSN}).database == "receiver_example"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ORBIT_URL", ""),
        ("ORBIT_URL", "http://orbit.example"),
        ("ORBIT_URL", "ftp://127.0.0.1"),
        ("ORBIT_RECEIVER_DSN", ""),
        ("ORBIT_RECEIVER_DSN", "mysql://u:hidden-password@127.0.0.1:3306/"),
        ("ORBIT_RECEIVER_DSN", "postgres://u:hidden-password@127.0.0.1/d"),
        ("ORBIT_CREDENTIALS_FILE", ""),
        ("ORBIT_CREDENTIALS_FILE", "/nonexistent/credentials.json"),
        ("ORBIT_SUBSCRIPTION_ID", ""),
        ("ORBIT_SUBSCRIPTION_ID", "B" * 32),
        ("ORBIT_SUBSCRIPTION_ID", "b" * 31),
        ("ORBIT_QUEUE_ID", "not-an-id"),
        ("ORBIT_TOKEN", "short"),
        ("RECEIVER_NAME", "a" * 65),
        ("RECEIVER_NAME", "-leading"),
        ("RECEIVER_NAME", "a b"),
        ("RECEIVER_NAME", "naïve"),
        ("RECEIVER_NAME", "a\n"),
    ],
)
def test_a_wrong_variable_is_refused_by_name_and_never_shown(variables: dict[str, str], name: str, value: str) -> None:
    with pytest.raises(WRONG) as raised:
        load_consume({**variables, name: value})
    text = str(raised.value)
    assert text.startswith(name)
    assert "hidden" not in text


@pytest.mark.parametrize("name", ["a", "A" * 64, "0.x_y-z", "task-result-view"])
def test_every_allowed_name_is_accepted_as_it_is(variables: dict[str, str], name: str) -> None:
    assert load({**variables, "RECEIVER_NAME": name}).consumer_name == name


def test_the_repr_hides_password_and_token(variables: dict[str, str]) -> None:
    text = repr(load_consume(variables))
    assert "hidden" not in text
    assert SUBSCRIPTION in text


@pytest.mark.parametrize(
    ("hosts", "options", "says"),
    [
        ("127.0.0.1", "", None),
        ("localhost:3307", "", None),
        ("[::1]:3307", "", None),
        ("127.0.0.1,127.0.0.2", "?ssl_mode=REQUIRED", None),
        ("db.example", "", "in plain text"),
        ("10.0.0.7", "?ssl_mode=DISABLED", "in plain text"),
        ("127.0.0.1,db.example", "", "in plain text"),
        ("db.example", "?ssl_mode=REQUIRED", "nobody checks whose server answers"),
        ("db.example", "?ssl_mode=VERIFY_CA", None),
        ("db.example", "?ssl_mode=VERIFY_IDENTITY", None),
        ("db.example", "?ssl_ca=/etc/ca.pem", None),
    ],
)
def test_a_database_beyond_this_machine_is_to_be_reached_over_trusted_tls(
    hosts: str, options: str, says: str | None
) -> None:
    reason = exposure(load_dsn({"ORBIT_RECEIVER_DSN": f"mysql://receiver:hidden-password@{hosts}/inbox{options}"}))
    if says is None:
        assert reason is None
    else:
        assert reason is not None
        assert says in reason
        assert reason.startswith("ORBIT_RECEIVER_DSN: ")
        assert "hidden-password" not in reason
