"""The timers of a shard's groups."""

from twisted.internet.task import Clock

from twisted_broker.coordinator.classic_group import ClassicGroup
from twisted_broker.coordinator.coordinator_timer import CoordinatorTimer
from twisted_broker.coordinator.effects import CancelTimer, ScheduleTimer, TimerKind

SESSION, JOIN = TimerKind.SESSION, TimerKind.JOIN


def timers() -> tuple[Clock, CoordinatorTimer, list]:
    clock, expired = Clock(), []
    return clock, CoordinatorTimer(clock, lambda *key: expired.append(key)), expired


def pass_seconds(clock: Clock, seconds: float) -> None:
    """In turns: a session ends one turn after it is due."""
    clock.pump([seconds, 0])


def test_each_member_has_a_session_and_each_group_a_timer_of_a_kind():
    """Set anew a timer begins all over; the others go on."""
    clock, timer, expired = timers()
    group = ClassicGroup("g", 0)
    for member in ("a", "b"):
        timer.schedule(ScheduleTimer(group, SESSION, member, 2000))
    timer.schedule(ScheduleTimer(group, JOIN, "", 3000))
    clock.pump([1, 0.5])
    timer.schedule(ScheduleTimer(group, SESSION, "a", 2000))
    pass_seconds(clock, 0.5)
    assert expired == [(group, SESSION, "b")]
    timer.cancel(CancelTimer(group, JOIN, ""))
    pass_seconds(clock, 1.5)
    assert expired[1:] == [(group, SESSION, "a")] and not clock.getDelayedCalls()


def test_a_groups_successor_has_timers_of_its_own():
    """Two groups of one id: the timers of the deleted one are not those of the new one."""
    clock, timer, expired = timers()
    old, new = ClassicGroup("g", 0), ClassicGroup("g", 0)
    timer.schedule(ScheduleTimer(old, JOIN, "", 500))
    timer.schedule(ScheduleTimer(new, JOIN, "", 500))
    timer.cancel(CancelTimer(old, JOIN, ""))
    pass_seconds(clock, 0.5)
    assert [group for group, _, _ in expired] == [new]


def test_a_closed_timer_neither_fires_nor_takes_more():
    """What is set can still be cancelled."""
    clock, timer, expired = timers()
    group = ClassicGroup("g", 0)
    timer.schedule(ScheduleTimer(group, JOIN, "", 500))
    timer.schedule(ScheduleTimer(group, SESSION, "a", 500))
    timer.close()
    timer.schedule(ScheduleTimer(group, SESSION, "b", 500))
    timer.cancel(CancelTimer(group, SESSION, "a"))
    pass_seconds(clock, 0.5)
    assert expired == [] and not clock.getDelayedCalls()
