"""The purgatory (RL 4.1-4.3)."""

from __future__ import annotations

import gc
import tracemalloc

import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock

from twisted_broker.replication.purgatory.purgatory import DelayedOperation, Purgatory
from twisted_broker.replication.purgatory.timing_wheel import TimingWheel


class Condition:
    """Complete once `ready`; counts how it was asked."""

    def __init__(self) -> None:
        self.ready = False
        self.asked = 0
        self.expirations = 0

    def is_complete(self, changed=None) -> bool:
        self.asked += 1
        return self.ready

    def expire(self) -> None:
        self.expirations += 1


def made(purge_interval: int = 1000) -> tuple[Clock, Purgatory]:
    clock = Clock()
    return clock, Purgatory("Fetch", TimingWheel(clock), purge_interval)


def fired(deferred: Deferred) -> list:
    results: list = []
    deferred.addBoth(results.append)
    return results


def test_complete_at_once_does_not_wait():
    """RL 4.3: the first try may complete it: nothing is watched, no timer is set."""
    clock, purgatory = made()
    condition = Condition()
    condition.ready = True
    assert purgatory.try_complete_else_watch(condition, ["k"], 100) is None
    assert purgatory.size == 0
    assert clock.getDelayedCalls() == []


def test_tried_again_after_watching():
    """RL 4.3: a condition met between the first try and the watch is seen by the second try."""

    class Late(Condition):
        def is_complete(self, changed=None) -> bool:
            super().is_complete()
            return self.asked > 1

    _clock, purgatory = made()
    assert purgatory.try_complete_else_watch(Late(), ["k"], 100) is None
    assert purgatory.waiting == 0


def test_a_first_try_that_the_caller_made_is_not_made_again():
    """RL 4.3: it is tried once, after the watch."""
    _clock, purgatory = made()
    condition = Condition()
    assert purgatory.try_complete_else_watch(condition, ["k"], 100, tried=True) is not None
    assert condition.asked == 1 and purgatory.waiting == 1


@pytest.mark.parametrize(("first", "other"), [("a", "b"), ("b", "a")])
def test_completes_once_by_condition(first: str, other: str):
    """RL 4.1, 4.3: completed under one key, it is not completed again under another, nor by its
    time.
    """
    clock, purgatory = made()
    condition = Condition()
    results = fired(purgatory.try_complete_else_watch(condition, ["a", "b"], 100))
    assert purgatory.check_and_complete(first) == 0
    condition.ready = True
    assert purgatory.check_and_complete(first) == 1
    assert purgatory.check_and_complete(other) == 0
    clock.advance(1)
    assert results == [None]
    assert condition.expirations == 0


def test_completes_once_by_time():
    """RL 4.1: at its time it expires; a condition met afterwards changes nothing."""
    clock, purgatory = made()
    condition = Condition()
    results = fired(purgatory.try_complete_else_watch(condition, ["a"], 100))
    clock.advance(0.1)
    condition.ready = True
    assert purgatory.check_and_complete("a") == 0
    assert (results, condition.expirations, purgatory.expired_count) == ([None], 1, 1)


def test_a_waiter_that_gives_up_leaves():
    """Cancelling the Deferred (a client that hung up) completes it without asking it again."""
    clock, purgatory = made()
    condition = Condition()
    deferred = purgatory.try_complete_else_watch(condition, ["a"], 100)
    results = fired(deferred)
    deferred.cancel()
    condition.ready = True
    clock.advance(1)
    assert purgatory.check_and_complete("a") == 0
    assert results[0].check(CancelledError)
    assert (condition.expirations, purgatory.waiting, purgatory.size) == (0, 0, 0)


def test_a_waiter_may_wait_anew_under_the_same_key():
    """A Deferred runs its waiter at once, which may park again under the key that is being
    looked at: it is not tried in the same look.
    """
    _clock, purgatory = made()
    first, second = Condition(), Condition()
    again: list = []
    deferred = purgatory.try_complete_else_watch(first, ["a"], 100)
    deferred.addCallback(
        lambda _: again.append(purgatory.try_complete_else_watch(second, ["a"], 100))
    )
    first.ready = True
    assert purgatory.check_and_complete("a") == 1
    assert purgatory.waiting == 1
    second.ready = True
    assert purgatory.check_and_complete("a") == 1
    assert purgatory.waiting == 0


