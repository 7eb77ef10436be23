"""The assignors: counts, completeness, stickiness (GN 2.140-2.143, 6.7)."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twisted_broker.coordinator.consumer.assignor import (
    PARTITIONS_PER_STEP,
    AssignorMember,
    GroupSpec,
)
from twisted_broker.coordinator.consumer.range import assign_ranges
from twisted_broker.coordinator.consumer.uniform import assign_uniformly
from twisted_broker.wire.schema import run_whole

T, U, V = b"t" * 16, b"u" * 16, b"v" * 16


def spec(members, partitions, targets=None, instances=None):
    """`members`: the topics of each."""
    targets, instances = targets or {}, instances or {}
    return GroupSpec(
        tuple(
            AssignorMember(
                member_id,
                instances.get(member_id),
                frozenset(topics),
                targets.get(member_id, frozenset()),
            )
            for member_id, topics in sorted(members.items())
        ),
        partitions,
        len({frozenset(topics) for topics in members.values()}) < 2,
    )


def assign(assignor, *arguments, **named):
    of = spec(*arguments, **named)
    result = run_whole(assignor(of))
    check(of, result)
    return result


def check(of, result):
    """Each partition of a topic that has subscribers goes to exactly one of them."""
    subscribed = {topic for member in of.members for topic in member.topics}
    everything = {(topic, number) for topic in subscribed for number in range(of.partitions[topic])}
    given_out = Counter(each for partitions in result.values() for each in partitions)
    assert given_out == Counter(everything)
    for member in of.members:
        assert {topic for topic, _ in result[member.member_id]} <= member.topics
    assert result.keys() == {member.member_id for member in of.members}


def sizes(result):
    return sorted(len(partitions) for partitions in result.values())


def moved(before, after):
    """How many partitions left a member that is still there."""
    return sum(len(before[each] - after[each]) for each in before if each in after)


@pytest.mark.parametrize("assignor", [assign_uniformly, assign_ranges])
def test_no_topics_and_no_members(assignor):
    assert assign(assignor, {"a": [], "b": []}, {}) == {"a": frozenset(), "b": frozenset()}
    assert assign(assignor, {}, {T: 3}) == {}


def test_uniform_gives_the_same_or_one_more():
    """GN 2.140."""
    assert sizes(assign(assign_uniformly, {each: [T, U] for each in "abc"}, {T: 4, U: 3})) == [
        2,
        2,
        3,
    ]


def test_uniform_leaves_members_empty_when_there_are_more_than_partitions():
    """GN 6.7."""
    assert sizes(assign(assign_uniformly, {each: [T] for each in "abcde"}, {T: 3})) == [
        0,
        0,
        1,
        1,
        1,
    ]


def test_uniform_moves_only_the_surplus_to_a_member_that_joins():
    """GN 2.140."""
    before = assign(assign_uniformly, {"a": [T], "b": [T]}, {T: 9})
    after = assign(assign_uniformly, {"a": [T], "b": [T], "c": [T]}, {T: 9}, before)
    assert sizes(after) == [3, 3, 3] and moved(before, after) == 3


def test_uniform_moves_nothing_when_a_member_leaves_or_partitions_come():
    """GN 2.140."""
    before = assign(assign_uniformly, {each: [T] for each in "abc"}, {T: 6})
    after = assign(assign_uniformly, {"a": [T], "c": [T]}, {T: 6}, before)
    assert sizes(after) == [3, 3] and moved(before, after) == 0
    grown = assign(assign_uniformly, {each: [T] for each in "abc"}, {T: 8}, before)
    assert sizes(grown) == [2, 3, 3] and moved(before, grown) == 0


def test_uniform_gives_the_extra_to_who_has_it():
    """GN 2.140: a quota of 1 or 2, whoever is first in order."""
    numbers = {"a": [0], "b": [1, 2], "c": [3, 4]}
    before = {each: frozenset((T, n) for n in numbers[each]) for each in numbers}
    assert assign(assign_uniformly, {each: [T] for each in "abc"}, {T: 5}, before) == before


def test_uniform_takes_from_a_lopsided_assignment_what_is_too_much():
    """GN 6.7."""
    everything = frozenset((T, number) for number in range(10))
    after = assign(assign_uniformly, {each: [T] for each in "abcd"}, {T: 10}, {"b": everything})
    assert sizes(after) == [2, 2, 3, 3] and len(after["b"]) == 3


@pytest.mark.parametrize("alike", [True, False])
def test_uniform_drops_what_is_gone(alike):
    """GN 2.141: topics not subscribed to any more, and partitions that do not exist."""
    before = {"a": frozenset({(U, 0), (T, 0), (T, 7)}), "b": frozenset({(T, 1)})}
    after = assign(
        assign_uniformly, {"a": [T], "b": [T] if alike else [T, V]}, {T: 2, V: 1}, before
    )
    assert (T, 0) in after["a"] and (T, 1) in after["b"]


def test_uniform_balances_members_that_do_not_subscribe_alike():
    """GN 2.141."""
    after = assign(assign_uniformly, {"a": [T], "b": [T, U], "c": [U]}, {T: 6, U: 6})
    assert sizes(after) == [4, 4, 4]


def test_uniform_moves_between_unlike_members_only_what_balances():
    """GN 2.141: a difference of one stays."""
    before = {
        "a": frozenset((T, number) for number in range(6)),
        "b": frozenset((U, number) for number in range(2)),
    }
    after = assign(assign_uniformly, {"a": [T], "b": [T, U]}, {T: 6, U: 2}, before)
    assert sizes(after) == [4, 4] and moved(before, after) == 2
    assert assign(assign_uniformly, {"a": [T], "b": [T, U]}, {T: 6, U: 2}, after) == after


def test_uniform_gives_to_the_only_subscriber_whatever_it_has():
    """GN 2.141."""
    after = assign(assign_uniformly, {"a": [T], "b": [T, U]}, {T: 2, U: 5})
    assert sizes(after) == [2, 5]


MEMBERS = st.dictionaries(
    st.text("abcdefgh", min_size=1, max_size=3), st.sets(st.sampled_from([T, U, V])), max_size=9
)


@given(before=MEMBERS, after=MEMBERS, partitions=st.tuples(*[st.integers(0, 12)] * 3))
def test_uniform_stays_balanced_and_valid(before, after, partitions):
    """GN 6.7: members come and go, and change what they subscribe to. No single move would make it
    more even.
    """
    counts = dict(zip((T, U, V), partitions, strict=True))
    first = assign(assign_uniformly, before, counts)
    of = spec(after, counts, first)
    second = run_whole(assign_uniformly(of))
    check(of, second)
    for giver in of.members:
        for taker in of.members:
            movable = [each for each in second[giver.member_id] if each[0] in taker.topics]
            if movable:
                assert len(second[giver.member_id]) - len(second[taker.member_id]) < 2
    if of.are_alike:
        assert run_whole(assign_uniformly(spec(after, counts, second))) == second


def test_range_gives_contiguous_partitions_in_the_order_of_members():
    """GN 2.143: the first P mod m have one more."""
    after = assign(assign_ranges, {each: [T, U] for each in "abc"}, {T: 7, U: 7})
    assert after["a"] == {(each, number) for each in (T, U) for number in (0, 1, 2)}
    assert after["c"] == {(each, number) for each in (T, U) for number in (5, 6)}


def test_range_leaves_nothing_to_members_beyond_the_partitions():
    """GN 2.143."""
    after = assign(assign_ranges, {each: [T] for each in "abc"}, {T: 2})
    assert after == {"a": {(T, 0)}, "b": {(T, 1)}, "c": frozenset()}


def test_range_counts_only_the_subscribers_of_a_topic():
    """GN 2.143."""
    after = assign(assign_ranges, {"a": [T], "b": [T, U], "c": [U]}, {T: 2, U: 2})
    assert after == {"a": {(T, 0)}, "b": {(T, 1), (U, 0)}, "c": {(U, 1)}}


def test_range_puts_static_members_first_by_instance():
    """GN 2.143: a new member id of an instance gets the same partitions."""
    members = {each: [T] for each in "abcd"}
    after = assign(assign_ranges, members, {T: 4}, instances={"c": "i2", "d": "i1"})
    order = [next(number for _, number in after[each]) for each in "dcab"]
    assert order == [0, 1, 2, 3]


@pytest.mark.parametrize("assignor", [assign_uniformly, assign_ranges])
@pytest.mark.parametrize("alike", [True, False])
def test_large_groups_pause(assignor, alike):
    """GN 0.8: about every PARTITIONS_PER_STEP partitions or topics."""
    count = 4 * PARTITIONS_PER_STEP
    topics = {number.to_bytes(16, "big"): 10 for number in range(count // 10)}
    members = {f"{number:03}": list(topics) for number in range(100)}
    if not alike:
        members["000"] = members["000"][1:]
    assert len(list(assignor(spec(members, topics)))) >= 4
