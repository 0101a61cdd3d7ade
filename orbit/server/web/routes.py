"""The route table of the HTTP interface: what there is, who may use it, what goes in and what comes out."""

from __future__ import annotations

from typing import Final

from orbit.protocol.errors import ErrorCode
from orbit.protocol.http_v1 import (
    CreateSubscription,
    Delivery,
    DeliveryPage,
    GrantAttempts,
    PauseQueue,
    PauseSubscription,
    Queue,
    QueueLimits,
    QueuePage,
    ResumeQueue,
    ResumeSubscription,
    Subscription,
    SubscriptionPage,
)
from orbit.server.services import deliveries, queues, subscriptions
from orbit.server.services.access import Permission
from orbit.server.web.endpoint import Answer, Call, Endpoint
from orbit.server.web.paging import PAGING, place
from orbit.server.web.task_routes import TASKS

_HIDDEN: Final = frozenset({ErrorCode.NOT_FOUND})


async def _list_queues(call: Call) -> Answer:
    return Answer(await queues.list_queues(call.platform, call.caller))


async def _pause_queue(call: Call) -> Answer:
    return Answer(await queues.set_paused(call.platform, call.caller, call.path["queue_id"], paused=True))


async def _resume_queue(call: Call) -> Answer:
    return Answer(await queues.set_paused(call.platform, call.caller, call.path["queue_id"], paused=False))


async def _limit_queue(call: Call) -> Answer:
    return Answer(await queues.set_limits(call.platform, call.caller, call.path["queue_id"], call.request))


async def _create_subscription(call: Call) -> Answer:
    subscription, created = await subscriptions.create(call.platform, call.caller, call.operation_key, call.request)
    return Answer(subscription, created=created)


async def _list_subscriptions(call: Call) -> Answer:
    return Answer(await subscriptions.list_subscriptions(call.platform, call.caller))


async def _get_subscription(call: Call) -> Answer:
    return Answer(await subscriptions.get(call.platform, call.caller, call.path["subscription_id"]))


async def _pause_subscription(call: Call) -> Answer:
    subscription_id = call.path["subscription_id"]
    return Answer(await subscriptions.set_enabled(call.platform, call.caller, subscription_id, enabled=False))


async def _resume_subscription(call: Call) -> Answer:
    subscription_id = call.path["subscription_id"]
    return Answer(await subscriptions.set_enabled(call.platform, call.caller, subscription_id, enabled=True))


async def _list_deliveries(call: Call) -> Answer:
    return Answer(
        await deliveries.list_page(call.platform, call.caller, call.path["subscription_id"], *place(call, None))
    )


async def _grant_attempts(call: Call) -> Answer:
    delivery_id = call.path["delivery_id"]
    return Answer(await deliveries.grant(call.platform, call.caller, call.operation_key, delivery_id, call.request))


ENDPOINTS: Final = (
    *TASKS,
    Endpoint(
        method="GET",
        path="/v1/queues",
        name="listQueues",
        summary="List the queues that the credential is bound to.",
        permission=None,
        handler=_list_queues,
        response=QueuePage,
    ),
    Endpoint(
        method="POST",
        path="/v1/queues/{queue_id}/pause",
        name="pauseQueue",
        summary="Stop claims of the queue's tasks; what is claimed goes on.",
        permission=Permission.QUEUES_MANAGE,
        handler=_pause_queue,
        request=PauseQueue,
        response=Queue,
        errors=_HIDDEN,
    ),
    Endpoint(
        method="POST",
        path="/v1/queues/{queue_id}/resume",
        name="resumeQueue",
        summary="Let workers claim the queue's tasks again.",
        permission=Permission.QUEUES_MANAGE,
        handler=_resume_queue,
        request=ResumeQueue,
        response=Queue,
        errors=_HIDDEN,
    ),
    Endpoint(
        method="PUT",
        path="/v1/queues/{queue_id}/limits",
        name="limitQueue",
        summary="Replace the queue's limits; one that is left out is taken away.",
        permission=Permission.QUEUES_MANAGE,
        handler=_limit_queue,
        request=QueueLimits,
        response=Queue,
        errors=_HIDDEN,
    ),
    Endpoint(
        method="POST",
        path="/v1/subscriptions",
        name="createSubscription",
        summary="Subscribe to a queue's events from now on, once for the operation key.",
        permission=Permission.EVENTS_MANAGE,
        handler=_create_subscription,
        request=CreateSubscription,
        response=Subscription,
        keyed=True,
        creates=True,
        errors=_HIDDEN | {ErrorCode.RESOURCE_EXHAUSTED},
    ),
    Endpoint(
        method="GET",
        path="/v1/subscriptions",
        name="listSubscriptions",
        summary="List the application's subscriptions on the credential's queue, oldest first.",
        permission=Permission.EVENTS_READ,
        handler=_list_subscriptions,
        response=SubscriptionPage,
    ),
    Endpoint(
        method="GET",
        path="/v1/subscriptions/{subscription_id}",
        name="getSubscription",
        summary="Read a subscription.",
        permission=Permission.EVENTS_READ,
        handler=_get_subscription,
        response=Subscription,
        errors=_HIDDEN,
    ),
    Endpoint(
        method="POST",
        path="/v1/subscriptions/{subscription_id}/pause",
        name="pauseSubscription",
        summary="Stop handing out deliveries; they go on collecting.",
        permission=Permission.EVENTS_MANAGE,
        handler=_pause_subscription,
        request=PauseSubscription,
        response=Subscription,
        errors=_HIDDEN,
    ),
    Endpoint(
        method="POST",
        path="/v1/subscriptions/{subscription_id}/resume",
        name="resumeSubscription",
        summary="Hand out deliveries again.",
        permission=Permission.EVENTS_MANAGE,
        handler=_resume_subscription,
        request=ResumeSubscription,
        response=Subscription,
        errors=_HIDDEN,
    ),
    Endpoint(
        method="GET",
        path="/v1/subscriptions/{subscription_id}/deliveries",
        name="listDeliveries",
        summary="List a subscription's deliveries, oldest first.",
        permission=Permission.EVENTS_READ,
        handler=_list_deliveries,
        response=DeliveryPage,
        query=PAGING,
        errors=_HIDDEN,
    ),
    Endpoint(
        method="POST",
        path="/v1/deliveries/{delivery_id}/grant",
        name="grantAttempts",
        summary="Give a delivery more attempts, once for the operation key; an EXPIRED one is handed out again.",
        permission=Permission.EVENTS_MANAGE,
        handler=_grant_attempts,
        request=GrantAttempts,
        response=Delivery,
        keyed=True,
        errors=_HIDDEN | {ErrorCode.STATE_CONFLICT},
    ),
)
"""Every operation there is."""
