"""What `--brokers N` makes of the settings given for all, and how all stop; the processes
themselves are in `tests/compat/test_cluster.py`.
"""

from __future__ import annotations

import json
from errno import EIO
from pathlib import Path
from random import Random

import pytest
from twisted.logger import LogEvent, capturedLogs, formatEvent

from tests.memory_broker import MemoryBroker
from tests.test_broker_service import Loop
from twisted_broker.broker_config import BrokerConfig
from twisted_broker.interfaces import Runtime
from twisted_broker.local_cluster import LocalCluster
from twisted_broker.local_nodes import node_settings, replication_hint
from twisted_broker.net.listeners import plan_listeners
from twisted_broker.tap import Options
from twisted_broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
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


def three_brokers(
    broker: MemoryBroker, worlds: dict[int, MemoryBroker], loop: Loop, *more: str
) -> LocalCluster:
    """Started; the directory of each is in files of its own."""

    def world(config: BrokerConfig) -> Runtime:
        made = worlds[config.node_id] = MemoryBroker(world=broker)
        made.runtime.random = Random(config.node_id)
        return made.runtime

    options = ["--brokers", "3", "--port", "9092", "--data", "/data"]
    options += ["--set", "replog.status.port=-1"]
    run_file = more[0] if more else None
    cluster = LocalCluster(configs(*options), world, reactor=loop, run_file=run_file)
    cluster.startService()
    broker.run(cluster._starting)
    return cluster


def make_topic(broker: MemoryBroker, name: str, port: int) -> None:
    topic = CreatableTopic(name=name, num_partitions=6, replication_factor=3)
    made = broker.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 5, port)
    assert made.topics[0].error_code == 0
    broker.pass_time(5)


def fail_disk(cluster: LocalCluster, node_id: int) -> None:
    directories = cluster.brokers[node_id - 1].log_manager.directories
    directories.fail(f"/data/broker-{node_id}", OSError(EIO, "Input/output error"))


def leaders(broker: MemoryBroker, topic: str, port: int) -> set[int]:
    asked = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
    (found,) = broker.ask(asked, 8, port).topics
    return {each.leader_id for each in found.partitions}


def stop_lines(told: list[LogEvent]) -> list[str]:
    lines = [formatEvent(event) for event in told]
    return [line for line in lines if line.startswith("replog node") and "stops" in line]


def test_a_broker_whose_disk_fails_ends_alone(tmp_path: Path) -> None:
    """The two others take its leaderships and serve on; one line names it, the run file no more."""
    broker, loop, path = MemoryBroker(), Loop(), tmp_path / "run.json"
    cluster = three_brokers(broker, {}, loop, str(path))
    make_topic(broker, "t", 9092)
    assert leaders(broker, "t", 9092) == {1, 2, 3}
    with capturedLogs() as told:
        fail_disk(cluster, 2)
        broker.pass_time(5)
    (line,) = stop_lines(told)
    assert line == (
        "replog node 2 stops: all log directories are offline: [Errno 5] Input/output error; "
        "nodes 1, 3 are left"
    )
    assert loop.stops == 0 and ("127.0.0.1", 9093) not in broker.network.ports
    assert leaders(broker, "t", 9094) == {1, 3}
    told_file = json.loads(path.read_text())
    assert sorted(told_file["brokers"]) == ["1", "3"]
    assert told_file["bootstrap"] == "127.0.0.1:9092,127.0.0.1:9094"
    with capturedLogs() as told:
        broker.run(cluster.stopService())
    assert [event for event in told if event.get("log_failure")] == []
    assert loop.stops == 0


def test_the_controller_outlives_the_broker_beside_it() -> None:
    """Node 1 ends as a broker; topics are still created, on the brokers that are left."""
    broker, loop = MemoryBroker(), Loop()
    cluster = three_brokers(broker, {}, loop)
    with capturedLogs() as told:
        fail_disk(cluster, 1)
        broker.pass_time(5)
    (line,) = stop_lines(told)
    assert line.startswith("replog node 1 stops, its controller goes on: ")
    assert line.endswith("; nodes 2, 3 are left")
    assert loop.stops == 0 and ("127.0.0.1", 9092) not in broker.network.ports
    topic = CreatableTopic(name="later", num_partitions=6, replication_factor=2)
    made = broker.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 5, 9093)
    assert made.topics[0].error_code == 0
    broker.pass_time(5)
    assert leaders(broker, "later", 9094) == {2, 3}
    broker.run(cluster.stopService())


def test_the_process_ends_with_the_last_broker() -> None:
    """One line says so, whether or not the controller's disk works."""
    broker, loop = MemoryBroker(), Loop()
    cluster = three_brokers(broker, {}, loop)
    with capturedLogs() as told:
        for node_id in (2, 1, 3):
            assert loop.stops == 0
            fail_disk(cluster, node_id)
            broker.pass_time(5)
    assert loop.stops == 1
    assert "no broker is left, node 3 is the last: all log directories" in stop_lines(told)[-1]
    broker.run(cluster.stopService())


def test_all_end_with_the_controllers_disk() -> None:
    """No leader could be elected any more."""
    broker, loop = MemoryBroker(), Loop()
    cluster = three_brokers(broker, {}, loop)
    controller = cluster.brokers[0]._controller
    assert controller is not None
    with capturedLogs() as told:
        controller.log.log.fail(OSError(EIO, "Input/output error"))
        broker.pass_time(1)
    (line,) = stop_lines(told)
    assert line.startswith("replog nodes 1 to 3 stops: the metadata log failed: ")
    assert loop.stops == 1
    broker.run(cluster.stopService())


def test_all_leave_side_by_side() -> None:
    """RL 8.2, 3.6, 1.12: nobody waits for a node that leaves too, not one heartbeat; every
    directory is marked clean, with its high watermarks.
    """
    world = MemoryBroker()
    worlds: dict[int, MemoryBroker] = {}
    with capturedLogs() as told:
        cluster = three_brokers(world, worlds, Loop())
    assert [formatEvent(event) for event in told][-1] == replication_hint(cluster.config, 3)
    make_topic(world, "t", 9092)
    assert all(len(broker.log_manager.logs) == 6 for broker in cluster.brokers)
    before = world.clock.seconds()
    world.run(cluster.stopService())
    assert world.clock.seconds() - before < 1
    for node_id, each in worlds.items():
        found = set(each.files.listdir(f"/data/broker-{node_id}"))
        assert {".kafka_cleanshutdown", "replication-offset-checkpoint"} <= found
