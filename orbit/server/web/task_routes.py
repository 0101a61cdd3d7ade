"""The operations on tasks: submit, read, list, cancel, and what a person does about them."""

from __future__ import annotations

from typing import Final

from orbit.protocol.errors import ErrorCode, InvalidValue
from orbit.protocol.history_v1 import AttemptPage, AuditPage, EventPage
from orbit.protocol.http_v1 import (
    CancelTask,
    ResolveTask,
    RetryTask,
    SubmitTask,
    Task,
    TaskAccepted,
    TaskPage,
    TaskState,
)
from orbit.protocol.values import parse_counter
from orbit.server.services import cancel, history, listing, recovery, submit, tasks
from orbit.server.services.access import Permission
from orbit.server.web.endpoint import Answer, Call, Endpoint, Query
from orbit.server.web.paging import PAGING, paging, place

_HIDDEN: Final = frozenset({ErrorCode.NOT_FOUND})
_REFUSED: Final = _HIDDEN | {ErrorCode.STATE_CONFLICT}


async def _submit_task(call: Call) -> Answer:
    payload = call.document["payload"] if isinstance(call.document, dict) else None
    accepted = await submit.submit(call.platform, call.caller, call.operation_key, call.request, payload)
    return Answer(accepted, created=accepted.created)


async def _list_tasks(call: Call) -> Answer:
    return Answer(await listing.list_tasks(call.platform, call.caller, call.query["state"], *place(call, None)))


async def _get_task(call: Call) -> Answer:
    return Answer(await tasks.get(call.platform, call.caller, call.path["task_id"]))


async def _list_attempts(call: Call) -> Answer:
    return Answer(await history.list_attempts(call.platform, call.caller, call.path["task_id"], *place(call, None)))


async def _list_events(call: Call) -> Answer:
    return Answer(await listing.list_events(call.platform, call.caller, call.path["task_id"], *place(call, 0)))


async def _list_audit(call: Call) -> Answer:
    return Answer(await listing.list_audit(call.platform, call.caller, call.path["task_id"], *place(call, 0)))


async def _cancel_task(call: Call) -> Answer:
    return Answer(await cancel.cancel(call.platform, call.caller, call.path["task_id"]))


async def _resolve_task(call: Call) -> Answer:
    task = await recovery.resolve(
        call.platform,
        call.caller,
        call.operation_key,
        call.path["task_id"],
        call.request,
    )
    return Answer(task)


async def _retry_task(call: Call) -> Answer:
    accepted = await recovery.retry(call.platform, call.caller, call.operation_key, call.path["task_id"])
    return Answer(accepted, created=accepted.created)


def _state(text: str) -> TaskState:
    try:
        return TaskState(text)
    except ValueError:
        raise InvalidValue("state", "is none of the states there are") from None


_LIST: Final = (
    Query(
        name="state",
        description="Where the tasks stand.",
        schema={"type": "string", "enum": [state.value for state in TaskState]},
        parse=_state,
        required=True,
    ),
    *paging(listing.CURSOR, listing.parse_cursor),
)
_BY_NUMBER: Final = paging("^[1-9][0-9]{0,19}$", lambda text: parse_counter(text, "after"))

TASKS: Final = (
    Endpoint(
        method="POST",
        path="/v1/tasks",
        name="submitTask",
        summary="Submit a task, once for its operation key.",
        permission=Permission.TASKS_SUBMIT,
        handler=_submit_task,
        request=SubmitTask,
        response=TaskAccepted,
        keyed=True,
        creates=True,
        errors=_HIDDEN,
    ),
    Endpoint(
        method="GET",
        path="/v1/tasks",
        name="listTasks",
        summary="List the application's tasks in a state on the credential's queue, by when they came to it.",
        permission=Permission.TASKS_READ,
        handler=_list_tasks,
        response=TaskPage,
        query=_LIST,
    ),
    Endpoint(
        method="GET",
        path="/v1/tasks/{task_id}",
        name="getTask",
        summary="Read a task as it is now.",
        permission=Permission.TASKS_READ,
        handler=_get_task,
        response=Task,
        errors=_HIDDEN,
    ),
    Endpoint(
        method="GET",
        path="/v1/tasks/{task_id}/attempts",
        name="listAttempts",
        summary="List a task's attempts, oldest first, with what was reported of each.",
        permission=Permission.TASKS_READ,
        handler=_list_attempts,
        response=AttemptPage,
        query=PAGING,
        errors=_HIDDEN,
    ),
    Endpoint(
        method="GET",
        path="/v1/tasks/{task_id}/events",
        name="listEvents",
        summary="List a task's events by version, as consumers get them.",
        permission=Permission.TASKS_READ,
        handler=_list_events,
        response=EventPage,
        query=_BY_NUMBER,
        errors=_HIDDEN,
    ),
    Endpoint(
        method="GET",
        path="/v1/tasks/{task_id}/audit",
        name="listAudit",
        summary="List what was done to a task by hand, oldest first, with the evidence that was given.",
        permission=Permission.TASKS_MANAGE,
        handler=_list_audit,
        response=AuditPage,
        query=_BY_NUMBER,
        errors=_HIDDEN,
    ),
    Endpoint(
        method="POST",
        path="/v1/tasks/{task_id}/cancel",
        name="cancelTask",
        summary="Cancel a task: at once if nobody runs it, else its worker is told; asking again changes nothing.",
        permission=Permission.TASKS_CANCEL,
        handler=_cancel_task,
        request=CancelTask,
        response=Task,
        errors=_REFUSED,
    ),
    Endpoint(
        method="POST",
        path="/v1/tasks/{task_id}/resolve",
        name="resolveTask",
        summary="Say what became of a task under review, once for the operation key.",
        permission=Permission.TASKS_MANAGE,
        handler=_resolve_task,
        request=ResolveTask,
        response=Task,
        keyed=True,
        errors=_REFUSED,
    ),
    Endpoint(
        method="POST",
        path="/v1/tasks/{task_id}/retry",
        name="retryTask",
        summary="Submit what a task was asked for again, as a new task, once for the operation key.",
        permission=Permission.TASKS_MANAGE,
        handler=_retry_task,
        request=RetryTask,
        response=TaskAccepted,
        keyed=True,
        creates=True,
        errors=_REFUSED,
    ),
)
"""Every operation on tasks."""
