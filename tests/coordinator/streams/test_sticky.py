"""Kafka's cases of the assignor `sticky` (GN 4.40, 4.41, 6.7: StickyTaskAssignorTest)."""

from collections import Counter
from random import Random

import pytest

from tests.coordinator.streams.streams_run import tasks
from twisted_broker.coordinator.streams.configure import ConfiguredSubtopology, InternalTopic
from twisted_broker.coordinator.streams.sticky import AssignorMember, assign_tasks
from twisted_broker.coordinator.streams.tasks import Tasks
from twisted_broker.wire.schema import run_whole

STATE = (InternalTopic("log", 1, 1),)


def subtopologies(stateful=False, **counts):
    """`s0=4`: four tasks of subtopology 0."""
    return {
        name[1:]: ConfiguredSubtopology(count, (), (), STATE if stateful else ())
        for name, count in counts.items()
    }


def members(*specs, **targets):
    """Names as `process-thread`; targets by name with `_`."""
    return [
        AssignorMember(name, name.split("-")[0], targets.get(name.replace("-", "_"), Tasks()))
        for name in specs
    ]


def assign(specs, topology, standby_replicas=0):
    found = run_whole(assign_tasks(specs, topology, standby_replicas))
    check(found, specs, topology, standby_replicas)
    return found


def check(found, specs, topology, standby_replicas):
    """GN 6.29: every task is active once, and no process has it twice."""
    every = sorted((id, number) for id, each in topology.items() for number in range(each.tasks))
    assert not specs or sorted(task for each in found.values() for task in each.active) == every
    process_of = {each.member_id: each.process_id for each in specs}
    held = Counter(
        (process_of[name], task)
        for name, each in found.items()
        for task in (*each.active, *each.standby)
    )
    assert set(held.values()) <= {1}
    copies = Counter(task for each in found.values() for task in each.standby)
    possible = min(standby_replicas, len(set(process_of.values())) - 1)
    stateful = [task for task in every if topology[task[0]].is_stateful]
    assert copies == Counter(dict.fromkeys(stateful if possible else (), possible))
    assert not any(each.warmup for each in found.values())


def counts(found):
    return sorted(len(each.active) for each in found.values())


def test_nobody_and_nothing():
    assert assign([], subtopologies(s0=3)) == {}
    assert assign(members("a-1"), {}) == {"a-1": Tasks()}


def test_tasks_of_one_partition_go_to_different_members_as_ranges():
    """Each subtopology goes round the members: so the same partitions come together."""
    found = assign(members("a-1", "b-1"), subtopologies(s0=2, s1=2))
    assert [each.active for each in found.values()] == [
        tasks(s0=[0], s1=[0]),
        tasks(s0=[1], s1=[1]),
    ]


def test_every_member_gets_some_while_there_are_enough():
    found = assign(members("a-1", "a-2", "b-1"), subtopologies(s0=3))
    assert counts(found) == [1, 1, 1]
    assert counts(assign(members("a-1", "b-1", "c-1"), subtopologies(s0=2))) == [0, 1, 1]


def test_the_process_with_more_members_gets_more():
    found = assign(members("a-1", "a-2", "b-1"), subtopologies(s0=9))
    assert counts(found) == [3, 3, 3]


def test_tasks_stay_when_a_member_joins():
    before = {"a_1": Tasks(tasks(s0=[0, 1, 2, 3]))}
    found = assign(members("a-1", "b-1", **before), subtopologies(s0=4))
    assert found["a-1"].active == tasks(s0=[0, 1])
    assert found["b-1"].active == tasks(s0=[2, 3])


def test_tasks_stay_when_a_member_leaves():
    before = {"a_1": Tasks(tasks(s0=[1, 2])), "b_1": Tasks(tasks(s0=[5]))}
    found = assign(members("a-1", "b-1", **before), subtopologies(s0=6))
    assert tasks(s0=[1, 2]) < found["a-1"].active and tasks(s0=[5]) < found["b-1"].active
    assert counts(found) == [3, 3]