def test_completing_never_re_enters_the_look():
    """RL 4.3: all conditions of a key are asked before the first waiter runs."""
    _clock, purgatory = made()
    order: list = []

    class Noted(Condition):
        def is_complete(self, changed=None) -> bool:
            order.append("asked")
            return self.ready

    conditions = [Noted(), Noted()]
    for condition in conditions:
        purgatory.try_complete_else_watch(condition, ["a"], 100).addCallback(
            lambda _: order.append("answered")
        )
        condition.ready = True
    order.clear()
    purgatory.check_and_complete("a")
    assert order == ["asked", "asked", "answered", "answered"]


def test_everything_is_tried():
    """RL 4.1: what became true under any key is found."""
    _, purgatory = made()
    conditions = [Condition() for _ in range(3)]
    done = [
        fired(purgatory.try_complete_else_watch(condition, [key], 1000))
        for key, condition in zip("abc", conditions, strict=True)
    ]
    conditions[0].ready = conditions[2].ready = True
    purgatory.check_all()
    assert done == [[None], [], [None]]
    assert (purgatory.waiting, purgatory.size) == (1, 1)


def test_completed_ones_are_purged_past_the_interval():
    """RL 4.1: completed operations leave the lists of their other keys when their number passes
    the interval.
    """
    _clock, purgatory = made(purge_interval=3)
    conditions = [Condition() for _ in range(4)]
    for number, condition in enumerate(conditions):
        purgatory.try_complete_else_watch(condition, [("own", number), "common"], 100)
        condition.ready = True
    for number in range(3):
        purgatory.check_and_complete(("own", number))
    assert purgatory.size == 4 + 1
    purgatory.check_and_complete(("own", 3))
    assert purgatory.size == 0


def test_one_that_raises_is_let_go_and_the_others_go_on():
    """An operation that fails when tried completes; the next one under the key is still tried."""
    _clock, purgatory = made()

    class Broken(Condition):
        def is_complete(self, changed=None) -> bool:
            if self.ready:
                raise RuntimeError("broken")
            return False

    broken, sound = Broken(), Condition()
    results = [
        fired(purgatory.try_complete_else_watch(condition, ["a"], 100))
        for condition in (broken, sound)
    ]
    broken.ready = sound.ready = True
    assert purgatory.check_and_complete("a") == 2
    assert results == [[None], [None]]


def test_complete_all_expires_everything():
    """Shutdown: whoever waits gets its time-out answer now."""
    _clock, purgatory = made()
    condition = Condition()
    results = fired(purgatory.try_complete_else_watch(condition, ["a", "b"], 100))
    purgatory.complete_all()
    assert (results, condition.expirations, purgatory.waiting) == ([None], 1, 0)


@pytest.mark.parametrize("end", ["condition", "time", "given up", "at once"])
def test_nothing_is_left_for_the_garbage_collector(end):
    """RL 4.2: what waited is freed when it is done, however it ended: a busy consumer waits
    thousands of times a second.
    """
    clock, purgatory = made(purge_interval=0)
    gc.collect()
    gc.disable()
    before = sum(isinstance(found, DelayedOperation) for found in gc.get_objects())
    try:
        condition = Condition()
        condition.ready = end == "at once"
        deferred = purgatory.try_complete_else_watch(condition, ["a"], 100)
        if end == "condition":
            condition.ready = True
            purgatory.check_and_complete("a")
        elif end == "time":
            clock.advance(1)
        elif end == "given up":
            deferred.addErrback(lambda _: None)
            deferred.cancel()
        del condition, deferred
        assert sum(isinstance(found, DelayedOperation) for found in gc.get_objects()) == before
    finally:
        gc.enable()


def test_memory_of_a_hundred_thousand():
    """RL 4.2: what the purgatory itself keeps for 100,000 waiting operations is far under 200 MB
    (here: per 10,000, under 20 MB).
    """
    _clock, purgatory = made()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        kept = [
            purgatory.try_complete_else_watch(Condition(), [("t", number % 50)], 30_000)
            for number in range(10_000)
        ]
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(kept) == purgatory.waiting == 10_000
    assert used < 20_000_000 * 0.5
