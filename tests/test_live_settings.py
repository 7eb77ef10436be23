"""Every setting that is marked live in the table of settings reaches what obeys it, without a
restart, when AlterConfigs changes it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.memory_broker import MemoryBroker
from twisted_broker.config import (
    BROKER_SETTINGS,
    LISTENER_SETTINGS,
    LIVE_BROKER_SETTINGS,
    PER_BROKER_SETTINGS,
    TOPIC_SETTINGS,
)
from twisted_broker.interfaces import TopicPartition
from twisted_broker.settings import Setting, Type
from twisted_broker.wire.messages.configs import (
    IncrementalAlterConfigsRequest,
)
from twisted_broker.wire.messages.configs import (
    IncrementalAlterConfigsRequestAlterableConfig as AlterableConfig,
)
from twisted_broker.wire.messages.configs import (
    IncrementalAlterConfigsRequestAlterConfigsResource as AlterConfigsResource,
)
from twisted_broker.wire.messages.topics import CreatableTopic, CreateTopicsRequest

BROKER = 4
TOPIC_ROWS = {name: row for row in TOPIC_SETTINGS.values() for name, _ in row.broker}
OTHERS: dict[str, Callable[[MemoryBroker], Any]] = {
    "cordoned.log.dirs": lambda broker: tuple(
        broker.broker.log_manager.config.cordoned_directories
    ),
    "follower.replication.throttled.rate": lambda broker: (
        broker.broker.broker_server.replica_manager.follower_quota._bound()
    ),
    "leader.replication.throttled.rate": lambda broker: (
        broker.broker.broker_server.replica_manager.leader_quota._bound()
    ),
    "group.consumer.assignment.interval.ms": lambda broker: (
        broker.broker.broker_server.groups.context.settings.consumer.defaults.assignment_interval_ms
    ),
    "group.share.assignment.interval.ms": lambda broker: (
        broker.broker.broker_server.groups.context.settings.share.defaults.assignment_interval_ms
    ),
    "group.streams.assignment.interval.ms": lambda broker: (
        broker.broker.broker_server.groups.context.settings.streams.defaults.assignment_interval_ms
    ),
    "log.cleaner.backoff.ms": lambda broker: cleaner_config(broker, "backoff.ms"),
    "log.cleaner.dedupe.buffer.size": lambda broker: cleaner_config(broker, "dedupe.buffer.size"),
    "log.cleaner.io.buffer.load.factor": lambda broker: cleaner_config(
        broker, "io.buffer.load.factor"
    ),
    "log.cleaner.io.max.bytes.per.second": lambda broker: cleaner_config(
        broker, "io.max.bytes.per.second"
    ),
    "log.cleaner.threads": lambda broker: cleaner_config(broker, "threads"),
    "max.connection.creation.rate": lambda broker: broker.broker.sockets.counts.rates.limit,
    "max.connections": lambda broker: broker.broker.sockets.counts.maximum,
    "max.connections.per.ip": lambda broker: broker.broker.sockets.counts.maximum_per_host,
    "max.connections.per.ip.overrides": lambda broker: ",".join(
        f"{address}:{count}" for address, count in broker.broker.sockets.counts.overrides.items()
    ),
    "num.replica.fetchers": lambda broker: broker.broker.broker_server.fetchers.count,
    "producer.id.expiration.ms": lambda broker: log_config(broker).producer_id_expiration_ms,
    "replica.alter.log.dirs.io.max.bytes.per.second": lambda broker: (
        broker.broker.broker_server.replica_manager.moves.throttle._rate()
    ),
    "replog.log.dir.free.warn.bytes": lambda broker: broker.broker.log_manager.free_space.limit,
    "replog.refuse.unclean.truncation": lambda broker: (
        broker.broker.broker_server.fetchers._refuses_unclean()
    ),
    # What a Produce reads.
    "transaction.partition.verification.enable": lambda broker: broker.broker.parts.config.boolean(
        "transaction.partition.verification.enable"
    ),
}


# Read at the beginning of something long, with the test that changes it in the middle.
IN_THE_MIDDLE = {
    "follower.replication.throttled.rate": (
        "replication/test_replication_quota.py",
        "test_a_rate_that_is_raised_lets_a_follower_go_on_that_waits",
    ),
    "leader.replication.throttled.rate": (
        "replication/test_replication_quota.py",
        "test_the_bound_is_read_at_each_look",
    ),
    "log.retention.bytes": (
        "log/test_log_manager.py",
        "test_retention_that_changes_during_a_walk_counts_for_what_is_left",
    ),
    "log.retention.ms": (
        "log/test_log_manager.py",
        "test_retention_that_changes_during_a_walk_counts_for_what_is_left",
    ),
    "log.segment.delete.delay.ms": (
        "log/test_log_manager.py",
        "test_a_shorter_delay_acts_on_what_waits_already",
    ),
    "log.cleanup.policy": (
        "log/cleaner/test_log_cleaner.py",
        "test_a_topic_that_is_compacted_no_more_ends_its_round",
    ),
    # Kafka waits for it, too, one window at most.
    "max.connection.creation.rate": (
        "security/quota/test_connection_rates.py",
        "test_no_wait_is_longer_than_a_window",
    ),
    "min.insync.replicas": ("replication/test_partition.py", "test_min_isr_acts_while_running"),
    "num.replica.fetchers": (
        "replication/test_fetcher_manager.py",
        "test_another_number_of_fetchers",
    ),
    "producer.id.expiration.ms": (
        "log/test_log_manager.py",
        "test_an_expiry_that_changes_during_a_walk_counts_for_what_is_left",
    ),
    "replica.alter.log.dirs.io.max.bytes.per.second": (
        "replication/test_directory_moves.py",
        "test_a_rate_that_changes_counts_for_a_future_log_that_waits",
    ),
    "replog.refuse.unclean.truncation": (
        "replication/test_following.py",
        "test_a_truncation_that_is_refused_no_more_is_done",
    ),
    **dict.fromkeys(
        (
            "log.cleaner.backoff.ms",
            "log.cleaner.dedupe.buffer.size",
            "log.cleaner.io.buffer.load.factor",
            "log.cleaner.io.max.bytes.per.second",
            "log.cleaner.threads",
        ),
        (
            "log/cleaner/test_log_cleaner.py",
            "test_a_changed_setting_ends_a_round_and_the_next_one_has_it",
        ),
    ),
}
# Read at each append, request, new connection or new segment, or at the next look of some seconds.
AT_EACH_USE = frozenset(
    {
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.type",
        "compression.zstd.level",
        "cordoned.log.dirs",
        "group.consumer.assignment.interval.ms",
        "group.share.assignment.interval.ms",
        "group.streams.assignment.interval.ms",
        "log.cleaner.delete.retention.ms",
        "log.cleaner.max.compaction.lag.ms",
        "log.cleaner.min.cleanable.ratio",
        "log.cleaner.min.compaction.lag.ms",
        "log.flush.interval.messages",
        "log.flush.interval.ms",
        "log.index.interval.bytes",
        "log.index.size.max.bytes",
        "log.message.timestamp.after.max.ms",
        "log.message.timestamp.before.max.ms",
        "log.message.timestamp.type",
        "log.preallocate",
        "log.roll.jitter.ms",
        "log.roll.ms",
        "log.segment.bytes",
        "max.connections",
        "max.connections.per.ip",
        "max.connections.per.ip.overrides",
        "message.max.bytes",
        "replog.log.dir.free.warn.bytes",
        "transaction.partition.verification.enable",
        "unclean.leader.election.enable",
    }
)


def log_config(broker: MemoryBroker) -> Any:
    return broker.broker.log_manager.logs[TopicPartition("t", 0)].config


def cleaner_config(broker: MemoryBroker, name: str) -> Any:
    """What the cleaner reads before each round."""
    return broker.broker.log_manager.cleaner._config[f"log.cleaner.{name}"]


def obeyed(broker: MemoryBroker, name: str) -> Any:
    """What is in force where the setting is obeyed: for one that topics inherit, in a log."""
    if name in OTHERS:
        return OTHERS[name](broker)
    value = getattr(log_config(broker), TOPIC_ROWS[name].name.replace(".", "_"))
    return tuple(sorted(value)) if isinstance(value, frozenset) else value


def another(row: Setting, before: Any) -> Any:
    """A value that it takes, and that is not in force."""
    if row.type is Type.BOOLEAN:
        return not before
    if row.name == "cordoned.log.dirs":
        return ("/data",)
    if row.type is Type.LIST:
        return tuple(each for each in row.choices if each not in before)
    if row.name == "max.connections.per.ip.overrides":
        return "10.0.0.1:2"
    if row.type is Type.STRING:
        return next(each for each in row.choices if each != before)
    if row.type is Type.DOUBLE:
        return before / 2
    wanted = max(int(row.low or 0), 5) + 2
    return wanted if wanted != before else wanted + 1


def alter(broker: MemoryBroker, name: str, value: Any) -> None:
    text = ",".join(value) if isinstance(value, tuple) else str(value).lower()
    if isinstance(value, str):
        text = value
    config = AlterableConfig(name=name, config_operation=0, value=text)
    resource = AlterConfigsResource(resource_type=BROKER, resource_name="", configs=[config])
    answer = broker.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1)
    assert answer.responses[0].error_code == 0, answer
    broker.pass_time(1)


@pytest.fixture(scope="module")
def broker() -> MemoryBroker:
    made = MemoryBroker().start()
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    made.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 7)
    made.pass_time(1)
    return made


# Those that only a listener has by itself: tests/net/test_tls.py.
@pytest.mark.parametrize(
    "name", sorted(LIVE_BROKER_SETTINGS - LISTENER_SETTINGS - PER_BROKER_SETTINGS)
)
def test_a_live_setting_reaches_what_obeys_it(broker: MemoryBroker, name: str) -> None:
    row, before = BROKER_SETTINGS[name], obeyed(broker, name)
    wanted = another(row, before)
    alter(broker, name, wanted)
    assert broker.broker.config[name] == wanted
    assert obeyed(broker, name) == wanted != before


def test_what_reads_a_live_setting_at_its_beginning_has_a_test_of_a_change() -> None:
    """A new setting is put into one of the two tables."""
    live = LIVE_BROKER_SETTINGS - LISTENER_SETTINGS - PER_BROKER_SETTINGS
    assert sorted(live) == sorted([*IN_THE_MIDDLE, *AT_EACH_USE])
    for file, name in IN_THE_MIDDLE.values():
        assert f"\ndef {name}(" in (Path(__file__).parent / file).read_text()


def test_a_change_ends_the_pause_of_the_cleaner(broker: MemoryBroker) -> None:
    """It was an hour's, set by mistake: it is not waited for."""
    alter(broker, "log.cleaner.backoff.ms", 3_600_000)
    alter(broker, "log.cleaner.backoff.ms", 300)
    looked_ms = broker.broker.log_manager.cleaner.looked_ms
    broker.pass_time(0.3)
    assert broker.broker.log_manager.cleaner.looked_ms > looked_ms


def test_all_parts_hold_the_one_live_configuration(broker: MemoryBroker) -> None:
    """Nobody keeps a copy that a change would not reach."""
    live = broker.broker.config
    assert broker.broker.parts.config is broker.broker.log_manager.config is live
    assert broker.broker.broker_server.replica_manager.config is live
