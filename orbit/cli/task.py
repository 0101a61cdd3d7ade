"""`orbit task`: what a person sees of tasks and does about them."""

from __future__ import annotations

import json
from typing import IO, Final

import click
from msgspec import UNSET, Raw

from orbit.cli.lines import Members, members, shown, word
from orbit.cli.pages import every, print_list
from orbit.cli.run import (
    Printer,
    after_option,
    json_option,
    key_option,
    limit_option,
    operation_key,
    run,
    say,
)
from orbit.protocol import strict_json
from orbit.protocol.errors import ErrorCode, InvalidJSON
from orbit.protocol.http_v1 import RecoverySafety, Resolution, ResolveTask, RetryPolicy, SubmitTask, TaskState
from orbit.protocol.limits import Limits
from orbit.sdk import HTTPError, OrbitClient

_FIRST: Final = (
    *("task_id", "state", "version", "error_code", "effect_uncertain", "cancel_requested_at", "attempt_count"),
    *("max_attempts", "handler", "handler_version", "updated_at"),
)
_EVENT_FIRST: Final = ("record", "task_version", "event_type", "state", "occurred_at", "attempt_id", "decision")
_AUDIT_FIRST: Final = ("record", "at", "action", "actor")
_ATTEMPT_FIRST: Final = ("record", "epoch", "attempt_id", "state", "outcome", "error_code", "retryable", "decision")

_show_result = click.option("--show-result", is_flag=True, help="Print results too.")
_task_id = click.argument("task_id")


@click.group()
def task() -> None:
    """Submit, show, list, cancel, resolve and retry tasks."""


@task.command()
@click.argument("handler")
@click.option("--handler-version", default="v1", show_default=True)
@click.option("--payload-version", default="v1", show_default=True)
@click.option("--payload", default=None, help="The payload as JSON.")
@click.option("--payload-file", type=click.File("rb"), default=None, help="The same in a file; - is stdin.")
@click.option("--idempotent", is_flag=True, help="Doing it twice is the same as doing it once.")
@click.option("--max-attempts", type=click.IntRange(1, 100), default=1, show_default=True)
@key_option
@json_option
def submit(
    handler: str,
    *,
    handler_version: str,
    payload_version: str,
    payload: str | None,
    payload_file: IO[bytes] | None,
    idempotent: bool,
    max_attempts: int,
    key: str | None,
    as_json: bool,
) -> None:
    """Submit a task for HANDLER, such as text.normalize, to the credentials' queue."""
    content = _given(payload, payload_file, "payload")
    if content is None:
        raise click.UsageError("give --payload or --payload-file, one of them")
    safety = RecoverySafety.IDEMPOTENT if idempotent else RecoverySafety.RECONCILE_ONLY
    out = Printer(as_json)
    name = operation_key(key)

    async def work(client: OrbitClient) -> None:
        wanted = SubmitTask(
            queue_id=client.credentials.queue_id,
            handler=handler,
            handler_version=handler_version,
            payload_version=payload_version,
            payload=content,
            recovery_safety=safety,
            retry=RetryPolicy(max_attempts=max_attempts),
        )
        out((await client.submit_task(name, wanted)).task, first=_FIRST)

    run(work, key=name)


@task.command()
@_task_id
@json_option
@_show_result
@click.option("--show-payload", is_flag=True, help="Print the payload too.")
def show(task_id: str, *, as_json: bool, show_result: bool, show_payload: bool) -> None:
    """Show a task as it is now."""
    documents = {name for name, wanted in (("result", show_result), ("payload", show_payload)) if wanted}
    out = Printer(as_json, documents)

    async def work(client: OrbitClient) -> None:
        out(await client.get_task(task_id), first=_FIRST)

    run(work)


@task.command("list")
@click.option(
    "--state",
    type=click.Choice([state.value for state in TaskState], case_sensitive=False),
    default=TaskState.NEEDS_REVIEW.value,
    show_default=True,
    help="Where the tasks stand.",
)
@limit_option
@after_option
@json_option
def list_tasks(state: str, limit: int, after: str | None, *, as_json: bool) -> None:
    """List tasks in a state, those first that came to it first."""
    out = Printer(as_json)

    async def work(client: OrbitClient) -> None:
        await print_list(
            lambda place, count: client.list_tasks(TaskState(state.upper()), after=place, limit=count),
            lambda page: page.tasks,
            lambda one: out(one, first=_FIRST),
            after=after,
            limit=limit,
        )

    run(work)


@task.command()
@_task_id
@json_option
def cancel(task_id: str, *, as_json: bool) -> None:
    """Cancel a task: at once if nobody runs it, else its worker is told (cancel_requested_at)."""
    out = Printer(as_json)

    async def work(client: OrbitClient) -> None:
        out(await client.cancel_task(task_id), first=_FIRST)

    run(work)


