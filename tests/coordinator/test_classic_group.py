"""The table of a group's states."""

import re

import pytest

from tests.coordinator.group_run import GroupRun
from twisted_broker.coordinator import classic_group
from twisted_broker.coordinator.classic_group import (
    NEXT_STATES,
    ClassicGroup,
    ClassicGroupState,
    group_from_metadata,
)
from twisted_broker.coordinator.group_records import GroupMetadata, MemberSnapshot

EDGE = re.compile(r"^ +(\w+) +--> (\w+)  ", re.MULTILINE)


def test_the_drawing_is_the_table():
    """The transitions drawn in the card are exactly those of the table."""
    drawn = [
        (ClassicGroupState(a), ClassicGroupState(b)) for a, b in EDGE.findall(classic_group.__doc__)
    ]
    assert len(drawn) == len(set(drawn))
    assert set(drawn) == {(a, b) for a, nexts in NEXT_STATES.items() for b in nexts}


def test_every_state_but_dead_can_end():
    """Any group can be unloaded, and a dead one stays dead."""
    assert all(
        ClassicGroupState.DEAD in nexts
        for state, nexts in NEXT_STATES.items()
        if state is not ClassicGroupState.DEAD
    )
    assert not NEXT_STATES[ClassicGroupState.DEAD]


def test_a_transition_outside_of_the_table_is_a_bug():
    """A wrong transition asserts and leaves the state as it was."""
    group = ClassicGroup("g", 0)
    try:
        group.transition_to(ClassicGroupState.STABLE, 1)
    except AssertionError:
        pass
    else:
        raise AssertionError("Empty went to Stable")
    assert group.state is ClassicGroupState.EMPTY and group.state_timestamp_ms == 0


@pytest.mark.parametrize(
    ("protocol", "members", "is_sound"),
    [
        ("range", (("a", None), ("b", None)), True),
        ("range", (("a", "i"), ("b", "j"), ("c", None)), True),
        ("range", (("a", None), ("a", None)), False),
        ("range", (("a", "i"), ("b", "i")), False),
        (None, (("a", None),), False),
        (None, (), True),
    ],
)
def test_a_record_that_contradicts_itself_is_no_group(
    protocol: str | None, members: tuple[tuple[str, str | None], ...], is_sound: bool
) -> None:
    """A member or an instance twice, or members that agreed on no protocol."""
    metadata = GroupMetadata(
        "g",
        "consumer",
        3,
        protocol,
        members=tuple(
            MemberSnapshot(member, instance, "c", "h", 1000, 1000, b"", b"")
            for member, instance in members
        ),
    )
    if is_sound:
        assert list(group_from_metadata(metadata, 0).members) == [member for member, _ in members]
    else:
        with pytest.raises(ValueError, match="group 'g' has"):
            group_from_metadata(metadata, 0)


def test_a_group_whose_record_names_no_leader_elects_one() -> None:
    """A damaged or foreign record: its members rebalance as others do, and one of them leads."""
    members = tuple(
        MemberSnapshot(member, None, "c", "h", 60_000, 10_000, b"", b"") for member in ("a", "b")
    )
    metadata = GroupMetadata("g", "consumer", 3, "range", "gone", members=members)
    run = GroupRun(group=group_from_metadata(metadata, 1_000_000))
    first, second = run.join("a"), run.join("b")
    assert (first.join.generation, first.join.leader) == (4, "a")
    assert (second.join.generation, second.join.leader) == (4, "a")
