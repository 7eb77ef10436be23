"""The timing wheel (RL 4.1, 4.2)."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.task import Clock

from twisted_broker.replication.purgatory.timing_wheel import Timer, TimingWheel
from twisted_broker.stall_tolerance import DEADLINE_STALL_MS


class Note(Timer):
    __slots__ = ("clock", "fired_at", "then")

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.fired_at: list[float] = []
        self.then: Callable[[], object] | None = None

    def expired(self) -> None:
        self.fired_at.append(self.clock.seconds())
        if self.then is not None:
            self.then()


def run(clock: Clock, seconds: float) -> None:
    """From call to call: `Clock.advance` alone would set the time first and run afterwards."""
    end = clock.seconds() + seconds
    while (calls := clock.getDelayedCalls()) and min(call.getTime() for call in calls) <= end:
        clock.advance(max(0.0, min(call.getTime() for call in calls) - clock.seconds()))
    clock.advance(max(0.0, end - clock.seconds()))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5_000_000), st.integers(0, 700)), min_size=1, max_size=40),
    st.data(),
)
def test_fires_once_never_early_and_within_a_tick(plan, data):
    """RL 4.2: whatever the delays and the moments of adding, a timer fires once, at its time; a
    cancelled one never.
    """
    clock = Clock()
    wheel = TimingWheel(clock)
    notes = []
    for delay_ms, pause_ms in plan:
        run(clock, pause_ms / 1000)
        note = Note(clock)
        wheel.add(note, delay_ms)
        notes.append((note, clock.seconds() + delay_ms / 1000))
    cancelled = {
        index
        for index in data.draw(st.sets(st.integers(0, len(notes) - 1)))
        if not notes[index][0].fired_at
    }
    for index in cancelled:
        wheel.cancel(notes[index][0])
    run(clock, 5_001)
    for index, (note, due) in enumerate(notes):
        if index in cancelled:
            assert note.fired_at == []
        else:
            (fired,) = note.fired_at
            assert due - 1e-6 <= fired <= due + 0.0021
    assert wheel.size == 0
    assert clock.getDelayedCalls() == []


def test_equal_times_fire_in_order_of_adding():
    """A slot is first in, first out."""
    clock = Clock()
    wheel = TimingWheel(clock)
    order: list[int] = []
    for number in range(5):
        note = Note(clock)
        note.then = partial(order.append, number)
        wheel.add(note, 100)
    run(clock, 0.2)
    assert order == [0, 1, 2, 3, 4]


def test_one_that_fires_may_cancel_and_add_others():
    """A timer cancelled by another of the same millisecond never fires; one added while firing
    fires later.
    """
    clock = Clock()
    wheel = TimingWheel(clock)
    first, second, third = Note(clock), Note(clock), Note(clock)
    first.then = lambda: (wheel.cancel(second), wheel.add(third, 0))
    wheel.add(first, 10)
    wheel.add(second, 10)
    run(clock, 0.02)
    assert (len(first.fired_at), len(second.fired_at), len(third.fired_at)) == (1, 0, 1)


def test_a_failing_timer_does_not_stop_the_wheel():
    """A raising `expired` is logged; the next timers still fire."""
    clock = Clock()
    wheel = TimingWheel(clock)
    bad, good = Note(clock), Note(clock)
    bad.then = lambda: 1 / 0
    wheel.add(bad, 5)
    wheel.add(good, 6)
    run(clock, 0.01)
    assert len(bad.fired_at) == len(good.fired_at) == 1


def test_one_clock_call_for_all():
    """100,000 timers hold one call of the clock, and an earlier one moves it."""
    clock = Clock()
    wheel = TimingWheel(clock)
    for _ in range(1000):
        wheel.add(Note(clock), 500)
    early = Note(clock)
    wheel.add(early, 20)
    assert len(clock.getDelayedCalls()) == 1
    run(clock, 0.021)
    assert len(early.fired_at) == 1


def test_a_jump_of_the_clock_fires_everything_due():
    """A stalled process wakes late: all that is due fires in the order of its deadlines."""
    clock = Clock()
    wheel = TimingWheel(clock)
    order: list[int] = []
    for delay_ms in (70_000, 3, 5_000, 64, 4_096):
        note = Note(clock)
        note.then = partial(order.append, delay_ms)
        wheel.add(note, delay_ms)
    clock.advance(100)
    assert order == [3, 64, 4_096, 5_000, 70_000]


@pytest.mark.parametrize("stall_ms", [0, DEADLINE_STALL_MS - 1, DEADLINE_STALL_MS, 60_000])
def test_what_arrived_during_a_stall_comes_before_what_was_due_in_it(stall_ms):
    """A reactor runs its timers before it reads; what it reads in that turn may complete
    (cancel) what waits, or begin to wait itself.
    """
    clock = Clock()
    wheel = TimingWheel(clock)
    completed, silent, new = Note(clock), Note(clock), Note(clock)
    for note in (completed, silent):
        wheel.add(note, 5_000)

    def turn_reads():
        wheel.cancel(completed)
        wheel.add(new, 10)

    clock.callLater(5.0, turn_reads)
    clock.advance(5.0 + stall_ms / 1000)
    assert bool(completed.fired_at) == (stall_ms < DEADLINE_STALL_MS)
    assert silent.fired_at == [5.0 + stall_ms / 1000]
    run(clock, 1)
    assert len(new.fired_at) == 1 and wheel.size == 0 and not clock.getDelayedCalls()


def test_stop_lets_go_of_the_clock():
    """After `stop` nothing is pending on the clock."""
    clock = Clock()
    wheel = TimingWheel(clock)
    wheel.add(Note(clock), 5)
    wheel.stop()
    assert clock.getDelayedCalls() == []


def test_cost_does_not_grow_with_the_number_waiting():
    """RL 4.2: adding and cancelling is O(1): with 100,000 waiting it costs at most a few times
    what it costs alone, in processor time.
    """
    clock = Clock()
    wheel = TimingWheel(clock)

    def cost() -> float:
        best = 1.0
        for _ in range(5):
            batch = [Note(clock) for _ in range(2000)]
            start = time.process_time()
            for note in batch:
                wheel.add(note, 30_000)
            for note in batch:
                wheel.cancel(note)
            best = min(best, time.process_time() - start)
        return best

    alone = cost()
    for delay_ms in range(100_000):
        wheel.add(Note(clock), 1_000 + delay_ms)
    assert cost() < 10 * alone
    wheel.stop()
