"""The queue between the decisions on groups and what they want done."""

from twisted_broker.coordinator.classic_group import ClassicGroup, ClassicGroupMember
from twisted_broker.coordinator.effects import (
    CancelTimer,
    CompleteRequest,
    GroupEffects,
    ScheduleTimer,
    TimerKind,
)
from twisted_broker.coordinator.group_requests import JoinAnswer, SyncAnswer


def test_effects_lie_in_the_order_of_the_decisions():
    """The oldest is first."""
    effects, group = GroupEffects(), ClassicGroup("g", 0)
    effects.cancel(group, TimerKind.JOIN)
    effects.schedule(group, TimerKind.SYNC, 5)
    assert list(effects.queue) == [
        CancelTimer(group, TimerKind.JOIN, ""),
        ScheduleTimer(group, TimerKind.SYNC, "", 5),
    ]


def test_a_waiting_request_is_answered_once():
    """A second answer finds no request, and a member that waits for nothing gets none."""
    effects, group = GroupEffects(), ClassicGroup("g", 0)
    member = ClassicGroupMember("m", None, "c", "/h", 1000, 1000, {"range": b""})
    group.add(member, "consumer")
    group.set_awaiting_join(member, "join")
    member.awaiting_sync = "sync"
    for _ in range(2):
        effects.complete_join(group, member, JoinAnswer())
        effects.complete_sync(member, SyncAnswer())
    assert list(effects.queue) == [
        CompleteRequest("join", JoinAnswer()),
        CompleteRequest("sync", SyncAnswer()),
    ]
    assert group.awaiting_join_count == 0
