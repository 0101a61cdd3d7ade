"""`orbit sub`: subscriptions, and the deliveries that did not get through."""

from __future__ import annotations

from typing import Final

import click

from orbit.cli.pages import print_list
from orbit.cli.run import (
    Printer,
    after_option,
    json_option,
    key_option,
    limit_option,
    operation_key,
    run,
)
from orbit.protocol.limits import Limits
from orbit.sdk import OrbitClient

_FIRST: Final = ("subscription_id", "enabled", "event_types", "window", "attempt_budget")
_DELIVERY_FIRST: Final = ("delivery_id", "state", "attempts", "attempt_budget", "event_id", "updated_at")
_subscription_id = click.argument("subscription_id")


@click.group()
def sub() -> None:
    """Show, pause and resume subscriptions, and see to their deliveries."""


@sub.command("list")
@json_option
def list_subscriptions(*, as_json: bool) -> None:
    """List the application's subscriptions on the credentials' queue, oldest first."""
    out = Printer(as_json)

    async def work(client: OrbitClient) -> None:
        for one in (await client.list_subscriptions()).subscriptions:
            out(one, first=_FIRST)

    run(work)


@sub.command()
@_subscription_id
@json_option
def show(subscription_id: str, *, as_json: bool) -> None:
    """Show a subscription."""
    out = Printer(as_json)

    async def work(client: OrbitClient) -> None:
        out(await client.get_subscription(subscription_id), first=_FIRST)

    run(work)


@sub.command()
@_subscription_id
@json_option
def pause(subscription_id: str, *, as_json: bool) -> None:
    """Stop handing out deliveries, to all consumers; they go on collecting. Needs events:manage."""
    out = Printer(as_json)

    async def work(client: OrbitClient) -> None:
        out(await client.pause_subscription(subscription_id), first=_FIRST)

    run(work)


@sub.command()
@_subscription_id
@json_option
def resume(subscription_id: str, *, as_json: bool) -> None:
    """Hand out deliveries again. Needs events:manage."""
    out = Printer(as_json)

    async def work(client: OrbitClient) -> None:
        out(await client.resume_subscription(subscription_id), first=_FIRST)

    run(work)


@sub.command()
@_subscription_id
@limit_option
@after_option
@json_option
def deliveries(subscription_id: str, limit: int, after: str | None, *, as_json: bool) -> None:
    """List a subscription's deliveries, oldest first."""
    out = Printer(as_json)

    async def work(client: OrbitClient) -> None:
        await print_list(
            lambda place, count: client.list_deliveries(subscription_id, after=place, limit=count),
            lambda page: page.deliveries,
            lambda one: out(one, first=_DELIVERY_FIRST),
            after=after,
            limit=limit,
        )

    run(work)


@sub.command()
@click.argument("delivery_id")
@click.option("--attempts", type=click.IntRange(1, Limits().grant_max), required=True, help="How many more.")
@key_option
@json_option
def grant(delivery_id: str, *, attempts: int, key: str | None, as_json: bool) -> None:
    """Give a delivery more attempts; an EXPIRED one is handed out again. Needs events:manage."""
    out = Printer(as_json)
    name = operation_key(key)

    async def work(client: OrbitClient) -> None:
        out(await client.grant(name, delivery_id, attempts), first=_DELIVERY_FIRST)

    run(work, key=name)
