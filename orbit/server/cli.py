"""`orbit serve`: run one platform node. `orbit.cli` finds it here."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import click
import uvloop

from orbit.mysql.errors import DatabaseError
from orbit.mysql.pool import LanePool
from orbit.protocol.limits import Limits
from orbit.runtime.logs import configure_logging
from orbit.runtime.settings import Environment
from orbit.runtime.shutdown import Shutdown, shutdown_signals
from orbit.server.admin import FAILURE, database, fail
from orbit.server.app import create_app
from orbit.server.migrate import UnknownSchema, check_schema
from orbit.server.parts import Platform
from orbit.server.serve import Server, listener, server
from orbit.server.startup import UnfitServer, check_server
from orbit.server.wake import Wake

if TYPE_CHECKING:
    from orbit.mysql.dsn import DSN

DEFAULT_LANES: Final = 8


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--listen", default="127.0.0.1:8080", show_default=True, help="HOST:PORT; port 0 takes a free one.")
@click.option(
    "--lanes",
    default=DEFAULT_LANES,
    show_default=True,
    type=click.IntRange(min=1, max=1000),
    help="Connections to the database at most.",
)
@click.option(
    "--log-level",
    default="INFO",
    show_default=True,
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False),
    help="What goes to stderr.",
)
def serve(listen: str, lanes: int, log_level: str) -> None:
    """Run one platform node until SIGTERM or SIGINT; prints orbit_listening=URL when ready.

    The database is ORBIT_MYSQL_DSN, or in the file ORBIT_MYSQL_DSN_FILE.
    Tokens travel in clear text: listen on a loopback address and put TLS in front. The database must have this
    version's schema (orbit-admin migrate).
    """
    dsn = database(Environment(os.environ))
    host, port = _address(listen)
    configure_logging(log_level.upper())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        raise SystemExit(runner.run(_serve(dsn, host, port, lanes)))


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdecimal() and int(port) <= 65535):
        raise click.BadParameter("is not HOST:PORT", param_hint="--listen")
    return host.removeprefix("[").removesuffix("]"), int(port)


async def _serve(dsn: DSN, host: str, port: int, lanes: int) -> int:
    pool = LanePool(dsn, lanes, name="node")
    platform = Platform(pool=pool, wake=Wake(), limits=Limits())
    try:
        try:
            await check_server(pool)
            await check_schema(pool)
        except (UnfitServer, UnknownSchema, DatabaseError) as error:
            fail(str(error), FAILURE)
        try:
            listening = listener(host, port)
        except OSError as error:
            fail(f"cannot listen on {host}:{port}: {error.strerror}", FAILURE)
        with shutdown_signals() as shutdown, listening:
            node = server(create_app(platform), platform.limits, _say)
            stopping = asyncio.create_task(_stop_when_asked(node, platform, shutdown), name="stop")
            try:
                await node.serve(sockets=[listening])
            finally:
                stopping.cancel()
                with suppress(asyncio.CancelledError):
                    await stopping
        return 0 if node.started else FAILURE
    finally:
        await pool.close()


async def _stop_when_asked(node: Server, platform: Platform, shutdown: Shutdown) -> None:
    await shutdown.drain.wait()
    platform.draining.set()
    node.should_exit = True
    await shutdown.hard.wait()
    node.force_exit = True


def _say(url: str) -> None:
    click.echo(f"orbit_listening={url}")
