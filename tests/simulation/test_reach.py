"""What runs reached is counted, and the counting leaves nothing behind."""

from __future__ import annotations

import pytest

from twisted_broker.log.log import Log
from twisted_broker.log.segments import LogSegments
from twisted_broker.simulation.__main__ import run_seed
from twisted_broker.simulation.probes import Probes
from twisted_broker.simulation.reach import Reach, Total


def test_a_total_names_what_no_run_reached() -> None:
    """A kind is reached when one run reached it; times and runs are counted apart."""
    total = Total({"a": "", "b": "", "c": ""})
    total.add({"a": 2, "b": 0})
    total.add({"a": 1, "other": 5})
    assert total.missing() == ["b", "c"]
    assert (total.counts["a"], total.seeds["a"], total.seeds["b"], total.runs) == (3, 2, 0, 2)
    lines = [line.split() for line in total.table().splitlines()]
    assert lines[1:] == [["a", "3", "2"], ["b", "0", "0"], ["c", "0", "0"], ["other", "5", "1"]]


def test_an_unknown_kind_is_a_mistake() -> None:
    with pytest.raises(AssertionError):
        Reach().count("no such kind")


def test_probes_are_taken_out() -> None:
    """Also when the run fails: the production code is as it was."""
    before = Log._end_at, LogSegments.remove_above, LogSegments.should_roll
    with pytest.raises(KeyError), Probes(Reach()):
        assert LogSegments.should_roll is not before[2]
        raise KeyError
    assert (Log._end_at, LogSegments.remove_above, LogSegments.should_roll) == before


def test_a_run_says_what_it_reached() -> None:
    """The same seed, the same counts; a leader that died is elected anew."""
    first, again = run_seed(1).reach, run_seed(1).reach
    assert first == again
    assert first["leader change"] and first["ISR shrink"] and first["recovery"]
