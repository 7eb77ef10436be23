"""What `--brokers N` makes of the settings given for all, and how all stop; the processes
themselves are in `tests/compat/test_cluster.py`.
"""

from __future__ import annotations

import json
import socket
from errno import EIO
from pathlib import Path
from random import Random

import pytest
from twisted.logger import LogEvent, capturedLogs, formatEvent

from tests.memory_broker import MemoryBroker
from tests.test_broker_service import Loop
from twisted_broker.broker_config import BrokerConfig
from twisted_broker.cluster.metadata_check import write_durable_end
from twisted_broker.interfaces import Runtime
from twisted_broker.local_cluster import LocalCluster
from twisted_broker.local_nodes import node_settings, replication_hint
from twisted_broker.local_quorum import ONE_CONTROLLER, controllers_of, format_quorum
from twisted_broker.log.memory import MemoryFileSystem
from twisted_broker.log.meta_properties import read_meta_properties
from twisted_broker.net.listeners import plan_listeners
from twisted_broker.tap import Options
from twisted_broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from twisted_broker.wire.messages.topics import CreatableTopic, CreateTopicsRequest


def configs(*arguments: str, controllers: int = 3):
    made = Options()
    made.most_controllers = controllers
    made.parseOptions(list(arguments))
    return made.broker_configs


def test_ids_ports_directories_and_roles() -> None:
    """Ids 1 to 4, ports P to P+3, own directories under --data; nodes 1 to 3 are controllers, each
    of which has a port of its own that all know as that voter's.
    """
    made = configs("--brokers", "4", "--port", "19092", "--data", "/data")
    assert [config.node_id for config in made] == [1, 2, 3, 4]
    both = ("broker", "controller")
    assert [config.names("process.roles") for config in made] == [both, both, both, ("broker",)]
    assert [config.log_directories for config in made] == [
        (f"/data/broker-{node}",) for node in (1, 2, 3, 4)
    ]
    plans = [plan_listeners(config) for config in made]
    assert [str(each) for plan in plans for each in plan.broker] == [
        f"PLAINTEXT://127.0.0.1:{port}" for port in (19092, 19093, 19094, 19095)
    ]
    ports = [each.port for plan in plans for each in plan.controller]
    assert len(ports) == len(set(ports)) == 3 and 0 not in ports
    voters = tuple(f"{node}@127.0.0.1:{port}" for node, port in zip((1, 2, 3), ports, strict=True))
    assert {config.names("controller.quorum.voters") for config in made} == {voters}
    timeouts = [config.integer("controller.quorum.election.timeout.ms") for config in made]
    assert timeouts == [200, 1000, 1000, 1000]


def test_a_quorum_of_two_would_stop_with_either() -> None:
    """Of two brokers one is the controller; of more, those that the operator names as voters."""
    assert roles_of("--brokers", "2") == [True, False]
    one = ("--set", "controller.quorum.voters=1@127.0.0.1:9193")
    assert roles_of("--brokers", "3", *one) == [True, False, False]
    assert roles_of("--brokers", "3") == [True, True, True]


def roles_of(*arguments: str) -> list[bool]:
    """Which nodes are controllers."""
    return [len(plan_listeners(config).controller) == 1 for config in configs(*arguments)]


def test_voters_get_the_names_that_others_reach_them_by() -> None:
    """The advertised address of a controller's listener; else the one it listens on."""
    listeners = "PLAINTEXT://:9092,CONTROLLER://:9193"
    given = ("--brokers", "3", "--set", f"listeners={listeners}")
    host = socket.gethostname()
    assert configs(*given)[3 - 1].names("controller.quorum.voters") == tuple(
        f"{node}@{host}:{9192 + node}" for node in (1, 2, 3)
    )
    advertised = "PLAINTEXT://example.org:9092,CONTROLLER://example.org:9293"
    more = ("--set", f"advertised.listeners={advertised}")
    assert configs(*given, *more)[0].names("controller.quorum.voters") == tuple(
        f"{node}@example.org:{9292 + node}" for node in (1, 2, 3)
    )


