"""A leader under random followers, ISR answers, leader epochs and settings: what must hold after
every step (RELIABILITY 2.2, RL 9.2, 9.3).
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.replication.fixtures import (
    LOCAL,
    MAX_LAG_MS,
    WALL_MS,
    PartitionFixture,
    batch,
    registration,
)
from twisted_broker.log.append_info import AppendOrigin
from twisted_broker.log_config import LogConfig
from twisted_broker.replication.partition.isr_state import CommittedIsr, IsrAnswer
from twisted_broker.wire.errors import BrokerError, ErrorCode

FOLLOWERS = (2, 3)
REFUSALS = [
    ErrorCode.INELIGIBLE_REPLICA,
    ErrorCode.OPERATION_NOT_ATTEMPTED,
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.INVALID_UPDATE_VERSION,
]


class LeaderMachine(RuleBasedStateMachine):
    """`held`: what each follower really has (its log end); the controller's ISR is `committed`."""

    @initialize(min_isr=st.sampled_from([1, 1, 2, 3]), others=st.sets(st.sampled_from(FOLLOWERS)))
    def start(self, min_isr: int, others: set[int]) -> None:
        self.fixture = PartitionFixture(
            isr=(LOCAL, *sorted(others)), config=LogConfig(min_insync_replicas=min_isr)
        )
        self.partition, self.log = self.fixture.partition, self.fixture.log
        self.held = dict.fromkeys(FOLLOWERS, 0)
        self.committed = frozenset({LOCAL, *others})
        self.asked: list = []
        self.high_watermark = 0

    @rule(count=st.integers(1, 3), acks=st.sampled_from([1, -1]))
    def append(self, count: int, acks: int) -> None:
        enough = len(self.partition.isr_state.isr) >= self.partition.min_isr
        try:
            self.partition.append_as_leader(
                batch(count), acks, WALL_MS, self.fixture.now_ms, AppendOrigin.CLIENT
            )
        except BrokerError as refusal:
            assert refusal.code == ErrorCode.NOT_ENOUGH_REPLICAS
            assert acks == -1 and not enough
        else:
            assert acks == 1 or enough
        self.collect()

    @rule(broker=st.sampled_from(FOLLOWERS), back=st.integers(0, 2))
    def fetch(self, broker: int, back: int) -> None:
        """A follower has everything it was sent before it asks for more; it may also ask again
        (`back`: an old request that comes late).
        """
        offset = max(0, self.held[broker] - back)
        self.fixture.follower_fetches(broker, offset)
        if back == 0:
            self.held[broker] = self.log.log_end_offset
        self.collect()

    @rule(milliseconds=st.sampled_from([1, MAX_LAG_MS // 2, MAX_LAG_MS + 1, 3 * MAX_LAG_MS]))
    def time_passes(self, milliseconds: int) -> None:
        self.fixture.now_ms += milliseconds
        self.partition.maybe_shrink_isr(self.fixture.now_ms)
        self.collect()

    @precondition(lambda self: self.asked)
    @rule(answer=st.sampled_from([ErrorCode.NONE, *REFUSALS]))
    def controller_answers(self, answer: ErrorCode) -> None:
        pending = self.asked.pop(0)
        if answer == ErrorCode.NONE:
            if self.partition.isr_state is pending:
                self.committed = pending.proposed
            reply = IsrAnswer(
                answer,
                LOCAL,
                self.partition.leader_epoch,
                pending.proposed,
                0,
                self.partition.partition_epoch + 1,
            )
        else:
            reply = IsrAnswer(answer)
        self.partition.alter_partition_answered(pending, reply, self.fixture.now_ms)
        self.collect()

    @precondition(
        lambda self: not isinstance(self.partition.isr_state, CommittedIsr) and not self.asked
    )
    @rule(took=st.booleans())
    def controller_speaks(self, took: bool) -> None:
        """After an answer that left the change open: the metadata log says what it came to."""
        if took:
            self.committed = self.partition.isr_state.proposed
        self.lead(self.partition.leader_epoch)

    @rule()
    def new_epoch(self) -> None:
        """Elected again: whatever was pending is void."""
        self.asked.clear()
        self.lead(self.partition.leader_epoch + 1)

    def lead(self, epoch: int) -> None:
        state = registration(
            LOCAL, (1, 2, 3), sorted(self.committed), epoch, self.partition.partition_epoch + 1
        )
        self.partition.make_leader(state, self.log, self.fixture.now_ms)
        self.collect()

    @rule(broker=st.sampled_from(FOLLOWERS), eligible=st.booleans())
    def fencing(self, broker: int, eligible: bool) -> None:
        (
            self.fixture.brokers.ineligible.discard
            if eligible
            else self.fixture.brokers.ineligible.add
        )(broker)

    @rule(min_isr=st.integers(1, 3))
    def setting(self, min_isr: int) -> None:
        self.partition.update_config(LogConfig(min_insync_replicas=min_isr), self.fixture.now_ms)
        self.collect()

    def collect(self) -> None:
        while self.fixture.events:
            event = self.fixture.events.popleft()
            if type(event).__name__ == "IsrChangeWanted":
                self.asked.append(event.pending)

    @invariant()
    def the_high_watermark_is_on_all_of_the_isr(self) -> None:
        """ValidHighWatermark: on every member of the controller's ISR, of ours, and of the one
        that was asked for.
        """
        if not hasattr(self, "fixture"):
            return
        state = self.partition.isr_state
        for broker in (state.isr | state.maximal_isr | self.committed) - {LOCAL}:
            assert self.log.high_watermark <= self.held[broker], (broker, self.held, state)

    @invariant()
    def it_never_goes_back_and_never_passes_the_end(self) -> None:
        if hasattr(self, "fixture"):
            assert self.high_watermark <= self.log.high_watermark <= self.log.log_end_offset
            self.high_watermark = self.log.high_watermark

    @invariant()
    def the_leader_is_in_its_isr(self) -> None:
        if hasattr(self, "fixture"):
            assert LOCAL in self.partition.isr_state.isr
            assert LOCAL in self.partition.isr_state.maximal_isr
            assert len(self.asked) <= 1


TestLeader = LeaderMachine.TestCase
TestLeader.settings = settings(max_examples=250, stateful_step_count=40, deadline=None)
