"""What is wrong with a cluster, in words, out of one image of its metadata."""

from __future__ import annotations

from typing import Any

import pytest

from twisted_broker.image.entries import LOST, BrokerRegistration, PartitionRegistration, TopicImage
from twisted_broker.image.metadata_image import BROKER_RESOURCE, TOPIC_RESOURCE, MetadataImage
from twisted_broker.status.cluster_state import (
    MIN_ISR,
    MOST_TROUBLES,
    ClusterState,
    Trouble,
    gather,
)

DIRECTORY = b"d" * 16


def broker(node: int, **changes: Any) -> BrokerRegistration:
    made = BrokerRegistration(node, 1, b"", {}, {}, None, False, False, (DIRECTORY,))
    return made._replace(**changes)


def partition(replicas: tuple[int, ...], **changes: Any) -> PartitionRegistration:
    directories = (DIRECTORY,) * len(replicas)
    leader = replicas[0]
    made = PartitionRegistration(replicas, directories, replicas, (), (), (), (), leader, 0, 0, 0)
    return made._replace(**changes)


def image(
    *partitions: PartitionRegistration, brokers: list[BrokerRegistration], minimum: str = ""
) -> MetadataImage:
    topic = TopicImage("t", b"t" * 16, dict(enumerate(partitions)))
    configs = {(TOPIC_RESOURCE, "t"): {MIN_ISR: minimum}} if minimum else {}
    return MetadataImage(
        topics_by_name={"t": topic},
        topics_by_id={topic.id: topic},
        brokers={each.id: each for each in brokers},
        configs=configs,
    )


def state_of(found: MetadataImage, default_minimum: int = 1) -> ClusterState:
    state = ClusterState()
    for _ in gather(state, found, default_minimum, rows=10):
        pass
    return state


def troubles(found: MetadataImage, default_minimum: int = 1) -> list[Trouble]:
    return list(state_of(found, default_minimum).troubles(found))


def test_a_cluster_that_is_well() -> None:
    """Nothing to say; partitions are counted where they are led and held."""
    found = image(partition((1, 2)), partition((2, 1)), brokers=[broker(1), broker(2)], minimum="2")
    state = state_of(found)
    assert list(state.troubles(found)) == []
    assert state.leaders == {1: 1, 2: 1} and state.replicas == {1: 2, 2: 2}
    (row,) = state.rows
    assert row == ("t", 2, 2, 2, 0, 0, 0, 0)


def test_a_partition_without_a_leader_says_who_could_lead() -> None:
    """The brokers whose return brings it back without loss."""
    brokers = [broker(1), broker(2, fenced=True), broker(3, fenced=True)]
    (*of_brokers, first, second, third) = troubles(
        image(
            partition((2, 3), leader=-1, isr=(2,)),
            partition((2, 3), leader=-1, isr=(), elr=(2, 3)),
            partition((1, 2), leader=-1, isr=()),
            brokers=brokers,
        )
    )
    assert first.text == ("t-0 has no leader: broker 2 could lead it without loss, but is away")
    assert "brokers 2 and 3 could lead it without loss, but are away" in second.text
    assert "none of its replicas (brokers 1 and 2) may lead without loss" in third.text
    assert (third.topic, third.partition, third.is_serious) == ("t", 2, True)
    assert [each.broker for each in of_brokers] == [2, 3]


def test_a_broker_that_is_away_is_one_trouble() -> None:
    """However many replicas it holds; a replica that lags on a live broker is one each."""
    found = image(
        *(partition((1, 2, 3), isr=(1, 3)) for _ in range(50)),
        partition((1, 2, 3), isr=(1, 2)),
        brokers=[broker(1), broker(2, fenced=True), broker(3)],
    )
    away, lagging = troubles(found)
    assert away.text == (
        "broker 2 is fenced: no heartbeat of it counts; it holds 51 replicas, 50 of them out of "
        "sync"
    )
    assert lagging.text == "t-50: broker 3 is alive, but out of sync" and not lagging.is_serious


def test_fewer_in_sync_than_the_minimum() -> None:
    """The topic's setting, else the cluster's default, else the broker's; not more than there are
    replicas.
    """
    brokers = [broker(1), broker(2)]
    short = partition((1, 2), isr=(1,))
    (trouble, _) = troubles(image(short, brokers=brokers, minimum="2"))
    assert trouble.text == ("t-0 refuses acks=all: in sync is broker 1, min.insync.replicas is 2")
    assert [each.is_serious for each in troubles(image(short, brokers=brokers))] == [False]
    assert troubles(image(short, brokers=brokers), 2)[0] == trouble
    with_default = MetadataImage(
        topics_by_name=image(short, brokers=brokers).topics_by_name,
        brokers={1: broker(1), 2: broker(2)},
        configs={(BROKER_RESOURCE, ""): {MIN_ISR: "2"}},
    )
    assert troubles(with_default)[0] == trouble
    assert troubles(image(partition((1,)), brokers=brokers, minimum="3")) == []


@pytest.mark.parametrize(("stored", "refuses"), [("0_2", True), (" 2 ", True), ("two", False)])
def test_a_minimum_that_an_earlier_version_stored(stored: str, refuses: bool) -> None:
    """The overview shows what is obeyed, and does not fail."""
    found = image(partition((1, 2), isr=(1,)), brokers=[broker(1), broker(2)], minimum=stored)
    expected = f"t-0 refuses acks=all: in sync is broker 1, {MIN_ISR} is 2"
    assert any(each.text == expected for each in troubles(found)) is refuses


def test_very_many_of_a_kind_are_counted() -> None:
    """The first few, and how many more; the sum is right."""
    count = 10_000
    found = image(
        *(partition((2,), leader=-1, isr=(2,)) for _ in range(count)),
        brokers=[broker(2, fenced=True)],
    )
    of_partitions = [each for each in troubles(found) if each.broker is None]
    assert len(of_partitions) == MOST_TROUBLES + 1
    assert (
        of_partitions[-1].text == f"and {count - MOST_TROUBLES:,} more partitions without a leader"
    )
    assert sum(each.stands_for for each in of_partitions) == count


def test_a_log_directory_that_is_offline_elsewhere() -> None:
    """Its broker is alive; its replicas there are not."""
    lost = partition((1, 2), isr=(2,), directories=(LOST, DIRECTORY), leader=2)
    found = troubles(image(lost, brokers=[broker(1), broker(2)]))
    assert found[0].text == (
        "broker 1 has a log directory offline, with 1 replica: replace the disk, then restart it"
    )


def test_brokers_that_leave_and_that_nobody_knows() -> None:
    """A shutdown is a warning, replicas on a broker that is not registered are a trouble."""
    leaving = broker(1, in_controlled_shutdown=True)
    found = troubles(image(partition((2, 9), isr=(2,)), brokers=[leaving, broker(2)]))
    assert [each.text for each in found] == [
        "broker 1 is shutting down; it holds 0 replicas",
        "broker 9 is not registered, but 1 replica should be on it",
    ]
    assert [each.is_serious for each in found] == [False, True]


def test_a_move_is_no_trouble() -> None:
    """A replica that is added copies first."""
    moving = partition((1, 2), isr=(1,), adding=(2,))
    state = state_of(image(moving, brokers=[broker(1), broker(2)]))
    assert list(state.troubles(image(moving, brokers=[broker(1), broker(2)]))) == []
    assert state.counts.moving == 1 and state.rows[0].moving == 1