def test_nothing_moves_where_nothing_changed():
    specs = members("a-1", "a-2", "b-1", "c-1")
    topology = subtopologies(stateful=True, s0=7, s1=5)
    first = assign(specs, topology, 1)
    again = [AssignorMember(e.member_id, e.process_id, first[e.member_id]) for e in specs]
    assert assign(again, topology, 1) == first


def test_a_member_with_too_much_gives_some_away():
    before = {"a_1": Tasks(tasks(s0=range(9))), "b_1": Tasks(tasks(s0=[9]))}
    found = assign(members("a-1", "b-1", **before), subtopologies(s0=10))
    assert counts(found) == [5, 5]
    assert tasks(s0=[9]) < found["b-1"].active


def test_an_active_task_goes_to_the_member_that_had_it_as_standby():
    before = {
        "b_1": Tasks(tasks(s0=[2, 3]), tasks(s0=[0])),
        "c_1": Tasks(tasks(s0=[4, 5]), tasks(s0=[1])),
    }
    found = assign(members("b-1", "c-1", **before), subtopologies(stateful=True, s0=6), 1)
    assert tasks(s0=[0, 2, 3]) == found["b-1"].active
    assert tasks(s0=[1, 4, 5]) == found["c-1"].active


def test_of_two_standbys_the_least_loaded_becomes_active():
    before = {
        "a_1": Tasks(tasks(s0=[1, 2]), tasks(s0=[0])),
        "b_1": Tasks(tasks(s0=[3]), tasks(s0=[0])),
    }
    found = assign(members("a-1", "b-1", **before), subtopologies(stateful=True, s0=4), 1)
    assert tasks(s0=[0]) < found["b-1"].active


def test_standbys_are_only_of_tasks_with_a_state():
    topology = subtopologies(s0=2) | subtopologies(stateful=True, s1=2)
    found = assign(members("a-1", "b-1"), topology, 1)
    assert {task for each in found.values() for task in each.standby} == tasks(s1=[0, 1])


def test_standbys_stay_where_they_were():
    before = {
        "a_1": Tasks(tasks(s0=[0]), tasks(s0=[1])),
        "b_1": Tasks(tasks(s0=[1]), tasks(s0=[2])),
        "c_1": Tasks(tasks(s0=[2]), tasks(s0=[0])),
    }
    found = assign(members("a-1", "b-1", "c-1", **before), subtopologies(stateful=True, s0=3), 1)
    assert found == {name.replace("_", "-"): each for name, each in before.items()}


@pytest.mark.parametrize(("processes", "replicas"), [(1, 1), (2, 2), (3, 1), (3, 2), (5, 3)])
def test_too_few_processes_have_fewer_standbys(processes, replicas):
    """`check` counts them."""
    names = [f"{letter}-1" for letter in "abcde"[:processes]]
    assign(members(*names), subtopologies(stateful=True, s0=4, s1=3), replicas)


def test_what_was_before_need_not_be_any_more():
    """Tasks and subtopologies that are gone count for nothing."""
    before = {"a_1": Tasks(tasks(s0=[7], s9=[0]), tasks(s9=[1]))}
    found = assign(members("a-1", "b-1", **before), subtopologies(s0=2))
    assert counts(found) == [1, 1]


@pytest.mark.parametrize("seed", range(5))
def test_a_large_group_stays_even_and_valid_while_members_come_and_go(seed):
    chance = Random(seed)
    topology = subtopologies(stateful=True, s0=40, s1=25) | subtopologies(s2=30)
    names = [f"{chance.choice('abcdef')}-{number}" for number in range(20)]
    now: dict[str, Tasks] = {}
    for _ in range(6):
        present = sorted(chance.sample(names, chance.randint(3, 20)))
        if len({name[0] for name in present}) < 3:
            continue
        specs = [AssignorMember(name, name[0], now.get(name, Tasks())) for name in present]
        now = run_whole(assign_tasks(specs, topology, 1))
        check(now, specs, topology, 1)
        assert counts(now)[-1] <= -(-95 // len(present)) + 1, "somebody has too many"
