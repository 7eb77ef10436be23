"""Every setting that is marked live in the table of settings reaches what obeys it, without a
restart, when AlterConfigs changes it.
"""

from __future__ import annotations

from collections.abc import Callable
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
    "cordoned.log.dirs": lambda house: tuple(house.broker.log_manager.config.cordoned_directories),
    "follower.replication.throttled.rate": lambda house: (
        house.broker.role.replica_manager.follower_quota._bound()
    ),
    "leader.replication.throttled.rate": lambda house: (
        house.broker.role.replica_manager.leader_quota._bound()
    ),
    "log.cleaner.backoff.ms": lambda house: cleaner_config(house, "backoff.ms"),
    "log.cleaner.dedupe.buffer.size": lambda house: cleaner_config(house, "dedupe.buffer.size"),
    "log.cleaner.io.buffer.load.factor": lambda house: cleaner_config(
        house, "io.buffer.load.factor"
    ),
    "log.cleaner.io.max.bytes.per.second": lambda house: cleaner_config(
        house, "io.max.bytes.per.second"
    ),
    "log.cleaner.threads": lambda house: cleaner_config(house, "threads"),
    "max.connection.creation.rate": lambda house: house.broker._counts.rates.limit,
    "max.connections": lambda house: house.broker._counts.maximum,
    "max.connections.per.ip": lambda house: house.broker._counts.maximum_per_host,
    "max.connections.per.ip.overrides": lambda house: ",".join(
        f"{address}:{count}" for address, count in house.broker._counts.overrides.items()
    ),
    "num.replica.fetchers": lambda house: house.broker.role.fetchers.count,
    "producer.id.expiration.ms": lambda house: log_config(house).producer_id_expiration_ms,
    "replica.alter.log.dirs.io.max.bytes.per.second": lambda house: (
        house.broker.role.replica_manager.moves.throttle._rate()
    ),
    "replog.log.dir.free.warn.bytes": lambda house: house.broker.log_manager.free_space.limit,
    "replog.refuse.unclean.truncation": lambda house: house.broker.role.fetchers._refuses_unclean(),
    # What a Produce reads.
    "transaction.partition.verification.enable": lambda house: house.broker.parts.config.boolean(
        "transaction.partition.verification.enable"
    ),
}


def log_config(house: MemoryBroker) -> Any:
    return house.broker.log_manager.logs[TopicPartition("t", 0)].config


def cleaner_config(house: MemoryBroker, name: str) -> Any:
    """What the cleaner reads before each round."""
    return house.broker.log_manager.cleaner._config[f"log.cleaner.{name}"]


def obeyed(house: MemoryBroker, name: str) -> Any:
    """What is in force where the setting is obeyed: for one that topics inherit, in a log."""
    if name in OTHERS:
        return OTHERS[name](house)
    value = getattr(log_config(house), TOPIC_ROWS[name].name.replace(".", "_"))
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


def alter(house: MemoryBroker, name: str, value: Any) -> None:
    text = ",".join(value) if isinstance(value, tuple) else str(value).lower()
    if isinstance(value, str):
        text = value
    config = AlterableConfig(name=name, config_operation=0, value=text)
    resource = AlterConfigsResource(resource_type=BROKER, resource_name="", configs=[config])
    answer = house.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1)
    assert answer.responses[0].error_code == 0, answer
    house.pass_time(1)


@pytest.fixture(scope="module")
def house() -> MemoryBroker:
    made = MemoryBroker().start()
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    made.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 7)
    made.pass_time(1)
    return made


# Those that only a listener has by itself: tests/net/test_tls.py.
@pytest.mark.parametrize(
    "name", sorted(LIVE_BROKER_SETTINGS - LISTENER_SETTINGS - PER_BROKER_SETTINGS)
)
def test_a_live_setting_reaches_what_obeys_it(house: MemoryBroker, name: str) -> None:
    row, before = BROKER_SETTINGS[name], obeyed(house, name)
    wanted = another(row, before)
    alter(house, name, wanted)
    assert house.broker.config[name] == wanted
    assert obeyed(house, name) == wanted != before


def test_a_change_ends_the_pause_of_the_cleaner(house: MemoryBroker) -> None:
    """It was an hour's, set by mistake: it is not waited for."""
    alter(house, "log.cleaner.backoff.ms", 3_600_000)
    alter(house, "log.cleaner.backoff.ms", 300)
    looked_ms = house.broker.log_manager.cleaner.looked_ms
    house.pass_time(0.3)
    assert house.broker.log_manager.cleaner.looked_ms > looked_ms


def test_all_parts_hold_the_one_live_configuration(house: MemoryBroker) -> None:
    """Nobody keeps a copy that a change would not reach."""
    live = house.broker.config
    assert house.broker.parts.config is house.broker.log_manager.config is live
    assert house.broker.role.replica_manager.config is live
