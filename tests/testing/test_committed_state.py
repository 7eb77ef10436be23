"""What a checker of a simulated run takes for an unclean election, and for lost metadata."""

from __future__ import annotations

import pytest

from twisted_broker.image.entries import PartitionRegistration, TopicImage
from twisted_broker.image.metadata_image import MetadataImage
from twisted_broker.interfaces import TopicPartition
from twisted_broker.simulation.checks.committed_state import CommittedState, Violation

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


def test_a_leader_that_replaced_all_of_the_isr_was_elected_cleanly() -> None:
    """It was being added, and joined; an election that takes something is said to recover. Else the
    partition would be excused from then on.
    """
    old = OLD._replace(replicas=(2, 3, 1), adding=(2,), removing=(1,), isr=(1,), leader=1)
    ended = old._replace(
        replicas=(2, 3),
        adding=(),
        removing=(),
        isr=(2,),
        leader=2,
        leader_epoch=1,
        partition_epoch=4,
    )
    for changes, expected in (
        ({}, 0),
        ({"leader_recovery_state": 1}, 1),
        ({"leader": 3, "isr": (3,)}, 1),
    ):
        truth = CommittedState(lambda what: None)
        new = ended._replace(**changes)
        truth._check_partition((ID, 0), TopicPartition("t", 0), old, new)
        assert truth.unclean_elections == expected


def image(offset: int, *names: str, epoch: int = 0) -> MetadataImage:
    topics = {name.encode() * 16: TopicImage(name, name.encode() * 16, {}) for name in names}
    return MetadataImage(
        offset=offset,
        epoch=epoch,
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


def test_a_broker_applies_no_other_log() -> None:
    """That of a controller that was set back, as long as it is no longer than what was committed
    (seed 459736). Between two ends that were looked at, an epoch may have come and gone.
    """
    truth = CommittedState(lambda what: None)
    for offset, epoch in ((3, 1), (7, 1), (12, 4), (15, 4), (20, 5)):
        truth.look(image(offset, "a", epoch=epoch))
    for offset, epoch in ((2, 0), (3, 1), (5, 1), (9, 1), (10, 2), (11, 4), (12, 4), (17, 5)):
        truth.applied("n2", image(offset, "a", epoch=epoch))
    for offset, epoch in ((5, 0), (7, 2), (12, 1), (15, 5), (14, 2), (20, 4)):
        with pytest.raises(Violation, match=f"n3 applied {offset} of epoch {epoch}, what was"):
            truth.applied("n3", image(offset, "a", epoch=epoch))
