"""The table of a group's states."""

import re

from twisted_broker.coordinator import classic_group
from twisted_broker.coordinator.classic_group import NEXT_STATES, ClassicGroup, ClassicGroupState

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
