"""Long work in turns: what a turn may take, who comes next, what ends one work and not the
others.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from tests.coordinator.broker_run import TurnClock
from twisted_broker.turns import PIECES_PER_TURN, SECONDS_PER_TURN, Turns


def test_a_turn_ends_when_its_time_is_over() -> None:
    """By the clock, with the piece that passes the budget."""
    clock = TurnClock()
    done: list[Any] = []
    turns = Turns(clock)

    def work() -> Iterator[None]:
        for number in range(10):
            clock.rightNow += SECONDS_PER_TURN / 2
            done.append(number)
            yield

    turns.start(work())
    assert done == [0]
    for turn in range(1, 5):
        began = clock.seconds()
        clock.turn()
        assert len(done) == 1 + 2 * turn and clock.seconds() - began == pytest.approx(
            SECONDS_PER_TURN
        )


def test_a_turn_ends_although_the_clock_stands_still() -> None:
    """A simulated clock does, and endless work must not hold its turn for ever."""
    clock = TurnClock()
    done: list[Any] = []

    def work() -> Iterator[None]:
        while True:
            done.append(None)
            yield

    turns = Turns(clock)
    turns.start(work())
    clock.turn()
    assert len(done) == 1 + PIECES_PER_TURN


def test_work_takes_turns_piece_by_piece() -> None:
    """Short work does not wait for the end of long work; small work is done on return."""
    clock = TurnClock()
    done: list[Any] = []

    def work(name: str, pieces: int) -> Iterator[None]:
        for _ in range(pieces - 1):
            done.append(name)
            yield
        done.append(name.upper())

    turns = Turns(clock)
    turns.start(work("a", 6))
    turns.start(work("b", 3))
    turns.start(work("c", 1))
    assert done == ["a", "b", "C"]
    clock.turn()
    assert done[3:] == ["a", "b", "a", "B", "a", "a", "A"] and not clock.getDelayedCalls()


def test_work_that_waits_goes_on_when_its_deferred_fires() -> None:
    """With a result or a failure; meanwhile there is no turn for it."""
    clock = TurnClock()
    done: list[Any] = []
    first: Deferred[Any] = Deferred()
    second: Deferred[Any] = Deferred()
    second.addErrback(lambda _: None)

    def work() -> Iterator[Deferred[Any] | None]:
        yield first
        done.append(1)
        yield second
        done.append(2)

    turns = Turns(clock)
    turns.start(work())
    assert not clock.getDelayedCalls()
    first.callback("value")
    clock.turn()
    assert done == [1] and first.result == "value" and not clock.getDelayedCalls()
    second.errback(ValueError())
    clock.turn()
    assert done == [1, 2]


def test_work_that_fails_ends_alone(caplog: Any) -> None:
    """Its traceback is logged, the others go on."""
    clock = TurnClock()
    done: list[Any] = []

    def fails() -> Iterator[None]:
        yield
        raise KeyError("bug")

    def work() -> Iterator[None]:
        yield
        done.append(1)

    turns = Turns(clock)
    turns.start(fails())
    turns.start(work())
    clock.turn()
    assert done == [1] and not clock.getDelayedCalls()


def test_nothing_runs_after_the_end() -> None:
    """Neither what was under way nor what waited."""
    clock = TurnClock()
    done: list[Any] = []
    gate: Deferred[Any] = Deferred()

    def work(wait: Deferred[Any] | None) -> Iterator[Deferred[Any] | None]:
        yield wait
        done.append(1)

    turns = Turns(clock)
    turns.start(work(None))
    turns.start(work(gate))
    turns.stop_background()
    gate.callback(None)
    assert not done and not clock.getDelayedCalls()


# requests
def test_one_slice_of_one_request_a_turn() -> None:
    """Ten long requests take turns: each turn of the reactor serves one of them, in the order in
    which they came.
    """
    clock = Clock()
    turns = Turns(clock)
    served: list[int] = []

    def next_one(number: int, _: None) -> None:
        go_on(number)

    def go_on(number: int) -> None:
        served.append(number)
        if served.count(number) < 3:
            turns.next_turn().addCallback(lambda _: go_on(number))

    for number in range(10):
        turns.next_turn().addCallback(partial(next_one, number))
    number_of_turns = 0
    while clock.getDelayedCalls():
        assert len(clock.getDelayedCalls()) == 1
        clock.calls.pop(0).func()
        number_of_turns += 1
        assert len(served) == number_of_turns
    assert served == [*range(10)] * 3


def test_a_waiter_whose_client_went_is_passed_over() -> None:
    """Its Deferred was cancelled; the others go on."""
    clock = Clock()
    turns = Turns(clock)
    first, second = turns.next_turn(), turns.next_turn()
    first.addErrback(lambda failure: None)
    first.cancel()
    clock.pump([0, 0])
    assert second.called


def test_requests_and_background_work_alternate() -> None:
    """Neither waits for the other's end, and a turn serves one of the two."""
    clock, done = TurnClock(), []
    turns = Turns(clock)

    def work() -> Iterator[None]:
        while True:
            clock.rightNow += SECONDS_PER_TURN
            done.append("piece")
            yield

    def slice_done(_: None) -> None:
        done.append("slice")
        turns.next_turn().addCallback(slice_done)

    turns.start(work())
    for _ in range(2):
        turns.next_turn().addCallback(slice_done)
    for _ in range(6):
        clock.turn()
        assert len(clock.getDelayedCalls()) == 1
    assert done == ["piece", *["piece", "slice"] * 3]


def test_requests_go_on_when_background_work_is_stopped() -> None:
    """The coordinator ends before the last request is answered."""
    clock = TurnClock()
    turns = Turns(clock)
    waiter = turns.next_turn()
    turns.start(iter([None, None]))
    turns.stop_background()
    clock.turn()
    assert waiter.called and not clock.getDelayedCalls()
