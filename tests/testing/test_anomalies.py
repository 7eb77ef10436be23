"""RELIABILITY 1.2: each anomaly is found where it is planted, by its name; histories of a log
that does what it must show none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twisted_broker.interfaces import TopicPartition
from twisted_broker.simulation.checks.anomalies import NAMES, counts, find_anomalies
from twisted_broker.simulation.checks.history import Fate, History, Recorder, copy_of

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def written(
    *values: str, who: str = "p", partition: TopicPartition = T0, first: int = 0, step: int = 1
) -> History:
    """One producer wrote them, one op each, acknowledged from offset `first` on, `step` offsets
    apart.
    """
    history = History()
    for number, value in enumerate(values):
        history.send(who, partition, value, op=number)
        history.complete(value, Fate.ACKED, first + number * step)
    return history


def read(
    history: History,
    *polls: Sequence[tuple[int, str]],
    who: str = "c",
    partition: TopicPartition = T0,
) -> History:
    for records in polls:
        history.poll(who, {partition: records})
    return history


def names(history: History, ended: bool = True) -> list[str]:
    return [anomaly.name for anomaly in find_anomalies(history, ended)]


A, B, C, D = (0, "a"), (1, "b"), (2, "c"), (3, "d")


def test_a_log_that_does_what_it_must_shows_nothing() -> None:
    """Two partitions, gaps between offsets, several consumers, one that was assigned anew, a
    send nobody knows about that is there.
    """
    history = written("a", "b", "c", step=3)
    history.send("p", T1, "x", op=9)
    history.complete("x", Fate.ACKED, 0)
    history.send("p", T1, "maybe", op=10)
    history.send("p", T1, "surely not", op=11)
    history.complete("surely not", Fate.REFUSED)
    read(history, [(0, "a")], [(3, "b"), (6, "c")])
    history.assigned("c")
    read(history, [(3, "b"), (6, "c")])
    read(history, [(0, "x"), (1, "maybe")], who="other", partition=T1)
    assert names(history) == []


def test_an_offset_with_two_values() -> None:
    history = read(written("a", "b"), [A, B])
    assert names(read(history, [(1, "a2")], who="d"), ended=False) == [
        "inconsistent-offsets",
        "unsent-read",
    ]


def test_an_acknowledged_offset_that_holds_something_else() -> None:
    """The producer was told one offset, the consumer finds the value at another."""
    history = read(written("a", "b"), [(0, "b"), (1, "a")])
    assert names(history) == ["duplicate"] * 2 + ["inconsistent-offsets"] * 2


def test_a_value_at_two_offsets() -> None:
    assert names(read(written("a", "b"), [A, B, (2, "a")])) == ["duplicate"]


def test_an_acknowledged_value_that_readers_pass() -> None:
    """Lost, also before the end; and the consumer passed it over."""
    history = written("a", "b", "c")
    history.assigned("c")
    read(history, [A])
    history.assigned("c")
    read(history, [C])
    assert names(history, ended=False) == ["lost-write"]


def test_an_acknowledged_value_that_nobody_reached() -> None:
    history = read(written("a", "b"), [A])
    assert names(history, ended=False) == []
    assert names(history) == ["unseen"]


def test_an_acknowledgement_without_an_offset_is_judged_at_the_end() -> None:
    history = read(written("a"), [A])
    history.send("p", T0, "where", op=2)
    history.complete("where", Fate.ACKED, -1)
    assert names(history, ended=False) == []
    assert names(history) == ["unseen"]


def test_a_refused_value_that_is_there() -> None:
    history = written("a")
    history.send("p", T0, "b", op=2)
    history.complete("b", Fate.REFUSED)
    assert names(read(history, [A, B])) == ["aborted-read"]


def test_a_value_from_nowhere() -> None:
    assert names(read(written("a"), [A, (1, "who?")])) == ["unsent-read"]


def test_a_consumer_that_passes_over() -> None:
    """Within a tenure only; what another consumer saw makes it known."""
    history = read(written("a", "b", "c"), [A, B, C], who="d")
    assert names(read(history, [A], [C])) == ["poll-skip"]
    assert names(read(history, [A, C], who="e")) == ["poll-skip", "int-poll-skip"]


def test_a_consumer_that_goes_back() -> None:
    history = read(written("a", "b", "c"), [A, B, C], [B])
    assert names(history) == ["nonmonotonic-poll"]
    assert names(read(history, [A, C, B], who="e")) == [
        "nonmonotonic-poll",
        "int-poll-skip",
        "int-nonmonotonic-poll",
    ]


def test_going_back_to_a_new_position_is_none() -> None:
    history = read(written("a", "b"), [A, B])
    history.assigned("c")
    assert names(read(history, [A, B])) == []


def test_a_producer_whose_later_send_lands_lower() -> None:
    history = written("b", "a")
    history.sends[0].offset, history.sends[1].offset = 1, 0
    assert names(read(history, [A, B])) == ["nonmonotonic-send"]
    history.sends[1].op = history.sends[0].op
    assert names(history) == ["int-nonmonotonic-send"]


def test_two_producers_are_in_no_order() -> None:
    history = written("b", first=1)
    history.send("q", T0, "a", op=5)
    history.complete("a", Fate.ACKED, 0)
    assert names(read(history, [A, B])) == []


def test_what_a_group_passes_over_between_its_members() -> None:
    """Another consumer saw it, so it is not lost; a member that begins elsewhere is no skip of
    its own.
    """
    history = read(written("a", "b", "c", "d"), [A, B, C, D], who="free")
    history.groups = {"m1": "g", "m2": "g"}
    read(history, [A], who="m1")
    read(history, [D], who="m2")
    assert names(history) == ["group-skip"] * 2
    assert names(read(history, [B, C], who="m1")) == []


def test_a_group_that_never_saw_the_beginning() -> None:
    history = read(written("a", "b"), [A, B], who="free")
    history.groups = {"m": "g"}
    assert names(read(history, [B], who="m")) == ["group-skip"]


def test_counts_say_zero_too() -> None:
    found = counts(find_anomalies(read(written("a"), [A, (1, "a")])))
    assert set(found) == set(NAMES) and found["duplicate"] == 1 and sum(found.values()) == 1


def simulate(random: Random, records: int) -> History:
    """Three producers, two logs with gaps, two free consumers and a group of two whose
    partitions change hands.
    """
    history = History()
    history.groups = {"m0": "g", "m1": "g"}
    logs: dict[TopicPartition, list[tuple[int, str]]] = {T0: [], T1: []}
    offsets = {T0: -1, T1: -1}
    for number in range(records):
        partition, value = random.choice((T0, T1)), f"v{number}"
        history.send(f"p{number % 3}", partition, value, op=number // 4)
        fate = random.choices((Fate.ACKED, Fate.UNKNOWN, Fate.REFUSED), (20, 1, 1))[0]
        if fate is not Fate.REFUSED and (fate is Fate.ACKED or random.random() < 0.5):
            offsets[partition] += random.choice((1, 1, 1, 2))
            logs[partition].append((offsets[partition], value))
        if fate is not Fate.UNKNOWN:
            history.complete(value, fate, offsets[partition] if fate is Fate.ACKED else -1)
    for partition, log in logs.items():
        cut = random.randint(0, len(log))
        back = max(0, cut - random.randint(0, 5))
        for who, part in (("c0", log), ("c1", log), ("m0", log[:cut]), ("m1", log[back:])):
            _poll_all(history, random, who, partition, part)
    return history


def _poll_all(
    history: History,
    random: Random,
    who: str,
    partition: TopicPartition,
    log: Sequence[tuple[int, str]],
) -> None:
    history.assigned(who)
    at = 0
    while at < len(log):
        size = random.randint(1, 500)
        history.poll(who, {partition: log[at : at + size]})
        at += size


@given(st.integers(0, 2**32), st.integers(0, 200))
@settings(max_examples=60, deadline=None)
def test_clean_histories_are_clean(seed: int, records: int) -> None:
    assert find_anomalies(simulate(Random(seed), records)) == []


def lose(history: History, random: Random) -> None:
    """A value that was acknowledged is on no replica any more."""
    read_back = {
        value
        for poll in history.polls
        for records in poll.records.values()
        for _, value in records[:-1]
    }
    victim = random.choice(
        [send for send in history.sends if send.fate is Fate.ACKED and send.value in read_back]
    )
    for poll in history.polls:
        poll.records = {
            partition: [each for each in records if each[1] != victim.value]
            for partition, records in poll.records.items()
        }


def repeat(history: History, random: Random) -> None:
    """A value is in the log once more, at its end."""
    ((partition, records),) = history.polls[0].records.items()
    highest = max(history.positions.values())
    history.assigned("again")
    history.poll("again", {partition: [(highest + 5, records[0][1])]})


def swap(history: History, random: Random) -> None:
    """A consumer is given two values in the wrong order."""
    poll = random.choice(
        [
            poll
            for poll in history.polls
            if any(len(records) > 1 for records in poll.records.values())
        ]
    )
    ((partition, records),) = poll.records.items()
    poll.records = {partition: [records[1], records[0], *records[2:]]}


@pytest.mark.parametrize(
    ("plant", "name"),
    [(lose, "lost-write"), (repeat, "duplicate"), (swap, "int-nonmonotonic-poll")],
)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_what_is_planted_into_a_clean_history_is_found(
    plant: Callable[[History, Random], None], name: str, seed: int
) -> None:
    random = Random(seed)
    history = simulate(random, 120)
    plant(history, random)
    assert name in names(history, ended=False)


def test_time_grows_with_the_facts_and_not_faster() -> None:
    """200,000 records, each read four times.

    Linear work takes about eight times as long for eight times the records; quadratic, 64 times.
    """
    took = []
    for records in (25_000, 200_000):
        history = simulate(Random(1), records)
        began = time.process_time()
        assert find_anomalies(history) == []
        took.append(time.process_time() - began)
    assert took[1] < 32 * max(took[0], 0.05)


def transacted(fate: Fate, committing: int = 5) -> History:
    """One transaction over two partitions: x at 0 of the first, y at 0 of the second."""
    history = History()
    history.begin("p", 1, [(T0, "x"), (T1, "y")], at=1)
    if committing:
        history.committing("p", 1, at=committing)
    history.end("p", 1, fate, [0, 0] if fate is Fate.ACKED else ())
    return history


def polled(history: History, at: int, *values: str) -> History:
    for value in values:
        partition = T0 if value.endswith("x") else T1
        history.poll("c", {partition: [(0, value)]}, at)
    return history


@pytest.mark.parametrize("fate", [Fate.ACKED, Fate.UNKNOWN])
def test_a_committed_transaction_that_is_read_whole(fate: Fate) -> None:
    """Also one that was committed, as nobody could say."""
    assert names(polled(transacted(fate), 6, "x", "y")) == []


def test_a_transaction_that_nobody_was_shown() -> None:
    assert names(transacted(Fate.REFUSED, committing=0)) == []
    assert names(transacted(Fate.UNKNOWN)) == []


def test_a_torn_transaction() -> None:
    """Before the end the other partition's marker may be on its way still."""
    for fate, also in ((Fate.UNKNOWN, []), (Fate.ACKED, ["unseen"])):
        history = polled(transacted(fate), 6, "x")
        assert names(history) == [*also, "torn-transaction"]
        assert names(history, ended=False) == []


