"""The assignor `simple` (GN 3.20, 3.21; Kafka's SimpleAssignorTest)."""

from collections import Counter
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.coordinator.share.share_run import whole
from twisted_broker.coordinator.share.simple import assign_simply

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16
NOTHING: frozenset[Any] = frozenset()


def parts(topic, count):
    return {topic: frozenset(range(count))}


def assign(members, partitions):
    """`members`: topics by member, or (topics, what it has)."""
    full = {
        name: each if isinstance(each, tuple) else (frozenset(each), NOTHING)
        for name, each in members.items()
    }
    return whole(assign_simply(full, partitions))


def counts(targets):
    return [len(targets[name]) for name in sorted(targets)]


def test_no_members():
    assert assign({}, parts(A, 3)) == {}


def test_no_topics_or_none_that_may_be_assigned():
    assert assign({"m": [], "n": []}, parts(A, 3)) == {"m": NOTHING, "n": NOTHING}
    assert assign({"m": [A]}, {}) == {"m": NOTHING}
    assert assign({"m": [A], "n": [B]}, {}) == {"m": NOTHING, "n": NOTHING}


@pytest.mark.parametrize(
    ("members", "partitions", "expected"),
    [
        (1, 6, [6]),
        (2, 6, [3, 3]),
        (2, 3, [2, 1]),
        (4, 3, [2, 1, 2, 1]),
        (5, 2, [2, 1, 1, 1, 1]),
        (3, 1, [1, 1, 1]),
        (7, 3, [2, 1, 1, 2, 1, 1, 1]),
    ],
)
def test_counts(members, partitions, expected):
    """GN 3.20: member i has ceil(d * (i + 1)) - ceil(d * i) of them."""
    targets = assign({f"m{i}": [A] for i in range(members)}, parts(A, partitions))
    assert counts(targets) == expected
    readers = Counter(each for target in targets.values() for each in target)
    sharing = -(-members // partitions)
    assert len(readers) == partitions and max(readers.values()) <= sharing


def test_several_topics_are_one_pool_where_all_subscribe_alike():
    targets = assign({"m": [A, B], "n": [A, B]}, parts(A, 1) | parts(B, 1))
    assert counts(targets) == [1, 1]
    assert targets["m"].isdisjoint(targets["n"])


def test_each_topic_by_itself_where_they_do_not():
    targets = assign({"m": [A], "n": [A, B], "o": [B]}, parts(A, 2) | parts(B, 3))
    by_topic = {
        topic: {name: sum(each[0] == topic for each in targets[name]) for name in targets}
        for topic in (A, B)
    }
    assert by_topic[A] == {"m": 1, "n": 1, "o": 0}
    assert by_topic[B] == {"m": 0, "n": 2, "o": 1}


def test_what_is_unsubscribed_or_not_assignable_any_more_goes():
    had = frozenset({(A, 0), (B, 0), (C, 0)})
    assert assign({"m": (frozenset([A]), had)}, parts(A, 1) | parts(B, 1)) == {
        "m": frozenset({(A, 0)})
    }


def test_nothing_moves_where_all_is_well():
    members = {f"m{i}": [A] for i in range(5)}
    once = assign(members, parts(A, 3))
    again = assign({name: (frozenset([A]), target) for name, target in once.items()}, parts(A, 3))
    assert again == once


def test_a_member_that_joins_takes_what_others_have_too_much():
    once = assign({"m": [A]}, parts(A, 4))
    again = assign({"m": (frozenset([A]), once["m"]), "n": (frozenset([A]), NOTHING)}, parts(A, 4))
    assert counts(again) == [2, 2] and again["m"] < once["m"]


def test_a_member_that_leaves_leaves_no_partition_alone():
    once = assign({name: [A] for name in "mno"}, parts(A, 6))
    again = assign({name: (frozenset([A]), once[name]) for name in "mo"}, parts(A, 6))
    assert counts(again) == [3, 3]
    assert all(once[name] <= again[name] for name in "mo")


SIZES = st.dictionaries(st.sampled_from([A, B, C]), st.integers(0, 6), max_size=3)
TOPICS = st.frozensets(st.sampled_from([A, B, C]))


@settings(max_examples=60)
@given(
    st.dictionaries(st.integers(0, 8).map(str), TOPICS, min_size=1, max_size=9),
    st.lists(SIZES, min_size=1, max_size=3),
)
def test_every_partition_that_somebody_reads_is_assigned(members, rounds):
    """Over several rounds, whatever the members had."""
    had = dict.fromkeys(members, NOTHING)
    for sizes in rounds:
        partitions = {topic: frozenset(range(size)) for topic, size in sizes.items()}
        had = assign({name: (topics, had[name]) for name, topics in members.items()}, partitions)
        for name, target in had.items():
            assert all(topic in members[name] for topic, _ in target)
            assert all(number in partitions[topic] for topic, number in target)
        assigned = frozenset().union(*had.values())
        for topic, numbers in partitions.items():
            if any(topic in topics for topics in members.values()):
                assert {(topic, number) for number in numbers} <= assigned
        if len(set(members.values())) == 1:
            for one, other in combinations(counts(had), 2):
                assert abs(one - other) <= 1
