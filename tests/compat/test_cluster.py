"""Clusters of real processes under stock clients: brokers come, are killed, leave and return,
and nobody loses a record.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.compat.broker_process import BrokerProcess
from tests.compat.cluster_processes import Cluster, Reader, View

ALL = {1, 2, 3}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A controller and three brokers; every test leaves them running."""
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        yield made.start()
    finally:
        made.end()


@pytest.fixture
def view(cluster: Cluster) -> Iterator[View]:
    yield View(cluster.bootstrap)
    cluster.make_whole()


def test_empty_brokers_adopt_the_controllers_cluster(cluster: Cluster, view: View) -> None:
    """An empty broker directory takes the cluster id from the controller; clients see all
    brokers as one cluster.
    """
    told = {
        process.run()["cluster_id"] for process in (cluster.controller, *cluster.brokers.values())
    }
    assert len(told) == 1
    described = view.admin.describe_cluster().result(60)
    assert described.cluster_id in told and {node.id for node in described.nodes} == ALL
    for node_id, broker in cluster.brokers.items():
        assert f"node.id={node_id}" in (Path(broker.data) / "meta.properties").read_text()


def test_kill_9_of_a_leader_loses_nothing(cluster: Cluster, view: View, topic: str) -> None:
    """RL 2.4, 8.3: a killed leader is replaced, leaves the ISR, and joins it again; acknowledged
    records are there once, in order.
    """
    view.create(topic, min_insync_replicas="2")
    view.until(lambda: view.in_sync(topic) == ALL, "all in sync")
    victim = view.leaders(topic)[0]
    with view.producing(topic) as writer:
        view.until(writer.progress(), "records flow")
        cluster.brokers[victim].kill()
        view.until(lambda: victim not in view.leaders(topic).values(), "leadership moved")
        view.until(
            lambda: all(victim not in isr for _, isr in view.partitions(topic).values()),
            "the ISR shrank",
        )
        view.until(writer.progress(), "records flow without it")
        cluster.brokers[victim].start()
        view.until(lambda: view.in_sync(topic) == ALL, "it is back in the ISR")
        view.until(writer.progress(), "records flow with it")
    view.check_once(writer)


def test_a_follower_that_comes_back_catches_up(cluster: Cluster, view: View, topic: str) -> None:
    """RL 6.4: what was written while a follower was away is on its disk when it is in the ISR
    again, byte for byte.
    """
    view.create(topic, partitions=1)
    leader = view.leaders(topic)[0]
    away = max(ALL - {leader})
    cluster.brokers[away].kill()
    with view.producing(topic) as writer:
        view.until(lambda: away not in view.in_sync(topic), "it left the ISR")
        view.until(writer.progress(), "records flow")
    cluster.brokers[away].start()
    view.until(lambda: view.in_sync(topic) == ALL, "it is back in the ISR")
    assert segment(cluster.brokers[away], topic) == segment(cluster.brokers[leader], topic) != b""


def segment(broker: BrokerProcess, topic: str) -> bytes:
    return (Path(broker.data) / f"{topic}-0" / "00000000000000000000.log").read_bytes()


def test_sigterm_hands_leadership_over_first(cluster: Cluster, view: View, topic: str) -> None:
    """RL 8.2: a controlled shutdown moves leadership before the process ends: no session has to
    time out, no record fails.
    """
    view.create(topic, min_insync_replicas="2")
    view.until(lambda: view.in_sync(topic) == ALL, "all in sync")
    leaving = view.leaders(topic)[1]
    with view.producing(topic) as writer:
        view.until(writer.progress(), "records flow")
        cluster.brokers[leaving].stop()
        assert leaving not in view.leaders(topic).values()
        view.until(writer.progress(), "records flow without it")
        cluster.brokers[leaving].start()
        view.until(lambda: view.in_sync(topic) == ALL, "it is back in the ISR")
    view.check_once(writer)


def test_kill_9_and_an_immediate_return(cluster: Cluster, view: View, topic: str) -> None:
    """RL 8.2: a broker that is back before its old session ended waits for that, and then joins."""
    view.create(topic)
    cluster.brokers[2].kill()
    cluster.brokers[2].start()
    view.until(lambda: view.in_sync(topic) == ALL, "it is back in the ISR")


