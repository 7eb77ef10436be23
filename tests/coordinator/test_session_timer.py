"""A consumer is not thrown out of its group for what its broker did not hear while the broker
itself stood still.
"""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.task import Clock

from tests.coordinator.broker_run import BrokerRun
from twisted_broker.coordinator.session_timer import SessionTimer
from twisted_broker.wire.errors import ErrorCode as E

SESSION_S = 10.0


def beats_after(run: BrokerRun, member: str, seconds: float) -> list[E]:
    """A heartbeat that this process reads `seconds` from now, or late: in the first turn after a
    stall, and behind the timers that came due in it.
    """
    answers: list[E] = []
    run.clock.callLater(
        seconds, lambda: answers.append(run.coordinator.heartbeat("g", member, None, 1))
    )
    return answers


def test_a_heartbeat_that_lay_in_the_socket_keeps_the_member() -> None:
    """The session ran out during a stall, and its timer is run before the sockets are read: the
    heartbeat counts, and begins a new session.
    """
    run = BrokerRun()
    member = run.stable()
    answers = beats_after(run, member, SESSION_S)
    run.clock.advance(SESSION_S + 0.5)
    assert answers == [E.NONE]
    run.pass_ms(9_900)
    assert run.coordinator.heartbeat("g", member, None, 1) is E.NONE
    run.pass_ms(10_100)
    assert run.coordinator.heartbeat("g", member, None, 1) is E.UNKNOWN_MEMBER_ID


def test_after_a_long_stall_there_is_time_to_come_back() -> None:
    """Its client gave the connection up during the stall, and needs some turns to be heard
    again.
    """
    run = BrokerRun()
    member = run.stable()
    run.clock.advance(60)
    run.pass_ms(1_900)
    assert run.coordinator.heartbeat("g", member, None, 1) is E.NONE
    run.pass_ms(9_900)
    assert run.coordinator.heartbeat("g", member, None, 1) is E.NONE


@pytest.mark.parametrize("step", [2.0, 60.0])
def test_who_says_nothing_after_the_stall_is_gone_soon(step: float) -> None:
    """The stall is forgiven once: a dead member, or a client that joined anew, does not hold the
    group up, however long each turn takes.
    """
    run = BrokerRun()
    member = run.stable()
    run.clock.advance(60)
    run.clock.advance(step)
    assert run.coordinator.heartbeat("g", member, None, 1) is E.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(("late", "when"), [(0.0, 5.0), (0.9, 5.9), (1.0, 8.0)])
def test_when_it_fires(late: float, when: float) -> None:
    """In time: at once, but for one turn; a second late or more: two seconds later."""
    clock = Clock()
    fired: list[Any] = []
    timer = SessionTimer(clock, 5.0, lambda name: fired.append((name, clock.seconds())), "over")
    clock.advance(5.0 + late)
    clock.advance(when - clock.seconds())
    assert fired == [("over", when)] and not timer.active()


def test_cancelled_and_set_anew() -> None:
    """At each of its stages it can be cancelled, or begin all over."""
    clock = Clock()
    fired: list[int] = []
    timer = SessionTimer(clock, 5.0, fired.append, 1)
    clock.callLater(5.0, timer.reset, 5.0)  # in the turn in which it lets others be read
    clock.advance(5.0)
    clock.advance(7.0)  # two seconds late: more time is granted
    assert fired == [] and timer.active()
    timer.reset(3.0)
    clock.advance(2.9)
    assert fired == []
    timer.cancel()
    clock.advance(60.0)
    assert fired == [] and not clock.getDelayedCalls()
