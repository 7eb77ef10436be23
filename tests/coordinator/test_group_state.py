"""The table of a group's states."""

import re

from twisted_broker.coordinator import group_state
from twisted_broker.coordinator.group_state import NEXT_STATES, Group, GroupState

EDGE = re.compile(r"^ +(\w+) +--> (\w+)  ", re.MULTILINE)


def test_the_drawing_is_the_table():
    """The transitions drawn in the card are exactly those of the table."""
    drawn = [(GroupState(a), GroupState(b)) for a, b in EDGE.findall(group_state.__doc__)]
    assert len(drawn) == len(set(drawn))
    assert set(drawn) == {(a, b) for a, nexts in NEXT_STATES.items() for b in nexts}


def test_every_state_but_dead_can_end():
    """Any group can be unloaded, and a dead one stays dead."""
    assert all(
        GroupState.DEAD in nexts
        for state, nexts in NEXT_STATES.items()
        if state is not GroupState.DEAD
    )
    assert not NEXT_STATES[GroupState.DEAD]


def test_a_transition_outside_of_the_table_is_a_bug():
    """A wrong transition asserts and leaves the state as it was."""
    group = Group("g", 0)
    try:
        group.transition_to(GroupState.STABLE, 1)
    except AssertionError:
        pass
    else:
        raise AssertionError("Empty went to Stable")
    assert group.state is GroupState.EMPTY and group.state_timestamp_ms == 0