@task.command()
@_task_id
@click.option(
    "--outcome",
    required=True,
    type=click.Choice([one.value for one in Resolution], case_sensitive=False),
    help="What became of it.",
)
@click.option("--evidence", default=None, help="What proves it: a text, such as a ticket's number.")
@click.option("--evidence-file", type=click.File("rb"), default=None, help="The same as a JSON document; - is stdin.")
@click.option("--result", default=None, help="The result as JSON, with SUCCEEDED.")
@click.option("--result-file", type=click.File("rb"), default=None, help="The same in a file; - is stdin.")
@click.option("--error-code", default=None, help="Needed with FAILED, possible with CANCELLED; such as NOT_DELIVERED.")
@key_option
@json_option
def resolve(
    task_id: str,
    *,
    outcome: str,
    evidence: str | None,
    evidence_file: IO[bytes] | None,
    result: str | None,
    result_file: IO[bytes] | None,
    error_code: str | None,
    key: str | None,
    as_json: bool,
) -> None:
    """Say what became of a task under review. Needs tasks:manage, and is written down with the evidence.

    The task ends as you say, and everybody who follows its results is told.
    """
    # A text is evidence as it is; only a file holds JSON.
    proof = _given(None if evidence is None else json.dumps(evidence), evidence_file, "evidence")
    if proof is None:
        raise click.UsageError("give --evidence or --evidence-file, one of them")
    given = _given(result, result_file, "result")
    resolution = ResolveTask(
        outcome=Resolution(outcome.upper()),
        evidence=proof,
        result=UNSET if given is None else given,
        error_code=UNSET if error_code is None else error_code,
    )
    out = Printer(as_json)
    name = operation_key(key)

    async def work(client: OrbitClient) -> None:
        out(await client.resolve_task(name, task_id, resolution), first=_FIRST)

    run(work, key=name)


@task.command()
@_task_id
@key_option
@json_option
def retry(task_id: str, *, key: str | None, as_json: bool) -> None:
    """Have a task done again, as a new task that this prints; the old one stays as it is. Needs tasks:manage.

    Possible for tasks that need review, failed or were cancelled. What the old one did, if it did something, may be
    done twice.
    """
    out = Printer(as_json)
    name = operation_key(key)

    async def work(client: OrbitClient) -> None:
        out((await client.retry_task(name, task_id)).task, first=_FIRST)

    run(work, key=name)


@task.command()
@_task_id
@_show_result
@click.option("--show-evidence", is_flag=True, help="Print the evidence of persons too.")
@json_option
def history(task_id: str, *, show_result: bool, show_evidence: bool, as_json: bool) -> None:
    """Show what happened to a task: attempts, reports that came too late, events, and what was done by hand.

    Each line says with `record` which of these it is. What was done by hand needs tasks:manage.
    """
    results = {"result"} if show_result else set()
    out = Printer(as_json)

    async def work(client: OrbitClient) -> None:
        await _attempts(client, task_id, out, results)
        await _events(client, task_id, out, results)
        try:
            await _audit(client, task_id, out, {"evidence"} if show_evidence else set())
        except HTTPError as error:
            if error.code != ErrorCode.PERMISSION_DENIED:
                raise
            say("what was done by hand is left out: the credential lacks tasks:manage")

    run(work)


async def _attempts(client: OrbitClient, task_id: str, out: Printer, documents: set[str]) -> None:
    async for page in every(lambda place: client.list_attempts(task_id, after=place)):
        for attempt in page.attempts:
            out.members(_record("attempt", members(attempt), _ATTEMPT_FIRST, documents))
            for late in attempt.evidence:
                named = {"attempt_id": word(attempt.attempt_id)} | members(late)
                out.members(_record("evidence", named, ("record", "attempt_id"), documents))


async def _events(client: OrbitClient, task_id: str, out: Printer, documents: set[str]) -> None:
    async for page in every(lambda place: client.list_events(task_id, after=place)):
        for event in page.events:
            out.members(_record("event", members(event), _EVENT_FIRST, documents))


async def _audit(client: OrbitClient, task_id: str, out: Printer, documents: set[str]) -> None:
    async for page in every(lambda place: client.list_audit(task_id, after=place)):
        for entry in page.entries:
            out.members(_record("audit", members(entry), _AUDIT_FIRST, documents))


def _record(kind: str, given: Members, first: tuple[str, ...], documents: set[str]) -> Members:
    return shown({"record": word(kind)} | given, first=first, documents=documents)


def _given(text: str | None, file: IO[bytes] | None, name: str) -> Raw | None:
    """The JSON document that an option or its file holds; both, or a wrong one, end the command with 2."""
    if text is not None and file is not None:
        raise click.UsageError(f"give --{name} or --{name}-file, not both")
    if file is not None:
        limit = Limits().request_body_bytes
        data = file.read(limit + 1)
        if len(data) > limit:
            raise click.UsageError(f"--{name}-file: is larger than {limit} bytes")
        return _checked(data, f"{name}-file")
    return None if text is None else _checked(text.encode("utf-8", "surrogateescape"), name)


def _checked(data: bytes, name: str) -> Raw:
    try:
        value = strict_json.parse(data, max_bytes=max(len(data), 1))
        return Raw(strict_json.canonical(value))
    except InvalidJSON as error:
        raise click.UsageError(f"--{name}: is not strict JSON: {error.reason}") from None
