"""Why members of a group wait."""

from dataclasses import replace
from typing import Any

import pytest

from tests.coordinator.broker_run import BrokerRun, subscription
from tests.coordinator.consumer.consumer_run import ConsumerRun
from tests.coordinator.consumer.topics import TA, image, topic
from tests.coordinator.streams.streams_run import StreamsRun
from twisted_broker.coordinator import group_explanation
from twisted_broker.coordinator.group_explanation import MOST_NAMED, explain_group
from twisted_broker.wire.schema import run_whole

IMAGE = image(topic("ta", TA, [[None]] * 4))


def tas(*numbers: int) -> frozenset[tuple[bytes, int]]:
    return frozenset((TA, number) for number in numbers)


def consumers(**settings: Any) -> Any:
    return ConsumerRun(IMAGE, **({"assignment_interval_ms": 0} | settings))


def explained(group: Any) -> dict[str, Any]:
    told: dict[str, Any] = run_whole(explain_group(group, IMAGE))
    return told


def members(group: Any) -> dict[str, dict[str, Any]]:
    return {each["member"]: each for each in explained(group)["members"]}


def test_a_member_waits_for_partitions_that_another_still_has() -> None:
    run = consumers()
    run.join("a")
    run.join("b")
    told = explained(run.group)
    assert (told["kind"], told["state"], told["epoch"], told["why"]) == (
        "consumer",
        "Reconciling",
        3,
        [],
    )
    found = members(run.group)
    (given,) = [run.group.target("b")]
    names = ", ".join(f"ta-{number}" for _, number in sorted(given))
    assert found["b"]["why"] == [f"it waits for {names}, which member a still has"]
    assert found["b"]["waits_for"] == [
        {"topic": "ta", "partition": number, "owner": "a"} for _, number in sorted(given)
    ]
    assert found["a"]["why"] == ["it learns its target of epoch 3 by its next heartbeat"]
    assert found["a"]["assigned"] == {"ta": [0, 1, 2, 3]}
    run.send("a", 2)
    found = members(run.group)
    assert found["a"]["why"] == [f"it was told to give up {names}, and has not said that it did"]
    assert found["a"]["to_give_up"] == {"ta": [number for _, number in sorted(given)]}
    assert found["b"]["why"] == [f"it waits for {names}, which member a was told to give up"]
    run.send("a", 2, owned=run.group.members["a"].assigned.keys())
    run.send("b", 3)
    assert [each["why"] for each in explained(run.group)["members"]] == [[], []]


def test_a_target_that_is_not_computed_and_a_pattern_that_is_not_resolved() -> None:
    run = consumers(assignment_interval_ms=1_000)
    run.join("a")
    run.join("b", names=("ta",), pattern="t.")
    why = explained(run.group)["why"]
    assert why == [
        "its target is of epoch 2; the next heartbeat after "
        "group.consumer.assignment.interval.ms computes one",
        "not resolved yet: the patterns t.",
    ]


@pytest.mark.parametrize("step", ["MEMBERS_PER_STEP", "PARTITIONS_PER_STEP"])
def test_a_member_leaves_between_two_steps(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_explanation, step, 1)
    run: Any = StreamsRun() if step == "MEMBERS_PER_STEP" else consumers()
    run.join("a")
    run.join("b")
    steps = explain_group(run.group, IMAGE)
    next(steps)
    del run.group.members["a"]
    assert [each["member"] for each in run_whole(steps)["members"]] == ["a", "b"]


def test_a_static_member_that_is_away() -> None:
    run = consumers()
    run.join("a", instance_id="i")
    run.send("a", -2, instance_id="i")
    assert members(run.group)["a"]["why"] == [
        "it is away: its partitions are kept for its instance id until its session ends"
    ]


def test_a_classic_group_waits_for_members_and_for_its_leader() -> None:
    run = BrokerRun()
    first = run.join(client="one")
    run.settle()
    second = run.join(client="two")
    run.settle()
    group = next(
        shard.groups["g"].group
        for shard in run.coordinator.runtime.shards.values()
        if "g" in shard.groups
    )
    one, two = group.members
    assert explained(group)["why"] == [f"its rebalance waits for {one} to join"]
    assert [each["why"] for each in explained(group)["members"]] == [
        ["it has not joined"],
        ["it has joined"],
    ]
    run.join(member=one)
    run.settle()
    assert second.called and first.called
    assert explained(group)["why"] == [f"it waits for the assignment of its leader, {one}"]
    assert members(group)[two]["why"] == ["it has not sent its SyncGroup"]


def test_a_first_rebalance_waits_for_more() -> None:
    run = BrokerRun(initial_rebalance_delay_ms=3_000)
    run.join(protocols={"range": subscription("t")})
    (group,) = (
        shard.groups["g"].group
        for shard in run.coordinator.runtime.shards.values()
        if "g" in shard.groups
    )
    assert explained(group)["why"] == [
        "its first rebalance waits for more members (group.initial.rebalance.delay.ms)"
    ]


def test_many_partitions_are_counted_in_a_reason_and_given_whole() -> None:
    many = image(topic("ta", TA, [[None]] * 40))
    run = ConsumerRun(many, assignment_interval_ms=0)
    run.join("a")
    run.join("b")
    told = run_whole(explain_group(run.group, many))
    (waits,) = [each for each in told["members"] if each["member"] == "b"]
    assert len(waits["waits_for"]) == 20
    assert f"and {20 - MOST_NAMED} more" in waits["why"][0]


def streams() -> tuple[StreamsRun, dict[str, dict[str, Any]]]:
    """`a` has all four tasks of an application; `b`, another process, has joined."""
    run = StreamsRun()
    run.join("a")
    run.join("b")
    return run, members(run.group)


def test_a_streams_member_waits_for_tasks_that_another_still_has() -> None:
    run, found = streams()
    wanted = sorted(run.group.target("b").active)
    tasks = [f"{name}_{number}" for name, number in wanted]
    assert tasks == ["0_2", "0_3"]
    assert found["b"]["why"] == ["it waits for active 0_2, active 0_3, which member a still has"]
    assert found["b"]["waits_for"] == [
        {"task": task, "role": "active", "owner": "a"} for task in tasks
    ]
    assert found["a"]["why"] == ["it learns its target of epoch 3 by its next heartbeat"]
    assert found["a"]["tasks"] == {"active": ["0_0", "0_1", "0_2", "0_3"]}
    run.send("a", 2)
    found = members(run.group)
    assert found["a"]["why"] == ["it was told to give up 0_2, 0_3, and has not said that it did"]
    assert found["a"]["tasks_to_give_up"] == {"active": tasks}
    assert found["b"]["why"] == [
        "it waits for active 0_2, active 0_3, which member a was told to give up"
    ]
    run.send("a", 2, owned=frozenset(run.group.members["a"].assigned.active))
    run.send("b", 3)
    told = explained(run.group)
    assert (told["why"], [each["why"] for each in told["members"]]) == ([], [[], []])


def test_a_streams_group_whose_target_is_not_computed_or_whose_topology_is_newer() -> None:
    run = StreamsRun(assignment_interval_ms=1_000)
    run.join("a")
    run.join("b")
    assert explained(run.group)["why"] == [
        "its target is of epoch 2; a heartbeat after group.streams.initial.rebalance.delay.ms and "
        "group.streams.assignment.interval.ms computes one"
    ]
    run.group.members["a"] = replace(run.group.members["a"], topology_epoch=7)
    assert members(run.group)["a"]["why"][0] == (
        "its topology is of epoch 7, the group's of 0: it gets no tasks"
    )
