"""A leader of a mirrored topic drops what the source lost (`replog mirror --follow-loss`)."""

from __future__ import annotations

from typing import Any

from tests.replication.fixtures import PartitionFixture, code_of, proposed_again, registration
from twisted_broker.image.entries import RECOVERED, RECOVERING
from twisted_broker.log_config import LogConfig
from twisted_broker.replication.partition.isr_state import CommittedIsr, IsrAnswer
from twisted_broker.replication.partition.mirrored_partition import (
    truncate_as_granted,
    truncate_mirrored,
)
from twisted_broker.wire.errors import ErrorCode

MIRRORED = LogConfig(replog_mirror_source="another-cluster topic-id")


def mirrored() -> PartitionFixture:
    """Leads 10 records at epoch 5, all of them committed."""
    fixture = PartitionFixture()
    for _ in range(10):
        fixture.append()
    for follower in (2, 3):
        fixture.follower_fetches(follower, 10)
    assert fixture.log.high_watermark == 10
    fixture.partition.update_config(MIRRORED, fixture.now_ms)
    fixture.events.clear()
    return fixture


def truncate(fixture: PartitionFixture, offset: int = 6, epoch: int = 5) -> ErrorCode:
    return code_of(truncate_mirrored, fixture.partition, offset, epoch, fixture.now_ms)


def comes(fixture: PartitionFixture, **changes: Any) -> Any:
    """A record of the metadata log, as `role_change` applies it."""
    state = registration(
        **{"replicas": (1, 2, 3), "isr": (1,), "leader_epoch": 6, "partition_epoch": 11}
        | {"recovery": RECOVERING}
        | changes
    )
    found = truncate_as_granted(fixture.partition, state, 0)
    fixture.partition.make_leader(state, fixture.log, fixture.now_ms)
    return found


def test_it_is_proposed_and_done_when_the_epoch_comes() -> None:
    """Nothing changes before; then the epoch begins at the offset, with the leader alone in the
    ISR, and followers diverge there.
    """
    fixture = mirrored()
    partition = fixture.partition
    assert truncate(fixture) == ErrorCode.LEADER_NOT_AVAILABLE
    assert fixture.happened() == ["IsrChangeWanted"]
    proposal = partition.isr_proposal(partition.isr_state)
    assert (proposal.members, proposal.leader_recovery_state) == (((1, 101),), RECOVERING)
    assert truncate(fixture) == ErrorCode.LEADER_NOT_AVAILABLE
    assert (fixture.happened(), fixture.log.log_end_offset) == ([], 10)
    # The answer has the next leader epoch: the metadata log says the rest.
    answer = IsrAnswer(ErrorCode.NONE, 1, 6, frozenset({1}), RECOVERING, 11)
    assert not proposed_again(fixture, partition.isr_state, answer)
    assert fixture.log.log_end_offset == 10
    found = comes(fixture)
    assert (found.from_offset, found.to_offset, found.below_high_watermark) == (10, 6, True)
    assert (fixture.log.log_end_offset, fixture.log.high_watermark) == (6, 6)
    assert fixture.log.leader_epochs.entries() == [(5, 0), (6, 6)]
    assert (partition.leader_epoch, partition.isr_state.isr) == (6, {1})
    assert truncate(fixture) == ErrorCode.FENCED_LEADER_EPOCH
    result = fixture.follower_fetches(2, 10, leader_epoch=6, last_epoch=5)
    assert result.diverging_epoch == (5, 6)


def test_another_record_does_not_truncate() -> None:
    """An ISR change that the controller made itself, or a leader epoch for another reason."""
    for changes in ({"leader_epoch": 5, "isr": (1, 2)}, {"isr": (1, 2)}, {"recovery": RECOVERED}):
        fixture = mirrored()
        truncate(fixture)
        assert comes(fixture, **changes) is None
        assert fixture.log.log_end_offset == 10
        assert isinstance(fixture.partition.isr_state, CommittedIsr)


def test_apache_kafkas_controller_refuses() -> None:
    """INVALID_REQUEST: said to the mirror; the ISR may change as before."""
    fixture = mirrored()
    truncate(fixture)
    pending = fixture.partition.isr_state
    assert not proposed_again(fixture, pending, IsrAnswer(ErrorCode.INVALID_REQUEST))
    assert truncate(fixture) == ErrorCode.INVALID_REQUEST
    fixture.partition.update_config(LogConfig(), fixture.now_ms)
    fixture.append()
    fixture.now_ms += 1_000_000
    fixture.partition.maybe_shrink_isr(fixture.now_ms)
    assert fixture.partition.isr_state.in_flight


def test_what_is_refused_at_once() -> None:
    fixture = mirrored()
    assert truncate(fixture, epoch=4) == ErrorCode.FENCED_LEADER_EPOCH
    assert truncate(fixture, offset=10) == ErrorCode.NONE
    fixture.partition.update_config(LogConfig(), fixture.now_ms)
    assert truncate(fixture) == ErrorCode.POLICY_VIOLATION
    assert fixture.happened() == []
