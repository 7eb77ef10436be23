"""Long work in slices: what a turn may take, who comes next, what ends one work and not the
others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from tests.coordinator.broker_run import TurnClock
from twisted_broker.coordinator.slices import PIECES_PER_TURN, SECONDS_PER_TURN, Slices


def test_a_turn_ends_when_its_time_is_over() -> None:
    """By the clock, with the piece that passes the budget."""
    clock = TurnClock()
    done: list[Any] = []
    slices = Slices(clock)

    def work() -> Iterator[None]:
        for number in range(10):
            clock.rightNow += SECONDS_PER_TURN / 2
            done.append(number)
            yield

    slices.start(work())
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

    slices = Slices(clock)
    slices.start(work())
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

    slices = Slices(clock)
    slices.start(work("a", 6))
    slices.start(work("b", 3))
    slices.start(work("c", 1))
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

    slices = Slices(clock)
    slices.start(work())
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

    slices = Slices(clock)
    slices.start(fails())
    slices.start(work())
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

    slices = Slices(clock)
    slices.start(work(None))
    slices.start(work(gate))
    slices.stop()
    gate.callback(None)
    assert not done and not clock.getDelayedCalls()
