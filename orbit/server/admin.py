"""`orbit-admin`: what an administrator does to a platform's database before and between its nodes' lives."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import click

from orbit.mysql.dsn import DSN, InvalidDSN
from orbit.mysql.errors import DatabaseError
from orbit.protocol.errors import InvalidValue
from orbit.runtime.output import OutputFailed, write_lines
from orbit.runtime.settings import Environment, SettingsError
from orbit.server.bootstrap import bootstrap as make_credential
from orbit.server.migrate import MigrationError, UnknownSchema
from orbit.server.migrate import migrate as bring_up_to_date
from orbit.server.startup import UnfitServer, check_server_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

USAGE: Final = 2
FAILURE: Final = 1


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="result-inbox")
def main() -> None:
    """Administer an Orbit platform. The database is ORBIT_MYSQL_DSN, or in the file ORBIT_MYSQL_DSN_FILE."""


@main.command()
def migrate() -> None:
    """Bring the database's schema to this version. Stop the nodes of other versions first."""
    dsn = database(Environment(os.environ))
    try:
        asyncio.run(check_server_of(dsn))
        bring_up_to_date(dsn)
    except (UnfitServer, DatabaseError, MigrationError) as error:
        fail(str(error), FAILURE)
    _print("orbit_schema_migrated=true")


@main.command()
@click.option("--application", required=True, help="Who will submit tasks or consume events.")
@click.option("--namespace", required=True, help="What queues and subscriptions are counted in.")
@click.option("--environment", required=True, help="Such as development or production; part of a queue's name.")
@click.option("--queue", required=True, help="The one queue that the credential is bound to.")
@click.option("--worker-access", is_flag=True, help="Also permit running tasks.")
@click.option("--event-access", is_flag=True, help="Also permit subscribing to events and consuming them.")
@click.option("--queue-access", is_flag=True, help="Also permit pausing and limiting the queue.")
@click.option("--task-access", is_flag=True, help="Also permit resolving and retrying tasks, and reading their audit.")
@click.option(
    "--output",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where the credentials go: a new file that only its owner can read.",
)
def bootstrap(
    *,
    application: str,
    namespace: str,
    environment: str,
    queue: str,
    worker_access: bool,
    event_access: bool,
    queue_access: bool,
    task_access: bool,
    output: Path,
) -> None:
    """Make names that do not exist yet, and one new credential for them."""
    dsn = database(Environment(os.environ))
    try:
        # The file comes first: a credential that cannot be stored must not be made.
        with _new_file(output) as file:
            content = make_credential(
                dsn,
                application=application,
                namespace=namespace,
                environment=environment,
                queue=queue,
                worker_access=worker_access,
                event_access=event_access,
                queue_access=queue_access,
                task_access=task_access,
            )
            _write(file, content)
    except InvalidValue as error:
        fail(f"--{error}", USAGE)
    except FileExistsError:
        fail(f"{output} exists and is not overwritten", USAGE)
    except OSError as error:
        fail(f"{output} cannot be written: {error.strerror}", FAILURE)
    except (DatabaseError, UnknownSchema) as error:
        fail(str(error), FAILURE)
    _print(f"orbit_credentials={output}")


def database(environment: Environment) -> DSN:
    """Read the platform's DSN; ends the command with 2 when it is missing or wrong."""
    try:
        return DSN.parse(environment.secret("ORBIT_MYSQL_DSN"), source="ORBIT_MYSQL_DSN")
    except (SettingsError, InvalidDSN) as error:
        fail(str(error), USAGE)


def _print(line: str) -> None:
    try:
        write_lines(line)
    except OutputFailed as error:
        fail(str(error), FAILURE)


def fail(message: str, code: int) -> NoReturn:
    """End the command: one line on stderr and the exit code."""
    click.echo(f"error: {message}", err=True)
    raise SystemExit(code)


@contextmanager
def _new_file(path: Path) -> Iterator[int]:
    """Create a file that only its owner can use; it goes again when what follows fails."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        yield file
    except BaseException:
        path.unlink()
        raise
    finally:
        os.close(file)


def _write(file: int, content: dict[str, Any]) -> None:
    data = (json.dumps(content, indent=2) + "\n").encode()
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
    os.fsync(file)
