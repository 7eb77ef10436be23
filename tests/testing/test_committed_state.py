"""What a checker of a simulated run takes for an unclean election, and for lost metadata."""

from __future__ import annotations

import pytest

from twisted_broker.image.entries import PartitionRegistration, TopicImage
from twisted_broker.image.metadata_image import MetadataImage
from twisted_broker.interfaces import TopicPartition
from twisted_broker.testing.checks.committed_state import CommittedState, Violation

ID = b"i" * 16
OLD = PartitionRegistration(
    replicas=(2, 1, 3),
    directories=(),
    isr=(1, 3),
    removing=(3,),
    adding=(),
    elr=(),
    last_known_elr=(),
    leader=3,
    leader_recovery_state=0,
    leader_epoch=0,
    partition_epoch=3,
)


def unclean_elections(new: PartitionRegistration) -> int:
    truth = CommittedState(lambda what: None)
    truth._check_partition((ID, 0), TopicPartition("t", 0), OLD, new)
    return truth.unclean_elections


def test_a_leader_that_joined_as_its_reassignment_ended_was_elected_cleanly() -> None:
    """One record says both: it held all, or it had not joined."""
    ended = OLD._replace(
        replicas=(2, 1), removing=(), isr=(1, 2), leader=2, leader_epoch=1, partition_epoch=4
    )
    assert unclean_elections(ended) == 0
    assert unclean_elections(ended._replace(isr=(2,))) == 1
    assert unclean_elections(ended._replace(leader_recovery_state=1)) == 1
    assert unclean_elections(ended._replace(removing=(3,), replicas=(2, 1, 3))) == 1


def image(offset: int, *names: str) -> MetadataImage:
    topics = {name.encode() * 16: TopicImage(name, name.encode() * 16, {}) for name in names}
    return MetadataImage(
        offset=offset,
        topics_by_id=topics,
        topics_by_name={each.name: each for each in topics.values()},
    )


def test_a_controller_that_starts_finds_what_was_committed() -> None:
    """No less, and nothing else."""
    truth = CommittedState(lambda what: None)
    truth.look(image(7, "a"))
    truth.look(image(7, "a"))
    with pytest.raises(Violation, match="another one"):
        truth.look(image(7, "b"))
    with pytest.raises(Violation, match="lost metadata"):
        truth.look(image(6, "a"))


def test_a_broker_applies_no_more_than_was_committed() -> None:
    truth = CommittedState(lambda what: None)
    truth.look(image(7, "a"))
    truth.applied("n2", image(7, "a"))
    with pytest.raises(Violation, match="n2 applied 8, only 7"):
        truth.applied("n2", image(8, "a"))