def test_directories_keep_the_controllers_that_they_were_begun_with() -> None:
    """Metadata that one voter leads is not given two more, who know nothing of it; three stay three
    where a disk of theirs was lost, and so does one.
    """
    values = {"log.dirs": "/data"}

    def found(**contents: str) -> tuple[int, ...]:
        files = MemoryFileSystem()
        for node, content in contents.items():
            directory = f"/data/broker-{node[1:]}/__cluster_metadata-0"
            files.make_directories(directory)
            if content:
                file = files.open(f"{directory}/quorum-state", create=True)
                file.write_at(0, (content.encode(),))
                file.close()
            write_durable_end(files, directory, 7)
        return controllers_of(values, 3, files)

    alone = '{"leaderId":1,"currentVoters":[{"voterId":1}],"data_version":0}'
    of_three = alone.replace("[", '[{"voterId":2},{"voterId":3},')
    dynamic = '{"leaderId":1,"data_version":1}'
    assert found() == (1, 2, 3)
    assert found(n1=alone) == found(n1=alone, n2="", n3="") == found(n2="", n3="") == (1,)
    assert found(n1=of_three) == found(n2=of_three) == (1, 2, 3)
    assert found(n1=dynamic) == (1,)
    assert found(n1=dynamic, n3=dynamic) == (1, 2, 3)


def test_an_empty_directory_beside_records_is_not_another_voter() -> None:
    """Before the first record all become of one cluster, whatever was killed between; later an
    empty one may be that of a voter that has voted, and is left as it is.
    """
    made = configs("--brokers", "3", "--data", "/data")
    files = [MemoryFileSystem() for _ in made]
    of_node = dict(zip(made, files, strict=True))

    def cluster_ids() -> list[str | None]:
        paths = [config.log_directories[0] for config in made]
        found = [read_meta_properties(*each) for each in zip(files, paths, strict=True)]
        return [None if each is None else each.cluster_id for each in found]

    format_quorum(made[:2], of_node.__getitem__, None, Random(1))
    first, second, third = cluster_ids()
    assert first == second is not None and third is None
    format_quorum(made, of_node.__getitem__, None, Random(2))
    assert cluster_ids() == [first] * 3
    files[1] = of_node[made[1]] = MemoryFileSystem()
    write_durable_end(files[0], "/data/broker-1/__cluster_metadata-0", 7)
    format_quorum(made, of_node.__getitem__, None, Random(3))
    assert cluster_ids() == [first, None, first]


def test_free_ports_are_free_for_all() -> None:
    """`--port 0`: each broker finds its own."""
    plans = [
        plan_listeners(config)
        for config in configs("--brokers", "2", "--port", "0", "--data", "memory")
    ]
    assert [plan.broker[0].port for plan in plans] == [0, 0]


def test_several_listeners_and_advertised_ones_move_together() -> None:
    """Every broker's listener gets a port of its own; a controller's is on such nodes only."""
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
    among_three = node_settings(values, 2, (1, 2, 3))["listeners"]
    assert among_three == second["listeners"] + ",CONTROLLER://127.0.0.1:9094"
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
    broker: MemoryBroker,
    worlds: dict[int, MemoryBroker],
    loop: Loop,
    *more: str,
    controllers: int = 3,
) -> LocalCluster:
    """Started; the directory of each is in files of its own, or in those that a world has."""

    def world(config: BrokerConfig) -> Runtime:
        known = worlds.get(config.node_id)
        files = None if known is None else known.files
        made = worlds[config.node_id] = MemoryBroker(files, world=broker)
        made.runtime.random = Random(config.node_id)
        return made.runtime

    options = ["--brokers", "3", "--port", "9092", "--data", "/data"]
    options += ["--set", "replog.status.port=-1"]
    run_file = more[0] if more else None
    found = configs(*options, controllers=controllers)
    cluster = LocalCluster(found, world, reactor=loop, run_file=run_file)
    cluster.startService()
    broker.run(cluster._starting)
    return cluster