def test_a_group_goes_on_when_its_coordinator_is_killed(
    cluster: Cluster, view: View, topic: str
) -> None:
    """RL 1.3, 8.3: the group's next coordinator reads its offsets from its own replica: the
    consumer reads on, every record is read, and what is committed at the end is what was read.
    """
    view.create(topic, min_insync_replicas="2")
    group = f"group-{topic}"
    with view.producing(topic) as writer:
        reader = Reader(view.bootstrap, topic, group)
        try:
            view.until(reader.progress(), "records are read")
            view.until(
                lambda: view.in_sync("__consumer_offsets") == ALL, "offsets are on all brokers"
            )
            victim = view.coordinator(group)
            cluster.brokers[victim].kill()
            view.until(lambda: victim not in view.leaders(topic).values(), "leadership moved")
            view.until(lambda: view.coordinator(group) != victim, "another broker coordinates")
            view.until(reader.progress(), "records are read on")
            cluster.brokers[victim].start()
            view.until(lambda: view.in_sync(topic) == ALL, "it is back in the ISR")
            view.until(reader.progress(), "records are read still")
            writer.stop()
            view.until(
                lambda: set(writer.acknowledged) <= reader.values(),
                "all acknowledged records are read",
            )
        finally:
            reader.stop()
    assert not writer.failed and not reader.errors
    ends = {
        number: max(offset for partition, offset, _ in reader.seen if partition == number) + 1
        for number in range(3)
    }
    view.until(lambda: view.committed(group) == ends, "what was read is committed")


def test_without_its_controller_a_cluster_goes_on_serving(
    cluster: Cluster, view: View, topic: str
) -> None:
    """RL 8.1: producers and consumers do not need the controller; when it is back from kill -9
    nothing is lost, and topics can be made.
    """
    view.create(topic, min_insync_replicas="2")
    view.until(lambda: view.in_sync(topic) == ALL, "all in sync")
    with view.producing(topic) as writer:
        view.until(writer.progress(), "records flow")
        cluster.controller.kill()
        view.until(writer.progress(), "records flow without a controller")
        cluster.controller.start()
        view.create(f"{topic}-after")
    view.until(lambda: view.in_sync(topic) == ALL, "all still in sync")
    view.check_once(writer)


def test_a_directory_of_another_cluster_stops_the_broker_with_one_line(cluster: Cluster) -> None:
    """A directory that belongs to another cluster is never taken: the process ends with status 1
    and says whose it is.
    """
    stranger = cluster.new_broker(4, "stranger")
    data = Path(stranger.data)
    data.mkdir(parents=True)
    (data / "meta.properties").write_text(
        "cluster.id=AAAAAAAAAAAAAAAAAAAAAA\nnode.id=4\nversion=1\n"
    )
    done = subprocess.run(stranger.command(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    (line,) = [line for line in done.stdout.splitlines() if "replog node 4 stops" in line]
    assert "AAAAAAAAAAAAAAAAAAAAAA" in line


def test_three_brokers_in_one_process(tmp_path: Path, topic: str) -> None:
    """`--brokers 3`: ids 1 to 3 with directories of their own behind one run file; a topic on
    all of them; the same bytes in all at the end.
    """
    process = BrokerProcess(tmp_path / "three", more=["--brokers", "3"])
    process.start()
    try:
        view = View(process.bootstrap)
        assert sorted(cast(dict[str, object], process.run()["brokers"])) == ["1", "2", "3"]
        assert {node.id for node in view.admin.describe_cluster().result(60).nodes} == ALL
        view.create(topic, partitions=1, min_insync_replicas="3")
        with view.producing(topic) as writer:
            view.until(writer.progress(), "records flow")
        view.check_once(writer)
        assert process.stop() < 40
        logs = [
            Path(process.data) / f"broker-{node}" / f"{topic}-0" / "00000000000000000000.log"
            for node in sorted(ALL)
        ]
        assert logs[0].read_bytes() == logs[1].read_bytes() == logs[2].read_bytes() != b""
        process.port = 0
        process.start()
        again = View(process.bootstrap)
        again.until(lambda: again.in_sync(topic) == ALL, "all in sync after a restart")
        assert len(again.values(topic, set(writer.acknowledged))) == len(writer.acknowledged)
    finally:
        process.kill()
