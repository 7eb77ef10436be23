"""What runs by the clock, when, and Kafka's defaults of the replica layer (RL 1.1, 4.1)."""

from __future__ import annotations

import pytest
from twisted.internet.task import Clock
from twisted.logger import capturedLogs

from tests.replication.fixtures import LOCAL, Fixture, at, follower, registration
from twisted_broker.broker_config import BrokerConfig
from twisted_broker.interfaces import TopicPartition
from twisted_broker.periodic import PeriodicTasks
from twisted_broker.replication import replica_manager
from twisted_broker.replication.replica_manager import ReplicaManager


def test_each_task_runs_at_its_interval_from_the_first_role_change_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RL 1.1: `isr-expiration` every half of `replica.lag.time.max.ms`,
    `highwatermark-checkpoint` at its interval; before roles nothing runs.
    """
    began = 0.0
    ran: dict[str, list[float]] = {"shrink_isrs": [], "checkpoint_high_watermarks": []}
    for name, moments in ran.items():
        monkeypatch.setattr(
            ReplicaManager,
            name,
            lambda self, moments=moments: moments.append(self.runtime.clock.seconds() - began),
        )
    fixture = Fixture(
        replica_lag_time_max_ms="8000", replica_high_watermark_checkpoint_interval_ms="3000"
    )
    began = fixture.clock.seconds()
    fixture.advance(20)
    assert (
        ran == {"shrink_isrs": [], "checkpoint_high_watermarks": []}
        and fixture.clock.getDelayedCalls() == []
    )
    began = fixture.clock.seconds()
    fixture.topic()
    fixture.topic(states={0: registration(LOCAL, (1, 2), (1,), 1, 1)})
    fixture.advance(12.5)
    assert ran == {"shrink_isrs": [4, 8, 12], "checkpoint_high_watermarks": [3, 6, 9, 12]}
    fixture.replicas.shutdown()
    fixture.advance(20)
    assert len(ran["shrink_isrs"]) == 3 and fixture.clock.getDelayedCalls() == []


def test_after_a_stall_a_leader_listens_before_it_drops_anybody() -> None:
    """RL 1.1, 2.4: it stood still for longer than `replica.lag.time.max.ms`; its check is due
    before the follower's fetch is read.
    """
    fixture = Fixture(replica_lag_time_max_ms="8000")
    fixture.topic(states={0: registration(LOCAL, (1, 2), (1, 2))})
    fixture.advance(1)
    fixture.produce()
    fixture.clock.callLater(60.0, lambda: fixture.replicas.fetch(follower(2), [at(1)]))
    fixture.clock.advance(60)
    fixture.advance(11)
    assert fixture.controller.asked == []
    fixture.produce()
    fixture.advance(14)  # two rounds, and the time that a follower may be behind
    assert [proposal.members for proposal, _ in fixture.controller.asked] == [((LOCAL, 101),)]


@pytest.mark.parametrize(
    ("late", "runs"), [(0.0, [2.0, 4.0, 6.0]), (0.9, [2.0, 4.9, 6.0]), (1.1, [2.0, 7.1])]
)
def test_a_run_that_comes_late_is_left_out(late: float, runs: list[float]) -> None:
    """By more than half its interval; then it is a whole interval to the next."""
    clock, ran = Clock(), []
    tasks = PeriodicTasks(clock)
    tasks.every(2.0, lambda: ran.append(clock.seconds()), "a task", skip_late=True)
    clock.advance(2.0)
    clock.advance(2.0 + late)
    while clock.seconds() < 7.1:
        clock.advance(min(each.getTime() for each in clock.getDelayedCalls()) - clock.seconds())
    tasks.stop()
    assert [at for at in ran if at < 7.2] == pytest.approx(runs)


def test_a_task_that_fails_runs_again() -> None:
    """It is logged; a bare LoopingCall would be over."""
    clock, ran = Clock(), []

    def task() -> None:
        ran.append(clock.seconds())
        raise OSError("no")

    tasks = PeriodicTasks(clock)
    tasks.every(2.0, task, "a task")
    with capturedLogs() as told:
        clock.pump([2.0, 2.0])
    tasks.stop()
    assert ran == [2.0, 4.0] and len(told) == 2 and not clock.getDelayedCalls()


@pytest.mark.parametrize(
    ("setting", "default"),
    [
        ("replica.lag.time.max.ms", 30_000),
        ("replica.high.watermark.checkpoint.interval.ms", 5_000),
        ("producer.purgatory.purge.interval.requests", 1_000),
        ("fetch.purgatory.purge.interval.requests", 1_000),
        ("delete.records.purgatory.purge.interval.requests", 1),
        ("fetch.max.bytes", 55 << 20),
        ("max.incremental.fetch.session.cache.slots", 1_000),
        ("num.replica.fetchers", 1),
        ("replica.fetch.backoff.ms", 1_000),
        ("log.segment.delete.delay.ms", 60_000),
        ("min.insync.replicas", 1),
        ("leader.imbalance.check.interval.seconds", 300),
        ("leader.imbalance.per.broker.percentage", 10),
        ("broker.heartbeat.interval.ms", 2_000),
        ("broker.session.timeout.ms", 9_000),
    ],
)
def test_defaults_are_kafkas(setting: str, default: int) -> None:
    """RL 1.1, 1.8, 4.1, 5.2, 6.1, 6.2, 8.2, 8.3: under Kafka's own names."""
    assert BrokerConfig({"node.id": "1"}).integer(setting) == default


