"""The receiver's environment, read and checked as a whole before anything is opened.

| variable                          | for           | meaning                                                        |
| --------------------------------- | ------------- | -------------------------------------------------------------- |
| ORBIT_RECEIVER_DSN (or _FILE)     | all           | the receiver's own database                                    |
| RECEIVER_NAME                     | demo, consume | the fixed purpose of this inbox; default task-result-view      |
| ORBIT_URL                         | demo, consume | the platform                                                   |
| ORBIT_CREDENTIALS_FILE            | demo, consume | what `orbit-admin bootstrap` wrote                             |
| ORBIT_TOKEN (or _FILE)            | demo, consume | instead of the file's token                                    |
| ORBIT_QUEUE_ID                    | demo, consume | instead of the file's queue                                    |
| ORBIT_SUBSCRIPTION_ID             | consume       | which subscription to consume                                  |

The loaders raise SettingsError, InvalidDSN or InvalidConfiguration: each names the variable, none shows a value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orbit.mysql.dsn import DSN, InvalidDSN, SSLMode
from orbit.protocol.errors import InvalidValue
from orbit.protocol.values import parse_id, parse_name
from orbit.runtime.settings import Environment, SettingsError
from orbit.sdk.credentials import Credentials
from orbit.sdk.endpoint import Endpoint, is_loopback
from orbit.sdk.errors import InvalidConfiguration
from receiver.schema import CONSUMER_NAME_LENGTH

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_NAME: Final = "task-result-view"

WRONG: Final = (SettingsError, InvalidDSN, InvalidConfiguration)
"""What the loaders raise: the command was set up wrongly and has done nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What `demo` needs, and `consume` besides its subscription. The repr hides password and token."""

    dsn: DSN
    consumer_name: str
    url: str
    credentials: Credentials


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeSettings(Settings):
    """What `consume` needs."""

    subscription_id: str


def load_dsn(variables: Mapping[str, str]) -> DSN:
    """The receiver's database; it must be named (seed result-inbox section 1)."""
    return DSN.parse(Environment(variables).secret("ORBIT_RECEIVER_DSN"), source="ORBIT_RECEIVER_DSN")


def load(variables: Mapping[str, str]) -> Settings:
    """The settings of `demo`."""
    environment = Environment(variables)
    url = environment.text("ORBIT_URL")
    Endpoint.parse(url, source="ORBIT_URL")
    return Settings(
        dsn=load_dsn(variables),
        consumer_name=_consumer_name(environment),
        url=url,
        credentials=Credentials.from_environment(variables),
    )


def load_consume(variables: Mapping[str, str]) -> ConsumeSettings:
    """The settings of `consume`."""
    settings = load(variables)
    return ConsumeSettings(
        dsn=settings.dsn,
        consumer_name=settings.consumer_name,
        url=settings.url,
        credentials=settings.credentials,
        subscription_id=_subscription_id(Environment(variables)),
    )


def exposure(dsn: DSN) -> str | None:
    """Say what is open to others on the way to the database, or None. Pure.

    Not an error: the network may be a private one. In production it is to be trusted TLS (seed result-inbox).
    """
    if all(is_loopback(host) for host, _ in dsn.hosts):
        return None
    if dsn.ssl.mode is SSLMode.DISABLED:
        return "ORBIT_RECEIVER_DSN: events and results cross the network in plain text; set ssl_ca or ssl_mode"
    if dsn.ssl.mode is SSLMode.REQUIRED:
        return "ORBIT_RECEIVER_DSN: nobody checks whose server answers; set ssl_ca, or ssl_mode to VERIFY_CA"
    return None


def _consumer_name(environment: Environment) -> str:
    try:
        return parse_name(environment.text("RECEIVER_NAME", DEFAULT_NAME), "name", max_length=CONSUMER_NAME_LENGTH)
    except InvalidValue as error:
        raise SettingsError("RECEIVER_NAME", error.reason) from None


def _subscription_id(environment: Environment) -> str:
    try:
        return parse_id(environment.text("ORBIT_SUBSCRIPTION_ID"), "id")
    except InvalidValue as error:
        raise SettingsError("ORBIT_SUBSCRIPTION_ID", error.reason) from None