def make_topic(broker: MemoryBroker, name: str, port: int, replicas: int = 3) -> None:
    topic = CreatableTopic(name=name, num_partitions=6, replication_factor=replicas)
    made = broker.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 5, port)
    assert made.topics[0].error_code == 0
    broker.pass_time(2)


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
        "replog node 2 stops, its controller goes on: all log directories are offline: [Errno 5] "
        "Input/output error; nodes 1, 3 are left"
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


def test_all_end_with_the_majority_of_the_controllers() -> None:
    """The disk of one controller, also of the active one, fails: its node ends, and the others
    elect, create topics and take its leaderships. Without a second one nobody could elect.
    """
    broker, loop = MemoryBroker(), Loop()
    cluster = three_brokers(broker, {}, loop)
    first = active(cluster)
    left = {1, 2, 3} - {first}
    with capturedLogs() as told:
        fail_metadata(cluster, first)
        elect(broker, cluster)
    (line,) = stop_lines(told)
    assert line.startswith(f"replog node {first} stops: the metadata log failed: ")
    assert loop.stops == 0 and active(cluster) in left
    port = 9091 + min(left)
    make_topic(broker, "later", port, replicas=2)
    assert leaders(broker, "later", port) == left
    with capturedLogs() as told:
        fail_metadata(cluster, max(left))
        broker.pass_time(1)
    (line,) = stop_lines(told)
    assert line.startswith("replog nodes 1 to 3 stops: the metadata log failed: ")
    assert loop.stops == 1
    broker.run(cluster.stopService())


def test_from_one_controller_to_three() -> None:
    """OPERATIONS: what the only controller wrote is copied to two others, which then vote with it:
    topics and records' partitions are as before, and any of the three may be lost.
    """
    broker = MemoryBroker()
    worlds: dict[int, MemoryBroker] = {}
    with capturedLogs() as told:
        cluster = three_brokers(broker, worlds, Loop(), controllers=1)
    assert ONE_CONTROLLER in [formatEvent(event) for event in told]
    make_topic(broker, "t", 9092)
    broker.run(cluster.stopService())
    for node in (2, 3):
        copy_metadata(worlds[1].files, worlds[node].files, node)
    cluster = three_brokers(broker, worlds, Loop())
    assert leaders(broker, "t", 9092) <= {1, 2, 3}
    fail_metadata(cluster, active(cluster))
    elect(broker, cluster)
    port = 9091 + active(cluster)
    make_topic(broker, "later", port, replicas=2)
    broker.run(cluster.stopService())


def copy_metadata(source: MemoryFileSystem, target: MemoryFileSystem, node: int) -> None:
    old, new = (f"/data/broker-{each}/__cluster_metadata-0" for each in (1, node))
    target.remove_tree(new)
    target.make_directories(new)
    for name in source.listdir(old):
        content = source.open(f"{old}/{name}", read_only=True)
        copy = target.open(f"{new}/{name}", create=True)
        copy.write_at(0, (content.read_at(0, content.size()),))


def fail_metadata(cluster: LocalCluster, node_id: int) -> None:
    controller = cluster.brokers[node_id - 1]._controller
    assert controller is not None
    controller.log.log.fail(OSError(EIO, "Input/output error"))


def actives(cluster: LocalCluster) -> list[int]:
    controllers = [each._controller for each in cluster.brokers]
    return [each.node_id for each in controllers if each is not None and each.is_active]


def active(cluster: LocalCluster) -> int:
    """The node of the active controller."""
    (found,) = actives(cluster)
    return found


def elect(broker: MemoryBroker, cluster: LocalCluster) -> None:
    """Until there is another one, and its brokers know it."""
    while not actives(cluster):
        broker.pass_time(0.2)
    broker.pass_time(1)


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
