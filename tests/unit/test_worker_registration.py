"""Who a worker says it is: made once, checked at once, hidden from every print."""

from __future__ import annotations

import pickle

import pytest

from orbit.protocol.worker_v1 import Hello
from orbit.sdk import Capability, InvalidRequest, new_worker_message_id, new_worker_registration

QUEUE = "a" * 32
B = Capability(handler="text.b", handler_version="v1", payload_version="v1")
A2 = Capability(handler="text.a", handler_version="v2", payload_version="v1")
A1 = Capability(handler="text.a", handler_version="v1", payload_version="v9")


def numbered(count: int) -> list[Capability]:
    return [
        Capability(handler=f"text.h{number:03}", handler_version="v1", payload_version="v1") for number in range(count)
    ]


def test_every_registration_has_an_identity_and_a_secret_of_its_own() -> None:
    made = [new_worker_registration(QUEUE, 4, [A1]) for _ in range(3)]
    assert len({one.instance_id for one in made}) == 3
    assert len({one.instance_secret.reveal() for one in made}) == 3
    for one in made:
        assert Hello.parse(one.to_body()) == one


def test_capabilities_are_copied_and_sorted() -> None:
    given = [B, A2, A1]
    registration = new_worker_registration(QUEUE, 4, given)
    given.clear()
    assert registration.capabilities == (A1, A2, B)


def test_what_is_not_asked_for_is_off() -> None:
    plain = new_worker_registration(QUEUE, 1, [A1])
    assert (plain.cancellation_notifications, plain.concurrency_keys) == (False, False)
    asked = new_worker_registration(QUEUE, 1, [A1], cancellation_notifications=True, concurrency_keys=True)
    assert (asked.cancellation_notifications, asked.concurrency_keys) == (True, True)


@pytest.mark.parametrize(
    ("queue_id", "capacity", "capabilities", "says"),
    [
        ("A" * 32, 4, [A1], "registration.queue_id: must be 32 lowercase hexadecimal digits"),
        (QUEUE, 0, [A1], "registration.capacity"),
        (QUEUE, 1_001, [A1], "registration.capacity"),
        (QUEUE, True, [A1], "registration.capacity"),
        (QUEUE, 4, [], "registration.capabilities: must be a list of 1 to 64 items"),
        (QUEUE, 4, numbered(65), "registration.capabilities: must be a list of 1 to 64 items"),
        (QUEUE, 4, [A1, B, A1], "registration.capabilities: must not hold the same capability twice"),
        (QUEUE, 4, [Capability(handler="", handler_version="v1", payload_version="v1")], "handler"),
    ],
)
def test_what_breaks_a_rule_is_refused(queue_id: str, capacity: int, capabilities: list[Capability], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says.replace(".", r"\.")) as caught:
        new_worker_registration(queue_id, capacity, capabilities)
    assert caught.value.__context__ is None, "the context's frames hold the secret"


@pytest.mark.parametrize("capacity", [1, 1_000])
def test_the_borders_are_accepted(capacity: int) -> None:
    assert new_worker_registration(QUEUE, capacity, numbered(64)).capacity == capacity


def test_the_secret_is_hidden_and_is_not_pickled() -> None:
    registration = new_worker_registration(QUEUE, 4, [A1])
    secret = registration.instance_secret.reveal()
    assert secret not in f"{registration!r} {registration!s} {registration}"
    with pytest.raises(TypeError):
        pickle.dumps(registration)


def test_message_ids_are_new_each_time() -> None:
    ids = {new_worker_message_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(len(one) == 32 and set(one) <= set("0123456789abcdef") for one in ids)