def test_the_purgatories_take_their_settings() -> None:
    """RL 1.1, 4.1: Produce, Fetch and DeleteRecords, each with its own purge interval; sessions
    have as many slots as are set.
    """
    settings = {"producer": "7", "fetch": "8", "delete_records": "9"}
    fixture = Fixture(
        max_incremental_fetch_session_cache_slots="5",
        **{f"{name}_purgatory_purge_interval_requests": value for name, value in settings.items()},
    )
    replicas = fixture.replicas
    found = [
        replicas.produce_purgatory,
        replicas.fetch_purgatory,
        replicas.delete_records_purgatory,
    ]
    assert [(each.name, each._purge_interval) for each in found] == [
        ("Produce", 7),
        ("Fetch", 8),
        ("DeleteRecords", 9),
    ]
    assert replicas.sessions.slots == 5


def test_thousands_of_isrs_shrink_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower that fell behind in 3,333 partitions stopped everybody else for 0.14 s. One whose
    partition is gone by then is not proposed; the next look waits for the end of this one.
    """
    monkeypatch.setattr(replica_manager, "PROPOSED_PER_TURN", 2)
    fixture = Fixture()
    states = {number: registration(1, (1, 2)) for number in range(7)}
    fixture.topic(states=states)
    for number in states:
        fixture.produce(tp=TopicPartition("t", number))
    fixture.clock.rightNow += 31
    fixture.replicas.shrink_isrs()
    asked = fixture.controller.asked
    assert len(asked) == 2
    fixture.replicas.shrink_isrs()
    assert len(asked) == 2
    seen: list[int] = []
    fixture.clock.callLater(0, lambda: seen.append(len(asked)))
    fixture.topic(states={number: states[number] for number in range(6)})
    fixture.clock.advance(0)
    assert seen == [4], "others are served between two turns"
    assert [proposal.topic_partition.partition for proposal, _ in asked] == list(range(6))


def test_a_stall_between_two_turns_takes_nobody_out_of_an_isr(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process was stopped: no follower could be heard, whose fetches lie in the sockets."""
    monkeypatch.setattr(replica_manager, "PROPOSED_PER_TURN", 1)
    fixture = Fixture()
    states = {number: registration(1, (1, 2)) for number in range(3)}
    fixture.topic(states=states)
    for number in states:
        fixture.produce(tp=TopicPartition("t", number))
    fixture.clock.rightNow += 31
    fixture.replicas.fetch(follower(2), [at(0, tp=TopicPartition("t", 2))])
    fixture.replicas.fetch(follower(2), [at(1, tp=TopicPartition("t", 2))])
    fixture.produce(tp=TopicPartition("t", 2))
    fixture.replicas.shrink_isrs()
    fixture.clock.rightNow += 60
    fixture.clock.advance(0)
    asked = [each.topic_partition.partition for each, _ in fixture.controller.asked]
    assert asked == [0, 1]


def test_a_stop_ends_the_shrinking_of_thousands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_manager, "PROPOSED_PER_TURN", 1)
    fixture = Fixture()
    fixture.topic(states={number: registration(1, (1, 2)) for number in range(3)})
    for number in range(3):
        fixture.produce(tp=TopicPartition("t", number))
    fixture.clock.rightNow += 31
    fixture.replicas.shrink_isrs()
    fixture.replicas.shutdown()
    fixture.clock.advance(0)
    assert len(fixture.controller.asked) == 1 and fixture.clock.getDelayedCalls() == []
