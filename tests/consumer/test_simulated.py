"""Consumers of one group in simulated clusters: brokers are killed and cut off, leaders move,
partitions are added, a second consumer comes and goes.
"""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.task import deferLater

from twisted_broker.consumer.group_membership import CommitFailed, GroupMembership
from twisted_broker.consumer.streams import ConsumerConnector, ConsumerStream
from twisted_broker.interfaces import TopicPartition
from twisted_broker.simulation.network import NetworkConditions
from twisted_broker.simulation.options import options_of
from twisted_broker.simulation.run import Run
from twisted_broker.simulation.run_options import Options, Topic
from twisted_broker.wire.messages import topics as topic_messages

GROUP = "streams"


def options(seed: int, seconds: int) -> Options:
    """Faults of brokers and of the network; nothing that was committed is lost or deleted."""
    made = options_of(seed)
    made.topics = [Topic("t0", 2, 3, {"min.insync.replicas": "2"})]
    made.churn, made.acts, made.damages, made.log_changes = [], [], [], []
    made.members, made.unclean, made.liveness, made.seconds = 0, False, False, seconds
    made.settings = {
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        "offsets.topic.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
    }
    made.conditions = NetworkConditions(delay_max=0.02)
    made.faults = ["kill", "partition", "one way", "cut", "handover", "pause"]
    made.fault_seconds, made.pace_seconds, made.knobs = 4.0, 0.1, {}
    made.join_seconds, made.controller_only, made.codecs = 0.0, False, [0, 1, 3]
    made.transactional = []  # their markers have offsets that nobody is given
    return made


class StreamRun(Run):
    """With two consumers of one group: `read` are the records of both, in order."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.read: list[tuple[str, TopicPartition, int, bytes]] = []
        self.connectors: dict[str, ConsumerConnector] = {}

    def _start_clients(self) -> None:
        super()._start_clients()
        first = self.cluster.client_runtime("s0")
        second = self.cluster.client_runtime("s1")
        self._go(self._consume("s0", first, 1.0, None))
        self._go(
            self._consume("s1", second, self.options.seconds * 0.3, self.options.seconds * 0.6)
        )
        self._go(self._add_partition(first))

    async def _consume(self, name: str, runtime: Any, begin: float, end: float | None) -> None:
        settings = {
            "bootstrap.servers": "n1:9092,n2:9092,n3:9092",
            "group.id": GROUP,
            "auto.offset.reset": "smallest",
            "fetch.message.max.bytes": 500,
            "request.timeout.ms": 4_000,
            "metadata.max.age.ms": 5_000,
            "session.timeout.ms": 30_000,
            "heartbeat.interval.ms": 500,
            "auto.commit.interval.ms": 1_000,
        }
        await self._pause(runtime, begin)
        while True:
            connector = ConsumerConnector(settings, runtime)
            try:
                streams = await connector.create_message_streams({"t0": 1})
                break
            except Exception:  # the topic is not there yet, or no broker is
                await connector.shutdown()
                await self._pause(runtime, 1)
        self.connectors[name] = connector
        self._go(self._read(name, streams["t0"][0]))
        if end is not None:
            await self._pause(runtime, end - begin)
            await connector.shutdown()

    async def _read(self, name: str, stream: ConsumerStream) -> None:
        async for each in stream:
            self.read.append(
                (name, TopicPartition("t0", each.partition), each.offset, each.value or b"")
            )

    async def _add_partition(self, runtime: Any) -> None:
        await self._pause(runtime, self.options.seconds * 0.45)
        added = topic_messages.CreatePartitionsTopic(name="t0", count=3, assignments=None)
        request = topic_messages.CreatePartitionsRequest(topics=[added], timeout_ms=4000)
        while True:
            answer = await self.admin.send_to_any(request, 3)
            if answer is not None and answer.results[0].error_code in (0, 37):
                return
            await self._pause(runtime, 1)

    async def _pause(self, runtime: Any, seconds: float) -> None:
        await deferLater(runtime.clock, seconds, lambda: None)

    def _consumers_behind(self) -> str:
        return super()._consumers_behind() or self._streams_behind()

    def _streams_behind(self) -> str:
        read = {(name, offset) for _, name, offset, _ in self.read}
        for name, values in self.clients.values.items():
            missing = [offset for offset in values if (name, offset) not in read]
            if missing:
                return f"{name}: {len(missing)} are not read, the first {min(missing)}"
        # One that could not say that it leaves is a member until its session ends.
        owned = len(self.connectors["s0"].fetchers.partitions)
        return "" if owned == 3 else f"s0 owns {owned} partitions of 3, one was added"


@pytest.mark.parametrize(
    ("seed", "seconds"),
    [(3, 10), *(pytest.param(seed, 60, marks=pytest.mark.long) for seed in range(40, 60))],
)
def test_nothing_is_skipped_and_nothing_comes_twice(
    seed: int, seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RL 7.2-7.5: every record that was committed is handed out, in order, and once: but for a
    consumer whose commit or membership was lost, whose records come again.
    """
    losses: list[str] = []
    lose, commit = GroupMembership._lose, GroupMembership.commit

    def count_lost(self: GroupMembership) -> None:
        losses.append("lost")
        lose(self)

    async def count_failed(self: GroupMembership, positions: Any, patience_ms: int = 0) -> None:
        try:
            await commit(self, positions, patience_ms)
        except CommitFailed as error:
            losses.append(str(error))
            raise

    monkeypatch.setattr(GroupMembership, "_lose", count_lost)
    monkeypatch.setattr(GroupMembership, "commit", count_failed)
    run = StreamRun(options(seed, seconds))
    run.run()
    assert run.cluster.bugs == []
    ends: dict[TopicPartition, int] = {}
    twice = 0
    for who, name, offset, value in run.read:
        end = ends.get(name, 0)
        assert offset <= end, f"{who} skips {name} from {end} to {offset}"
        assert run.clients.values[name][offset] == value
        twice += offset < end
        ends[name] = max(end, offset + 1)
    assert twice == 0 or losses, twice
    assert {
        name: len(values) for name, values in run.clients.values.items()
    }.items() <= ends.items()
    # Of a long run an outage may fill all of the second one's time.
    assert sum(ends.values()) > 20 and (seconds > 10 or len({who for who, *_ in run.read}) == 2)
