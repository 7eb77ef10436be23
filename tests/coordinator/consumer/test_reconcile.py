"""One step of a member towards its target: each transition by itself (GN 6.5)."""

import pytest

from twisted_broker.coordinator.consumer.member import (
    STABLE,
    UNRELEASED,
    UNREVOKED,
    ConsumerGroupMember,
    MemberState,
)
from twisted_broker.coordinator.consumer.reconcile import reconcile
from twisted_broker.wire.errors import BrokerError, ErrorCode

A, B = b"a" * 16, b"b" * 16


def parts(text):
    """`a1 a2 b3`: partitions."""
    return {(each[0].encode() * 16, int(each[1:])) for each in text.split()}


def epochs(text):
    """`a1@2 b3@4`: partitions with the epochs at which they were got."""
    pairs = [each.split("@") for each in text.split()]
    return {next(iter(parts(name))): int(epoch) for name, epoch in pairs}


def step(member, to, target, owned=None, taken="", subscribed="ab", changed=False):
    """`taken`: what somebody else has."""
    own = {*member.assigned, *member.pending}
    return reconcile(
        member,
        to,
        parts(target),
        None if owned is None else parts(owned),
        lambda each: each in own or each in parts(taken),
        lambda topic_id: topic_id not in {each.encode() * 16 for each in subscribed},
        changed,
    )


def member(state, epoch, assigned="", pending="", previous=9):
    return ConsumerGroupMember(
        "m",
        epoch=epoch,
        previous_epoch=previous,
        state=state,
        assigned=epochs(assigned),
        pending=epochs(pending),
    )


