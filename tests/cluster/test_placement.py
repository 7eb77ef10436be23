"""Where new replicas go."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twisted_broker.cluster.placement import (
    StripedReplicaPlacer,
    check_manual_assignment,
    default_directory,
)
from twisted_broker.image.entries import UNASSIGNED, BrokerRegistration
from twisted_broker.wire.errors import BrokerError, ErrorCode


def broker(
    number: int,
    rack: str | None = None,
    fenced: bool = False,
    cordoned: tuple[bytes, ...] | None = None,
) -> BrokerRegistration:
    return BrokerRegistration(
        number, 1, b"i" * 16, {}, {}, rack, fenced, False, (bytes([number]) * 16,), cordoned
    )


BROKERS = st.lists(
    st.tuples(st.sampled_from([None, "r1", "r2", "r3"]), st.booleans()), min_size=1, max_size=9
)


@settings(max_examples=100, deadline=None)
@given(BROKERS, st.integers(1, 5), st.integers(0, 1000))
def test_every_assignment_is_one(
    shape: list[tuple[str | None, bool]], factor: int, seed: int
) -> None:
    """RL 8.5: distinct brokers, the first one unfenced, fenced ones only where live ones are too
    few in their rack's turn; else a refusal.
    """
    brokers = [broker(number, rack, fenced) for number, (rack, fenced) in enumerate(shape)]
    live = {each.id for each in brokers if not each.fenced}
    placer = StripedReplicaPlacer(brokers, Random(seed))
    if not live or factor > len(brokers):
        with pytest.raises(BrokerError) as caught:
            placer.place(factor)
        assert caught.value.code is ErrorCode.INVALID_REPLICATION_FACTOR
        return
    for _ in range(20):
        replicas = placer.place(factor)
        assert len(replicas) == factor == len(set(replicas))
        assert replicas[0] in live


def test_leaders_and_replicas_are_even_over_a_round() -> None:
    """Invariant 2: over as many partitions as brokers, each broker leads once and holds as many
    replicas as each other.
    """
    placer = StripedReplicaPlacer(
        [broker(number, f"r{number % 3}") for number in range(6)], Random(3)
    )
    placed = [placer.place(3) for _ in range(6)]
    assert Counter(replicas[0] for replicas in placed) == dict.fromkeys(range(6), 1)
    assert Counter(node for replicas in placed for node in replicas) == dict.fromkeys(range(6), 3)


def test_replicas_lie_in_different_racks() -> None:
    """RL 8.5: as many racks as replicas: no rack holds two."""
    racks = {number: f"r{number % 3}" for number in range(9)}
    placer = StripedReplicaPlacer(
        [broker(number, rack) for number, rack in racks.items()], Random(5)
    )
    for _ in range(30):
        assert len({racks[node] for node in placer.place(3)}) == 3


def test_a_live_broker_comes_before_a_fenced_one_of_its_rack() -> None:
    """Invariant 3: with one rack, fenced brokers get a replica only when the live ones are used
    up.
    """
    placer = StripedReplicaPlacer([broker(0), broker(1), broker(2, fenced=True)], Random(1))
    assert all(2 not in placer.place(2) for _ in range(10))
    assert all(placer.place(3)[2] == 2 for _ in range(10))


def test_cordoned_brokers_get_nothing_new() -> None:
    """KIP-1066: a broker all of whose directories are cordoned takes no new replica, and does
    not count.
    """
    placer = StripedReplicaPlacer([broker(0), broker(1, cordoned=(bytes([1]) * 16,))], Random(1))
    assert [placer.place(1) for _ in range(3)] == [[0]] * 3
    with pytest.raises(BrokerError):
        placer.place(2)


@pytest.mark.parametrize(
    ("replicas", "factor"), [([], None), ([1, 1], None), ([1, 7], None), ([1], 2)]
)
def test_manual_assignments_that_cannot_be(replicas: list[int], factor: int | None) -> None:
    """RL 8.5: empty, double, unknown, or of another length than the other partitions'."""
    with pytest.raises(BrokerError) as caught:
        check_manual_assignment(replicas, {1, 2}, factor)
    assert caught.value.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_a_replicas_directory_is_known_when_there_is_one() -> None:
    """KIP-858: a broker with a single directory needs no report."""
    assert default_directory(broker(4)) == bytes([4]) * 16
    assert default_directory(broker(4)._replace(directories=(b"a" * 16, b"b" * 16))) == UNASSIGNED
    assert default_directory(None) == UNASSIGNED


def test_who_shuts_down_is_taken_as_fenced() -> None:
    """Kafka's placer leaves it out: it is in no new ISR, and a partition of it alone is refused."""
    brokers = [broker(1), broker(2)._replace(in_controlled_shutdown=True), broker(3)]
    placer = StripedReplicaPlacer(brokers, Random(1))
    assert {tuple(placer.place(1)) for _ in range(20)} == {(1,), (3,)}
    assert all(2 not in placer.place(2) for _ in range(20))
    assert all(placer.place(3)[0] != 2 for _ in range(20))
    with pytest.raises(BrokerError):
        StripedReplicaPlacer(brokers[1:2], Random(1)).place(1)
