"""Who is assigned what: as Kafka's assignors would (RL 7.5)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twisted_broker.consumer.rebalance import (
    ASSIGNORS,
    assign_range,
    assign_round_robin,
    assigned_partitions,
    assignment_bytes,
    subscription_bytes,
)
from twisted_broker.coordinator.subscription import subscribed_topics
from twisted_broker.interfaces import TopicPartition
from twisted_broker.wire.errors import WireError


def named(*names: str) -> list[TopicPartition]:
    return [TopicPartition(each[0], int(each[1:])) for each in names]


def test_range_gives_stretches_of_each_topic() -> None:
    """RL 7.5: two topics of three partitions, two members: the first one gets one more of each."""
    subscriptions = {"b": ["s", "t"], "a": ["s", "t"]}
    partitions = {"t": range(3), "s": range(3)}
    assert assign_range(subscriptions, partitions) == {
        "a": named("s0", "s1", "t0", "t1"),
        "b": named("s2", "t2"),
    }
    assert assign_range({"a": ["t"], "b": ["t"], "c": ["s"]}, {"t": range(1)}) == {
        "a": named("t0"),
        "b": [],
        "c": [],
    }


def test_round_robin_goes_over_all_partitions() -> None:
    """RL 7.5: Kafka's own example, and one with members of different topics."""
    subscriptions = {"a": ["s", "t"], "b": ["s", "t"]}
    assert assign_round_robin(subscriptions, {"s": range(3), "t": range(3)}) == {
        "a": named("s0", "s2", "t1"),
        "b": named("s1", "t0", "t2"),
    }
    mixed = {"a": ["s"], "b": ["s", "t"], "c": ["s", "t", "u"]}
    assert assign_round_robin(mixed, {"s": range(1), "t": range(2), "u": range(3)}) == {
        "a": named("s0"),
        "b": named("t0"),
        "c": named("t1", "u0", "u1", "u2"),
    }


@pytest.mark.parametrize("strategy", ASSIGNORS)
@settings(max_examples=40)
@given(
    subscriptions=st.dictionaries(
        st.text("abc", min_size=1, max_size=3), st.lists(st.sampled_from("stu"), unique=True)
    ),
    counts=st.dictionaries(st.sampled_from("stu"), st.integers(0, 7)),
)
def test_every_partition_has_one_subscriber(
    strategy: str, subscriptions: dict[str, list[str]], counts: dict[str, int]
) -> None:
    """RL 7.5: whatever is subscribed: none is left out, none is given twice."""
    partitions = {topic: range(count) for topic, count in counts.items()}
    assigned = ASSIGNORS[strategy](subscriptions, partitions)
    given_out = [name for names in assigned.values() for name in names]
    wanted = {topic for topics in subscriptions.values() for topic in topics}
    assert sorted(given_out) == sorted(
        TopicPartition(topic, each) for topic in wanted for each in partitions.get(topic, ())
    )
    for member, names in assigned.items():
        assert {each.topic for each in names} <= set(subscriptions[member])


def test_the_bytes_of_kafkas_consumer_protocol() -> None:
    """Version 0 of both, to the byte; newer versions are read; broken ones are refused."""
    assert subscription_bytes(["t", "s"]).hex() == "000000000002000173000174ffffffff"
    assert subscribed_topics(subscription_bytes(["t"])) == ["t"]
    partitions = named("s1", "t0", "t2")
    written = assignment_bytes(partitions)
    assert written.hex() == (
        "0000" "00000002" "000173" "00000001" "00000001"
        "000174" "00000002" "00000000" "00000002" "ffffffff"
    )  # fmt: skip
    assert assigned_partitions(b"\0\3" + written[2:]) == partitions
    assert assigned_partitions(b"") == []
    for broken in (b"\0", b"\xff\xff\0", written[:-6]):
        with pytest.raises(WireError):
            assigned_partitions(broken)