CASES = {
    # member, arguments of the step, the member after it; GN line of each
    "2.30 stable at the target": (
        member(STABLE, 10, "a1@10"), dict(to=10, target="a1"), member(STABLE, 10, "a1@10")),
    "2.32 stable to stable, nothing new": (
        member(STABLE, 10, "a1@9"), dict(to=11, target="a1"),
        member(STABLE, 11, "a1@9", previous=10)),
    "2.32 new partitions come with the epoch": (
        member(STABLE, 10, "a1@9"), dict(to=11, target="a1 a2 b1"),
        member(STABLE, 11, "a1@9 a2@11 b1@11", previous=10)),
    "2.32 told to revoke, the epoch stays and the previous is the same": (
        member(STABLE, 10, "a1@9 a2@10"), dict(to=11, target="a1"),
        member(UNREVOKED, 10, "a1@9", "a2@10", previous=10)),
    "2.34 what is new comes after what must go": (
        member(STABLE, 10, "a1@9 a2@10"), dict(to=11, target="a1 a3"),
        member(UNREVOKED, 10, "a1@9", "a2@10", previous=10)),
    "2.32 given up before it was told": (
        member(STABLE, 10, "a1@9 a2@10"), dict(to=11, target="a1 a3", owned="a1"),
        member(STABLE, 11, "a1@9 a3@11", previous=10)),
    "2.32 waits for others, without what they have": (
        member(STABLE, 10, "a1@9"), dict(to=11, target="a1 a2", taken="a2"),
        member(UNRELEASED, 11, "a1@9", previous=10)),
    "2.32 gets what is free, waits for the rest": (
        member(STABLE, 10, "a1@9"), dict(to=11, target="a1 a2 a3", taken="a2"),
        member(UNRELEASED, 11, "a1@9 a3@11", previous=10)),
    "2.31 unrevoked, owned not said": (
        member(UNREVOKED, 10, "a1@9", "a2@9"), dict(to=11, target="a1"),
        member(UNREVOKED, 10, "a1@9", "a2@9")),
    "2.31 unrevoked, still owned": (
        member(UNREVOKED, 10, "a1@9", "a2@9 a3@9"), dict(to=11, target="a1", owned="a1 a3"),
        member(UNREVOKED, 10, "a1@9", "a2@9 a3@9")),
    "2.31 unrevoked, given up": (
        member(UNREVOKED, 10, "a1@9", "a2@9"), dict(to=11, target="a1 a3", owned="a1"),
        member(STABLE, 11, "a1@9 a3@11", previous=10)),
    "2.31 unrevoked, given up, and more to give up": (
        member(UNREVOKED, 10, "a1@9 a4@9", "a2@9"), dict(to=12, target="a1", owned="a1 a4"),
        member(UNREVOKED, 10, "a1@9", "a4@9", previous=10)),
    "2.34 pending comes back without being free": (
        member(UNREVOKED, 10, "a1@9", "a2@9"), dict(to=12, target="a1 a2", owned="a1"),
        member(STABLE, 12, "a1@9 a2@12", previous=10)),
    "2.31 unreleased, others still have it": (
        member(UNRELEASED, 11, "a1@9"), dict(to=11, target="a1 a2", taken="a2"),
        member(UNRELEASED, 11, "a1@9", previous=11)),
    "2.31 unreleased, released": (
        member(UNRELEASED, 11, "a1@9"), dict(to=11, target="a1 a2"),
        member(STABLE, 11, "a1@9 a2@11", previous=11)),
    "2.31 unreleased, a newer target takes away": (
        member(UNRELEASED, 11, "a1@9 a2@9"), dict(to=12, target="a1 a3", taken="a3"),
        member(UNREVOKED, 11, "a1@9", "a2@9", previous=11)),
    "2.31 unreleased, the target no longer has what it waited for": (
        member(UNRELEASED, 11, "a1@9"), dict(to=12, target="a1"),
        member(STABLE, 12, "a1@9", previous=11)),
    "2.31 unknown, all given up": (
        member(MemberState.UNKNOWN, 11, "a1@9"), dict(to=12, target="a2", owned=""),
        member(STABLE, 12, "a2@12", previous=11)),
    "2.33 a topic not subscribed to any more, at the target": (
        member(STABLE, 10, "a1@9 b1@9"), dict(to=10, target="a1 b1", subscribed="a", changed=True),
        member(UNREVOKED, 10, "a1@9", "b1@9", previous=10)),
    "2.33 the same, given up already": (
        member(STABLE, 10, "a1@9 b1@9"),
        dict(to=10, target="a1 b1", subscribed="a", changed=True, owned="a1"),
        member(STABLE, 10, "a1@9", previous=10)),
    "2.33 the subscription changed, and not what it has": (
        member(STABLE, 10, "a1@9"), dict(to=10, target="a1", changed=True),
        member(STABLE, 10, "a1@9")),
    "2.31 unrevoked, and another topic must go": (
        member(UNREVOKED, 10, "a1@9 b1@9", "a2@9"),
        dict(to=11, target="a1 b1", subscribed="a", changed=True, owned="a1 a2 b1"),
        member(UNREVOKED, 10, "a1@9", "a2@9 b1@9", previous=10)),
    "2.30 the target counts without topics not subscribed to": (
        member(STABLE, 10, "a1@9"), dict(to=11, target="a1 b1", subscribed="a"),
        member(STABLE, 11, "a1@9", previous=10)),
    "2.30 no subscription at all": (
        member(STABLE, 10, "a1@9"), dict(to=11, target="a1", subscribed=""),
        member(UNREVOKED, 10, "", "a1@9", previous=10)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_step(name):
    before, arguments, after = CASES[name]
    assert step(before, **arguments) == after


@pytest.mark.parametrize("owned", [None, "a1"])
def test_a_member_of_an_unknown_state_must_give_up_everything(owned):
    """GN 2.31."""
    with pytest.raises(BrokerError) as refusal:
        step(member(MemberState.UNKNOWN, 11, "a1@9"), to=12, target="a1", owned=owned)
    assert refusal.value.code is ErrorCode.FENCED_MEMBER_EPOCH
