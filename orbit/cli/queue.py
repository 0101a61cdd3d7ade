"""`orbit queue`: what an operator sees of queues and does to them."""

from __future__ import annotations

from typing import Final

import click
from msgspec import UNSET

from orbit.cli.run import Failed, Printer, json_option, run
from orbit.protocol.http_v1 import QueueLimits
from orbit.sdk import OrbitClient

_FIRST: Final = ("queue_id", "namespace", "environment", "name", "paused")
_queue_id = click.argument("queue_id", required=False)


@click.group()
def queue() -> None:
    """Show, pause, resume and limit queues. QUEUE_ID is the credentials' queue unless it is given."""


@queue.command("list")
@json_option
def list_queues(*, as_json: bool) -> None:
    """List the queues that the credentials are for."""
    out = Printer(as_json)

    async def work(client: OrbitClient) -> None:
        for one in (await client.list_queues()).queues:
            out(one, first=_FIRST)

    run(work)


@queue.command()
@_queue_id
@json_option
def show(queue_id: str | None, *, as_json: bool) -> None:
    """Show a queue and its limits."""
    out = Printer(as_json)

    async def work(client: OrbitClient) -> None:
        wanted = queue_id or client.credentials.queue_id
        for one in (await client.list_queues()).queues:
            if one.queue_id == wanted:
                out(one, first=_FIRST)
                return
        raise Failed("the credentials are not for that queue")

    run(work)


@queue.command()
@_queue_id
@json_option
def pause(queue_id: str | None, *, as_json: bool) -> None:
    """Stop claims, for all workers; what is claimed goes on. Needs queues:manage."""
    out = Printer(as_json)

    async def work(client: OrbitClient) -> None:
        out(await client.pause_queue(queue_id or client.credentials.queue_id), first=_FIRST)

    run(work)


@queue.command()
@_queue_id
@json_option
def resume(queue_id: str | None, *, as_json: bool) -> None:
    """Let workers claim again. Needs queues:manage."""
    out = Printer(as_json)

    async def work(client: OrbitClient) -> None:
        out(await client.resume_queue(queue_id or client.credentials.queue_id), first=_FIRST)

    run(work)


@queue.command()
@_queue_id
@click.option("--concurrency-limit", type=click.IntRange(min=1), default=None, help="Attempts at a time.")
@click.option("--start-limit", type=click.IntRange(min=1), default=None, help="Starts in each window.")
@click.option("--start-window-ms", type=click.IntRange(min=100), default=None, help="How long a window is.")
@click.option("--none", "no_limits", is_flag=True, help="Take all limits away.")
@json_option
def limits(
    queue_id: str | None,
    *,
    concurrency_limit: int | None,
    start_limit: int | None,
    start_window_ms: int | None,
    no_limits: bool,
    as_json: bool,
) -> None:
    """Replace all limits of a queue by those given; one that is left out is taken away. Needs queues:manage."""
    given = [one for one in (concurrency_limit, start_limit, start_window_ms) if one is not None]
    if no_limits == bool(given):
        raise click.UsageError("give the limits that the queue shall have, or --none")
    if (start_limit is None) != (start_window_ms is None):
        raise click.UsageError("--start-limit and --start-window-ms go together")
    wanted = QueueLimits(
        concurrency_limit=UNSET if concurrency_limit is None else concurrency_limit,
        start_limit=UNSET if start_limit is None else start_limit,
        start_window_ms=UNSET if start_window_ms is None else start_window_ms,
    )
    out = Printer(as_json)

    async def work(client: OrbitClient) -> None:
        out(await client.set_queue_limits(queue_id or client.credentials.queue_id, wanted), first=_FIRST)

    run(work)
