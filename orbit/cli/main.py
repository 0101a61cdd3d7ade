"""The entry point of `orbit`."""

from __future__ import annotations

import click

from orbit.cli.lazy import Lazy, LazyGroup


@click.group(
    cls=LazyGroup,
    lazy={
        "task": Lazy("orbit.cli.task:task", "Submit, show, list, cancel, resolve and retry tasks."),
        "queue": Lazy("orbit.cli.queue:queue", "Show, pause, resume and limit queues."),
        "sub": Lazy("orbit.cli.sub:sub", "Show, pause and resume subscriptions, and see to their deliveries."),
        "serve": Lazy("orbit.server.cli:serve", "Run one platform node.", "server"),
        "dev": Lazy("orbit.sandbox.dev:dev", "Run an Orbit of your own, with a sample worker.", "sandbox"),
    },
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="result-inbox")
def main() -> None:
    """Work with an Orbit platform, or run one.

    task, queue and sub ask the platform at ORBIT_URL with the credentials in ORBIT_CREDENTIALS_FILE (ORBIT_TOKEN and
    ORBIT_QUEUE_ID override them). They print one line an object on stdout, with --json one JSON object. The exit code
    is 1 when the platform refuses or does not answer, 2 for a wrong command or setting.
    """