def test_what_is_read_before_its_commit_was_sent() -> None:
    assert names(polled(transacted(Fate.ACKED), 4, "x", "y")) == ["precommitted-read"] * 2
    assert (
        names(polled(transacted(Fate.UNKNOWN, committing=0), 9, "x", "y"), ended=False)
        == ["precommitted-read"] * 2
    )


def test_what_was_aborted_and_is_read() -> None:
    """No commit was ever sent, and the client was answered that it is aborted."""
    history = polled(transacted(Fate.REFUSED, committing=0), 9, "x")
    assert names(history, ended=False) == ["aborted-read", "precommitted-read"]


def copied(*values: str, who: str = "copier") -> History:
    """x and y are there; a program passes on these."""
    history = polled(transacted(Fate.ACKED), 6, "x", "y")
    to = TopicPartition("copies", 0)
    for number, value in enumerate(values):
        history.begin(who, number, [(to, value)], at=7)
        history.committing(who, number, at=8)
        history.end(who, number, Fate.ACKED, [2 * number])
        history.poll("c", {to: [(2 * number, value)]}, at=9)
    return history


@pytest.mark.parametrize(
    ("fate", "committing"), [(Fate.REFUSED, 0), (Fate.UNKNOWN, 0), (Fate.ACKED, 99)]
)
def test_what_only_a_program_was_shown(fate: Fate, committing: int) -> None:
    """It passed on what was not committed then, and no other consumer was shown it."""
    history, to = transacted(fate, committing), TopicPartition("copies", 0)
    history.begin("copier", 1, [(to, copy_of("x", "1"))], at=7)
    history.committing("copier", 1, at=8)
    history.end("copier", 1, Fate.ACKED, [0])
    history.poll("c", {to: [(0, copy_of("x", "1"))]}, at=9)
    assert names(history, ended=False) == ["precommitted-read"]


