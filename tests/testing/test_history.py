"""What a client's recorder writes is what the history takes; what cannot be judged is refused."""

from __future__ import annotations

import io

import pytest

from twisted_broker.interfaces import TopicPartition
from twisted_broker.simulation.checks.history import Fate, History, Recorder

T0 = TopicPartition("t", 0)


def test_recorded_facts_arrive() -> None:
    """Sends with their op and time, what became of them, assignments and polls."""
    clock = iter(range(100, 200))
    file = io.StringIO()
    recorder = Recorder(file, lambda: next(clock))
    recorder.send("t", [(0, "a"), (0, "b")])
    recorder.send("t", [(1, "c")])
    recorder.answered("a", Fate.ACKED, 7)
    recorder.answered("c", Fate.REFUSED)
    recorder.assigned()
    recorder.poll({("t", 0): [(7, "a"), (8, "b")]})
    recorder.poll({})
    history = History()
    history.groups["x"] = "g"
    assert history.take("x", file.getvalue().splitlines()) == 6
    facts = [
        (
            send.value,
            send.partition.partition,
            send.op,
            send.fate,
            send.offset,
            send.invoked,
            send.completed,
        )
        for send in history.sends
    ]
    assert facts == [
        ("a", 0, 1, Fate.ACKED, 7, 100, 102),
        ("b", 0, 1, Fate.UNKNOWN, -1, 100, 0),
        ("c", 1, 2, Fate.REFUSED, -1, 101, 103),
    ]
    (poll,) = history.polls
    assert (poll.who, poll.tenure, poll.at, poll.records) == (
        "x",
        1,
        105,
        {T0: [(7, "a"), (8, "b")]},
    )
    assert history.acknowledged == 1
    assert history.positions == {("x", T0): 9, ("g", T0): 9}


def test_a_value_is_on_its_way_once() -> None:
    """Else nobody could tell a duplicate from a second send."""
    history = History()
    history.send("p", T0, "a", op=1)
    with pytest.raises(ValueError, match="'a'"):
        history.send("q", T0, "a", op=1)


def test_an_answer_to_nothing_is_no_fact() -> None:
    with pytest.raises(KeyError):
        History().complete("a", Fate.ACKED, 1)
