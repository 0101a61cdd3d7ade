"""Random conversations over an unreliable pipe: frames wait, arrive in order, or are lost with the connection."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from orbit.protocol import events_v1
from orbit.protocol.errors import ErrorCode
from orbit.protocol.limits import Limits
from orbit.protocol.phases import Phase
from orbit.protocol.session import ClientSession, Ended, Hello, Push, Refused, Reply, Requested, ServerSession, Welcomed
from orbit.protocol.session_end import CannotSend, DuplicateRequest, NotOpen, SessionBusy
from tests.support.conversations import SESSION, ack, answer_to, capacity, delivery, hello, ident, release, welcome

IN_FLIGHT = 4
MESSAGE_IDS = st.integers(1, 6).map(ident)
"""Few ids and a low bound, so that busy sessions and repeated ids are common."""


class Conversation(RuleBasedStateMachine):
    """Two sessions, a pipe each way, and a model: which requests were sent, seen, answered, and what was confirmed."""

    reached: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.connect(Phase.GREETING)

    @initialize(reached=st.sampled_from([Phase.OPEN, Phase.READY, Phase.GREETING]))
    def start(self, reached: Phase) -> None:
        self.connect(reached)

    def connect(self, reached: Phase) -> None:
        """Start a new pair, with the conversation already as far as `reached`."""
        limits = Limits(control_in_flight=IN_FLIGHT)
        self.client = ClientSession(events_v1.VOCABULARY, limits)
        self.server = ServerSession(events_v1.VOCABULARY, limits)
        self.to_server: deque[bytes] = deque()
        self.to_client: deque[bytes] = deque()
        self.sequence = 0
        self.unanswered: list[str] = []  # by the client's account, oldest first
        self.asked: dict[str, Hello | Requested] = {}  # by the server's
        self.confirmed_by_server = False
        self.confirmed_to_client = False
        self.hello_id = ""
        self.hello_refused = False
        self.ended_by_server = False
        self.ended = False
        if reached is not Phase.GREETING:
            self.greet(ident(1))
            self.exchange()
        if reached is Phase.OPEN:
            self.announce(ident(1), 1, 3)
            self.exchange()

    def exchange(self) -> None:
        """Carry one granted request and its answer."""
        self.server_reads()
        self.answer(*self.asked, grant=True)
        self.client_reads()

    def send(self, message_id: str, name: str, body: Any) -> None:
        if self.client.phase not in (Phase.READY, Phase.OPEN):
            expected: type[CannotSend] = NotOpen
        elif message_id in self.unanswered:
            expected = DuplicateRequest
        elif len(self.unanswered) >= IN_FLIGHT:
            expected = SessionBusy
        else:
            self.to_server.append(self.client.request(name, body, message_id))
            self.unanswered.append(message_id)
            if isinstance(body, events_v1.Capacity):
                self.sequence = body.sequence
            return
        with pytest.raises(expected):
            self.client.request(name, body, message_id)

    # --- the client

    @rule(message_id=MESSAGE_IDS)
    def greet(self, message_id: str) -> None:
        if self.client.phase is Phase.GREETING and not self.unanswered:
            self.to_server.append(self.client.hello(hello(), message_id))
            self.unanswered.append(message_id)
        else:
            with pytest.raises(NotOpen):
                self.client.hello(hello(), message_id)

    @rule(message_id=MESSAGE_IDS, step=st.integers(1, 3), room=st.integers(0, 3))
    def announce(self, message_id: str, step: int, room: int) -> None:
        self.send(message_id, "consumer.capacity", capacity(self.sequence + step if self.sequence else 1, room))

    @rule(message_id=MESSAGE_IDS, numbers=st.lists(st.integers(1, 9), min_size=1, max_size=3))
    def acknowledge(self, message_id: str, numbers: list[int]) -> None:
        self.send(message_id, "event.ack", ack(*numbers))

    @rule(message_id=MESSAGE_IDS, started=st.booleans())
    def give_up(self, message_id: str, started: bool) -> None:
        self.send(message_id, "event.release", release(1, started=started))

    @precondition(lambda self: self.to_client)
    @rule()
    def client_reads_all(self) -> None:
        while self.to_client and not self.ended:
            self.client_reads()

    @precondition(lambda self: self.to_client and not self.ended)
    @rule()
    def client_reads(self) -> None:
        result = self.client.receive(self.to_client.popleft())
        self.reached[type(result).__name__] += 1
        match result:
            case Welcomed():
                assert self.unanswered == [self.hello_id]
                self.unanswered.clear()
            case Reply(message_id=message_id, type=name):
                # An answer comes once, and only to what is unanswered.
                self.unanswered.remove(message_id)
                self.confirmed_to_client |= name == "consumer.capacity"
            case Refused(message_id=message_id):
                self.unanswered.remove(message_id)
            case Push():
                assert self.confirmed_to_client, "a push overtook the confirmed capacity"
            case Ended():
                self.ended = True
                if self.hello_refused:
                    self.unanswered.clear()

    # --- the server

    @precondition(lambda self: self.to_server and not self.ended_by_server)
    @rule()
    def server_reads(self) -> None:
        result = self.server.receive(self.to_server.popleft())
        assert isinstance(result, Hello | Requested)
        assert result.message_id not in self.asked
        self.asked[result.message_id] = result
        if isinstance(result, Hello):
            self.hello_id = result.message_id

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), luck=st.integers(0, 7))
    def server_answers(self, data: st.DataObject, luck: int) -> None:
        message_id = data.draw(st.sampled_from(sorted(self.asked)))
        if self.ended_by_server:
            with pytest.raises(NotOpen):
                self.server.refuse(message_id, ErrorCode.UNAVAILABLE, "too late")
        else:
            self.answer(message_id, grant=luck > 0)

    def answer(self, message_id: str, *, grant: bool) -> None:
        request = self.asked.pop(message_id)
        if not grant:
            self.to_client.append(self.server.refuse(request.message_id, ErrorCode.UNAVAILABLE, "not now"))
            self.hello_refused = self.ended_by_server = isinstance(request, Hello)
        elif isinstance(request, Hello):
            self.to_client.append(self.server.welcome(SESSION, request.message_id, welcome()))
        else:
            self.to_client.append(self.server.reply(request.message_id, answer_to(request)))
            self.confirmed_by_server |= request.type == "consumer.capacity"
        for again in (self.server.reply, lambda one, _: self.server.refuse(one, ErrorCode.INTERNAL, "x")):
            with pytest.raises(CannotSend):
                again(request.message_id, welcome())

    @rule(number=st.integers(1, 9))
    def server_pushes(self, number: int) -> None:
        if self.confirmed_by_server and not self.ended_by_server:
            self.to_client.append(self.server.push("event.deliver", delivery(number), ident(number)))
        else:
            with pytest.raises(NotOpen):
                self.server.push("event.deliver", delivery(number), ident(number))

    @precondition(lambda self: not self.ended_by_server)
    @rule(luck=st.integers(0, 15))
    def server_ends(self, luck: int) -> None:
        if luck:
            return
        self.to_client.append(self.server.fatal(ErrorCode.UNAVAILABLE, "stopping"))
        self.ended_by_server = True

    # --- the connection

    @rule(luck=st.integers(0, 7), reached=st.sampled_from([Phase.OPEN, Phase.READY, Phase.GREETING]))
    def the_connection_is_lost(self, luck: int, reached: Phase) -> None:
        """Frames under way are gone; both ends know exactly which requests are open, and a new pair starts."""
        if luck and not self.ended:
            return
        self.reached["lost with requests open"] += bool(self.unanswered)
        assert self.client.lost() == tuple(self.unanswered)
        assert set(self.server.lost()) == set(self.asked)
        for end in (self.client, self.server):
            assert end.phase is Phase.CLOSED
            assert end.lost() == ()
            assert end.in_flight == 0
        self.connect(reached)

    @invariant()
    def the_model_and_the_sessions_agree(self) -> None:
        assert self.client.in_flight == len(self.unanswered) <= IN_FLIGHT
        assert self.server.in_flight == len(self.asked) <= IN_FLIGHT
        assert (self.client.phase is Phase.OPEN) == (self.confirmed_to_client and not self.ended)
        assert (self.server.phase is Phase.OPEN) == (self.confirmed_by_server and not self.ended_by_server)
        assert (self.client.phase is Phase.CLOSED) == self.ended
        assert (self.server.phase is Phase.CLOSED) == self.ended_by_server


# No seed but the code: what follows counts what the conversations were about. Hypothesis also draws constants of the
# modules that are loaded, so the counts differ between the whole suite and this file alone.
SETTINGS = settings(max_examples=300, stateful_step_count=60, deadline=None, derandomize=True, database=None)


def test_random_conversations() -> None:
    Conversation.reached.clear()
    run_state_machine_as_test(Conversation, settings=SETTINGS)
    # The run must have been about something.
    for happening in ("Welcomed", "Reply", "Refused", "Push", "Ended", "lost with requests open"):
        assert Conversation.reached[happening] > 0, Conversation.reached