def test_a_program_that_passes_each_value_on_once() -> None:
    """What it writes of its own is no copy."""
    assert names(copied(copy_of("x", "1"), copy_of("y", "2"), "own")) == []


def test_a_value_that_is_passed_on_twice() -> None:
    history = copied(copy_of("x", "1"), copy_of("y", "2"), copy_of("x", "3"))
    (found,) = find_anomalies(history, ended=False)
    assert (found.name, found.value) == ("duplicate", "x")


def test_two_members_of_a_group_pass_a_value_on() -> None:
    """Each is another process, and both are one program; of two groups each passes it on."""
    history = copied(copy_of("x", "1"), copy_of("y", "2"))
    for who, offset in (("b", 10), ("other", 12)):
        to = TopicPartition("copies", 0)
        value = copy_of("x", who)
        history.begin(who, 1, [(to, value)], at=7)
        history.committing(who, 1, at=8)
        history.end(who, 1, Fate.UNKNOWN)
        history.poll("c", {to: [(offset, value)]}, at=9)
    assert names(history, ended=False) == []
    history.groups |= {"copier": "g", "b": "g"}
    assert names(history, ended=False) == ["duplicate"]


def test_a_value_that_is_not_passed_on() -> None:
    history = copied(copy_of("x", "1"))
    assert names(history) == ["lost-write"] and names(history, ended=False) == []


def test_a_transaction_as_its_client_writes_it(tmp_path: Path) -> None:
    """Line by line, and taken again: the same history."""
    path, times = tmp_path / "p", iter(range(1, 99))
    with path.open("w") as file:
        recorder = Recorder(file, lambda: next(times))
        for fate in (Fate.ACKED, Fate.REFUSED):
            op = recorder.begin([("t", 0, f"{fate.value} x"), ("t", 1, f"{fate.value} y")])
            if fate is Fate.ACKED:
                recorder.committing(op)
            recorder.end(op, fate, [4, 5] if fate is Fate.ACKED else [])
        recorder.begin([("t", 0, "open")])
    history = History()
    assert history.take("p", path.read_text().splitlines()) == 6
    assert [
        (each.committing, [(send.value, send.fate, send.offset) for send in each.sends])
        for each in history.transactions.values()
    ] == [
        (2, [("acknowledged x", Fate.ACKED, 4), ("acknowledged y", Fate.ACKED, 5)]),
        (0, [("refused x", Fate.REFUSED, -1), ("refused y", Fate.REFUSED, -1)]),
        (0, [("open", Fate.UNKNOWN, -1)]),
    ]
    assert history.acknowledged == 2 and history.newest == {"p": 1}
