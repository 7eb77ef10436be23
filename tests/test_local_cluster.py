"""What `--brokers N` makes of the settings given for all, and how all stop; the processes
themselves are in `tests/compat/test_cluster.py`.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from twisted.logger import capturedLogs, formatEvent

from tests.memory_broker import MemoryBroker
from twisted_broker.config import BrokerConfig
from twisted_broker.interfaces import Runtime
from twisted_broker.local_cluster import LocalCluster, node_settings, replication_hint
from twisted_broker.net.listeners import plan_listeners
from twisted_broker.tap import Options
from twisted_broker.wire.messages.topics import CreatableTopic, CreateTopicsRequest


def configs(*arguments: str):
    made = Options()
    made.parseOptions(list(arguments))
    return made.broker_configs


def test_ids_ports_directories_and_roles() -> None:
    """Ids 1 to 3, ports P to P+2, own directories under --data, node 1 also the controller."""
    made = configs("--brokers", "3", "--port", "19092", "--data", "/data")
    assert [config.node_id for config in made] == [1, 2, 3]
    assert [config.names("process.roles") for config in made] == [
        ("broker", "controller"),
        ("broker",),
        ("broker",),
    ]
    assert [config.log_directories for config in made] == [
        (f"/data/broker-{node}",) for node in (1, 2, 3)
    ]
    plans = [plan_listeners(config) for config in made]
    assert [str(each) for plan in plans for each in plan.broker] == [
        f"PLAINTEXT://127.0.0.1:{port}" for port in (19092, 19093, 19094)
    ]
    assert [len(plan.controller) for plan in plans] == [1, 0, 0]


def test_free_ports_are_free_for_all() -> None:
    """`--port 0`: each broker finds its own."""
    plans = [
        plan_listeners(config)
        for config in configs("--brokers", "2", "--port", "0", "--data", "memory")
    ]
    assert [plan.broker[0].port for plan in plans] == [0, 0]


def test_several_listeners_and_advertised_ones_move_together() -> None:
    """Every broker's listener gets a port of its own; the controller's stays on node 1."""
    values = {
        "log.dirs": "/a,/b",
        "metadata.log.dir": "/m",
        "listeners": "PLAINTEXT://127.0.0.1:9092,INTERNAL://127.0.0.1:9192,CONTROLLER://127.0.0.1:9093",
        "advertised.listeners": "PLAINTEXT://example.org:9092,INTERNAL://127.0.0.1:9192",
        "replog.status.port": "9100",
    }
    second = node_settings(values, 2)
    assert second["listeners"] == "PLAINTEXT://127.0.0.1:9093,INTERNAL://127.0.0.1:9193"
    assert (
        second["advertised.listeners"] == "PLAINTEXT://example.org:9093,INTERNAL://127.0.0.1:9193"
    )
    assert (second["log.dirs"], second["metadata.log.dir"]) == (
        "/a/broker-2,/b/broker-2",
        "/m/broker-2",
    )
    assert node_settings(values, 1)["listeners"] == values["listeners"]
    assert [node_settings(values, node)["replog.status.port"] for node in (1, 3)] == [
        "9100",
        "9102",
    ]
    for same in ("0", "-1"):
        assert node_settings(values | {"replog.status.port": same}, 2)["replog.status.port"] == same


def test_one_broker_stays_what_it_was() -> None:
    """Without --brokers the directory is --data itself."""
    (config,) = configs("--data", "/data")
    assert config.log_directories == ("/data",) and Path("/data/broker-1") not in map(
        Path, config.log_directories
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("--brokers", "0"),
        ("--brokers", "101"),
        ("--brokers", "three"),
        ("--brokers", "3", "--port", "65534"),
    ],
)
def test_what_cannot_be_is_one_line(arguments: tuple[str, ...]) -> None:
    """A number from 1 to 100, and ports for all of them."""
    with pytest.raises(SystemExit):
        configs(*arguments)


def test_how_topics_get_three_replicas_is_said() -> None:
    """Three at most, as many as there are brokers; nothing where the setting gives them already."""
    three, two = configs("--brokers", "3"), configs("--brokers", "2")
    assert "--set default.replication.factor=3 makes 3 the default" in replication_hint(three[0], 3)
    assert "--set default.replication.factor=2 makes 2 the default" in replication_hint(two[0], 2)
    assert (
        replication_hint(configs("--brokers", "3", "--set", "default.replication.factor=3")[0], 3)
        == ""
    )
    assert replication_hint(configs("--brokers", "1")[0], 1) == ""


def test_all_leave_side_by_side() -> None:
    """RL 8.2, 3.6, 1.12: nobody waits for a node that leaves too, not one heartbeat; every
    directory is marked clean, with its high watermarks.
    """
    house = MemoryBroker()
    worlds: dict[int, MemoryBroker] = {}

    def world(config: BrokerConfig) -> Runtime:
        made = worlds[config.node_id] = MemoryBroker(world=house)
        made.runtime.random = Random(config.node_id)
        return made.runtime

    options = (
        "--brokers",
        "3",
        "--port",
        "9092",
        "--data",
        "/data",
        "--set",
        "replog.status.port=-1",
    )
    cluster = LocalCluster(configs(*options), world, reactor=house.clock)
    with capturedLogs() as told:
        cluster.startService()
        house.run(cluster._starting)
    assert [formatEvent(event) for event in told][-1] == replication_hint(cluster.config, 3)
    topic = CreatableTopic(name="t", num_partitions=6, replication_factor=3)
    assert (
        house.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 5).topics[0].error_code == 0
    )
    house.pass_time(5)
    assert all(len(broker.log_manager.logs) == 6 for broker in cluster.brokers)
    before = house.clock.seconds()
    house.run(cluster.stopService())
    assert house.clock.seconds() - before < 1
    for node_id, each in worlds.items():
        found = set(each.files.listdir(f"/data/broker-{node_id}"))
        assert {".kafka_cleanshutdown", "replication-offset-checkpoint"} <= found
