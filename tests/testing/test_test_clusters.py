"""Clusters for tests: `twisted_broker.testing`, from the outside, as its users have it."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer, KafkaProducer
from kafka.partitioner.default import murmur2 as kafkas_murmur2

from tests.testing.trial_run import passes
from twisted_broker.testing import (
    AsyncCluster,
    Cluster,
    ClusterError,
    ClusterTimeout,
    Record,
    pytest_plugin,
    template_client,
)
from twisted_broker.testing.cluster import written
from twisted_broker.testing.cluster_calls import murmur2
from twisted_broker.testing.handles import in_seconds

pytestmark = pytest.mark.clients
HERE = Path(__file__).parents[2]


def runs(pid: int) -> bool:
    """Not one that ended and that nobody waits for: in a container process 1 may not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def gone(pid: int, within: float) -> bool:
    end = time.monotonic() + within
    while runs(pid):
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def test_records_are_written_and_read_without_a_client() -> None:
    with Cluster(topics={"orders": 3}) as cluster:
        orders = cluster.topic("orders")
        assert orders.produce([b"a", ("k", b"b"), (None, b"c")]) == [(0, 0), (2, 0), (1, 0)]
        whole = {"key": b"k", "value": None, "headers": [("h", b"1")], "timestamp": 7}
        assert orders.produce([whole]) == [(2, 1)]
        found = orders.records(at_least=4)
        assert [(each.partition, each.offset, each.key, each.value) for each in found] == [
            (0, 0, None, b"a"),
            (1, 0, None, b"c"),
            (2, 0, b"k", b"b"),
            (2, 1, b"k", None),
        ]
        assert found[3] == Record("orders", 2, 1, 7, b"k", None, [("h", b"1")])


def test_keys_go_where_clients_send_them() -> None:
    for length in range(20):
        key = bytes(range(250, 250 - length, -1))
        assert murmur2(key) & 0x7FFFFFFF == kafkas_murmur2(key) & 0x7FFFFFFF


def test_stock_clients_of_three_brokers() -> None:
    with Cluster(3, topics={"orders": 1}) as cluster:
        assert cluster.brokers == [1, 2, 3] and len(cluster.bootstrap.split(",")) == 3
        with KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all") as producer:
            assert producer.send("orders", b"one").get(30).offset == 0
        other = Producer({"bootstrap.servers": str(cluster)})
        other.produce("orders", b"two")
        assert other.flush(30) == 0
        consumer = KafkaConsumer(
            "orders",
            bootstrap_servers=cluster.bootstrap,
            group_id="shop",
            auto_offset_reset="earliest",
            consumer_timeout_ms=30_000,
        )
        assert [next(consumer).value, next(consumer).value] == [b"one", b"two"]
        group = cluster.group("shop")
        assert group.state == "Stable" and len(group.members) == 1
        consumer.commit()
        assert group.offsets == {("orders", 0): 2} and group.lag == 0
        consumer.close()
        cluster.topic("orders").produce([b"three"])
        assert group.lag == 1
        group.set_offsets({("orders", 0): 1})
        assert group.offsets == {("orders", 0): 1} and group.lag == 2


def test_a_group_of_the_consumer_protocol() -> None:
    """KIP-848: seen and moved as a classic one is."""
    with Cluster(topics={"orders": 1}) as cluster:
        cluster.topic("orders").produce([b"one", b"two"])
        consumer = Consumer(
            {
                "bootstrap.servers": str(cluster),
                "group.id": "shop",
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe(["orders"])
        messages = consumer.consume(2, 30)
        assert [each.value() for each in messages] == [b"one", b"two"]
        group = cluster.group("shop")
        assert group.state == "Stable"
        assert [each.client_id for each in group.members] == ["rdkafka"]
        assert group.members[0].assigned == [("orders", 0)]
        consumer.commit(message=messages[0], asynchronous=False)
        consumer.close()
        assert group.state == "Empty" and group.lag == 1
        group.set_offsets({("orders", 0): 0})
        assert group.offsets == {("orders", 0): 0} and group.lag == 2


def test_an_aborted_transaction_is_seen_by_who_reads_uncommitted() -> None:
    with Cluster(topics={"orders": 1}) as cluster:
        producer = Producer({"bootstrap.servers": str(cluster), "transactional.id": "t"})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce("orders", b"never")
        producer.flush(30)
        producer.abort_transaction(30)
        orders = cluster.topic("orders")
        orders.produce([b"always"])
        committed = orders.records(at_least=1, isolation="read_committed")
        assert [each.value for each in committed] == [b"always"]
        assert [each.value for each in orders.records(at_least=2)] == [b"never", b"always"]


def test_a_directory_keeps_what_was_written(tmp_path: Path) -> None:
    for offset in (0, 1):
        with Cluster(data=tmp_path / "data") as cluster:
            assert cluster.topic("orders", 1).produce([b"one"]) == [(0, offset)]
    assert [*(tmp_path / "data").rglob(".kafka_cleanshutdown")] != []


def test_what_cannot_be_is_one_line() -> None:
    with pytest.raises(ClusterError, match=r"setting min\.insync\.replicas='many' is refused"):
        Cluster(settings={"min.insync.replicas": "many"})
    with pytest.raises(TypeError, match=r"the setting log\.dirs takes text"):
        Cluster(settings={"log.dirs": ["a"]})
    with pytest.raises(TypeError, match="a record has no values"):
        written({"values": b""})
    with pytest.raises(ValueError, match="is no duration"):
        in_seconds("soon")
    assert [in_seconds(each) for each in ("20ms", "1.5s", "2m", 3)] == [0.02, 1.5, 120.0, 3.0]
    with Cluster(topics={"orders": 2}) as cluster:
        with pytest.raises(ClusterError, match="topic orders has 2 partitions, not 3"):
            cluster.topic("orders", 3)
        with pytest.raises(ClusterTimeout, match=r"topic orders has 0 records after 0\.1 s"):
            cluster.topic("orders").records(at_least=1, within=0.1)
        with pytest.raises(ClusterError, match="topic orders has no partition 7"):
            cluster.topic("orders").produce([{"value": b"", "partition": 7}])
        assert "topic created" in cluster.log
        os.kill(cluster.pid, signal.SIGKILL)
        with pytest.raises(ClusterError, match=r"the cluster's process ended:(.|\n)*ready on"):
            cluster.topic("orders").records()


def test_asyncio_programs() -> None:
    async def shop() -> None:
        async with AsyncCluster(3, topics={"orders": 1}) as cluster:
            async with AIOKafkaProducer(bootstrap_servers=str(cluster)) as producer:
                await producer.send_and_wait("orders", b"one")
            orders = await cluster.topic("orders")
            assert await orders.produce([b"two"]) == [(0, 1)]
            assert [each.value for each in await orders.records(at_least=2)] == [b"one", b"two"]
            options = {"group_id": "shop", "auto_offset_reset": "earliest"}
            async with AIOKafkaConsumer(
                "orders", bootstrap_servers=str(cluster), **options
            ) as consumer:
                assert (await consumer.getone()).value == b"one"
                await consumer.commit()
                assert await cluster.group("shop").state() == "Stable"
                assert len(await cluster.group("shop").members()) == 1
            assert await cluster.group("shop").offsets() == {("orders", 0): 1}
            assert await cluster.group("shop").lag() == 1
            os.kill(cluster.pid, signal.SIGKILL)
            with pytest.raises(ClusterError, match="the cluster's process ended"):
                await orders.records()

    asyncio.run(shop())


@pytest.mark.parametrize("in_thread", [False, True])
def test_nothing_outlives_the_process_of_the_test(in_thread: bool) -> None:
    """Not even where it is killed, nor a cluster whose thread has ended before."""
    program = (
        "import threading, time\n"
        "from twisted_broker.testing import Cluster\n"
        "from twisted_broker.testing.template_client import template\n"
        "made = []\n"
        "make = lambda: made.append(Cluster())\n"
        + ("t = threading.Thread(target=make); t.start(); t.join()\n" if in_thread else "make()\n")
        + "made[0].topic('orders')\n"
        "print(made[0].pid, template()._process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=HERE
    ) as test:
        assert test.stdout is not None
        pids = [int(each) for each in test.stdout.readline().split()]
        test.kill()
    assert len(pids) == 2 and all(gone(pid, 1.0) for pid in pids)


def test_a_closed_cluster_is_gone_and_its_template_stays() -> None:
    with Cluster() as first:
        pass
    assert gone(first.pid, 1.0)
    first.close()
    with Cluster() as second:
        assert second.topic("orders").records() == []


SUITE = """
import pytest
from confluent_kafka import Consumer, Producer

def test_one(kafka):
    kafka.topic("orders").produce([b"one"])

def test_two_has_a_cluster_of_its_own(kafka):
    assert kafka.topic("orders").records() == []

@pytest.mark.kafka(brokers=3, topics={"orders": 2}, settings={"min.insync.replicas": 2})
def test_three_brokers(kafka):
    assert kafka.brokers == [1, 2, 3]
    assert kafka.topic("orders", 2).produce([b"one"]) == [(0, 0)]

@pytest.mark.parametrize("number", range(2))
def test_one_cluster_for_all(kafka_cluster, number):
    assert kafka_cluster.topic("shared").produce([b"one"]) == [(0, number)]

def test_red(kafka):
    kafka.topic("lost")
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "client.id": "shop"})
    producer.produce("lost", b"one")
    producer.flush(10)
    assert False

@pytest.mark.kafka(nodes=3)
def test_misspelt(kafka):
    pass
"""


def pytest_of(tmp_path: Path, suite: str, *options: str, status: int = 0) -> str:
    """What pytest says of a file alone in its folder, without a conftest."""
    (tmp_path / "test_shop.py").write_text(suite)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    environment = {name: text for name, text in os.environ.items() if name != "PYTEST_ADDOPTS"}
    done = subprocess.run(
        [*command, *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        env=environment | {"PYTHONPATH": str(HERE)},
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def test_the_fixtures(tmp_path: Path) -> None:
    said = pytest_of(tmp_path, SUITE, status=1)
    assert "6 passed" not in said and "1 failed, 5 passed, 1 error" in said, said
    assert "what kafka logged" in said and "topic created" in said and "topic=lost" in said
    assert "shop to broker-1: Produce v" in said and "lost: ok after" in said
    (saved,) = re.findall(r"requests of kafka's clients .all: (\S+) and .pcap", said)
    assert '"api": "Produce"' in Path(saved).read_text()
    assert "pytest.mark.kafka takes brokers, isolation, settings, topics, not nodes" in said
    assert re.search(r"what kafka logged \(--kafka-seed \d+\)", said)


SHARED = """
import pytest

SEEN = set()
NAMES = pytest.mark.kafka(isolation="names")

@NAMES
@pytest.mark.parametrize("number", range(2))
def test_tests_share_one(kafka, number, request):
    SEEN.add(kafka.pid)
    assert kafka.topic(kafka.name("orders")).produce([b"one"]) == [(0, 0)]
    assert len(SEEN) == 1 and kafka.heal() == []
    kafka.fail("Produce", "NOT_ENOUGH_REPLICAS")
    kafka.link("client", 1).cut()
    kafka.broker(1).freeze()

@pytest.mark.kafka(isolation="none")
def test_it_is_the_one_of_the_session(kafka, kafka_cluster):
    assert kafka.pid == kafka_cluster.pid and kafka.pid in SEEN

def test_others_have_their_own(kafka):
    assert kafka.pid not in SEEN
    rule = kafka.fail("Produce", "NOT_ENOUGH_REPLICAS", probability=0.5)

@pytest.mark.kafka(isolation="full")
def test_misspelt(kafka):
    pass
"""


def test_tests_share_a_cluster_whose_faults_are_healed_after_each(tmp_path: Path) -> None:
    options = ("--kafka-seed", "7", "--kafka-trace", "always", "-rP")
    said = pytest_of(tmp_path, SHARED, *options, status=1)
    assert "4 passed" in said and "1 error" in said, said
    assert "isolation is snapshot, names, none, not 'full'" in said
    for each in ("broker 1 is frozen", "the link of 1 and client is cut", "Produce: fail"):
        assert f"left it to others: {each} (test_shop.py:" in said, said


def test_a_template_starts_when_collection_has_found_a_test_that_needs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[bool] = []
    monkeypatch.setattr(template_client, "template", lambda: started.append(True))

    def collected(*names: str, only: bool = False) -> int:
        option = SimpleNamespace(
            collectonly=only, kafka_brokers=1, kafka_seed=None, kafka_trace="failed"
        )
        config = SimpleNamespace(option=option, stash=pytest.Stash())
        item = SimpleNamespace(
            config=config, fixturenames=names, iter_markers=lambda name: iter(())
        )
        session: Any = SimpleNamespace(items=[item], config=config)
        started.clear()
        pytest_plugin.pytest_collection_finish(session)
        return len(started)

    assert collected("tmp_path", "kafka") == collected("kafka_cluster") == 1
    assert collected("tmp_path") == collected("kafka", only=True) == 0


HANDED_ON = """
import os
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from twisted_broker.testing import ClusterError

SEEN, HELD = [], []
SETTINGS = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}
KIND = pytest.mark.kafka(topics={"orders": 1}, brokers=3, settings=SETTINGS)

def look(kafka):
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    topics = set(admin.list_topics(timeout=10).topics)
    groups = [each.group_id for each in admin.list_consumer_groups().result(10).valid]
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": "t"})
    producer.init_transactions(10)
    answered = [each.answer for each in kafka.trace.requests("InitProducerId")]
    ids = [each["producer_id"] for each in answered if each["producer_id"] >= 0]
    written = kafka.topic("orders").records()
    return topics, groups, ids, written, kafka.leader("orders", 0).id, "more" in kafka.log

def use(kafka):
    SEEN.append((look(kafka), kafka.pid, kafka.bootstrap))
    HELD.append(kafka)
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "shop"})
    consumer.subscribe(["orders"])
    kafka.topic("more").produce([b"one"])
    kafka.topic("orders").produce([b"one"])
    kafka.group("other").set_offsets({("orders", 0): 1})
    consumer.poll(0.1)
    consumer.close()
    assert "more" in kafka.log

@KIND
@pytest.mark.parametrize("number", range(3))
def test_it(kafka, number):
    use(kafka)
    if number == 1:
        kafka.snapshot()
        kafka.clock.advance("8d")
        kafka.group("g").set_offsets({("orders", 0): 1})
    assert SEEN[number][0] == SEEN[0][0]
    if number:
        assert SEEN[number][2] == SEEN[0][2], "it is handed on"
        with pytest.raises(ClusterError, match="is closed"):
            HELD[number - 1].topic("orders")

@KIND
def test_one_that_leaves_a_client(kafka):
    HELD.append(Producer({"bootstrap.servers": kafka.bootstrap}))
    HELD[-1].produce("left", b"one")
    HELD[-1].flush(10)

@KIND
def test_its_client_does_not_come_to_the_next_one(kafka):
    assert kafka.bootstrap != SEEN[0][2]
    SEEN.append((None, None, kafka.bootstrap))
    kafka.fail("Produce", "NOT_ENOUGH_REPLICAS", times=1)

@KIND
def test_nor_to_one_after_faults(kafka):
    assert kafka.bootstrap != SEEN[-1][2]
    SEEN.append((None, None, kafka.bootstrap))
    before = kafka.snapshot()
    kafka.broker(1).kill()
    kafka.restore(before)

@KIND
def test_nor_to_one_after_a_restore(kafka):
    assert kafka.bootstrap != SEEN[-1][2]
    os.kill(kafka.pid, 9)

@KIND
def test_one_that_died_is_made_anew(kafka):
    assert kafka.topic("orders").records() == []
"""


@pytest.mark.more
def test_a_cluster_is_handed_on_as_it_was(tmp_path: Path) -> None:
    """With no topic, group, transactional id, log, time or id of the test before; and not where a
    client of that one could come to it.
    """
    said = pytest_of(tmp_path, HANDED_ON)
    assert "8 passed" in said


def test_clients_log_in_where_settings_want_it() -> None:
    """The cluster itself is asked past the listener of clients."""
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{module} required user_a="b";',
    }
    for brokers in (1, 3):
        with Cluster(brokers, settings, topics={"orders": 1}) as cluster:
            login = {"sasl.mechanisms": "PLAIN", "sasl.username": "a", "sasl.password": "b"}
            config = {"bootstrap.servers": cluster.bootstrap, "security.protocol": "SASL_PLAINTEXT"}
            producer = Producer({**config, **login})
            producer.produce("orders", b"one")
            assert producer.flush(10) == 0
            assert [each.value for each in cluster.topic("orders").records()] == [b"one"]
            cluster.broker(1).restart()


def test_the_example_finds_what_a_naive_shop_loses(tmp_path: Path) -> None:
    for each in (HERE / "examples/shop").glob("*.py"):
        shutil.copy(each, tmp_path)
    suite = (tmp_path / "test_shop.py").read_text()
    assert "5 passed, 2 xfailed" in pytest_of(tmp_path, suite)


def test_workers_of_xdist_never_meet(tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    suite = "import pytest\n\n@pytest.mark.parametrize('n', range(8))\ndef test_it(kafka, n):\n"
    suite += "    assert kafka.topic('orders').produce([b'one']) == [(0, 0)]\n"
    assert "8 passed" in pytest_of(tmp_path, suite, "-n", "2")


def test_a_run_without_clusters_loads_nothing(tmp_path: Path) -> None:
    suite = "import sys\n\ndef test_it(pytestconfig):\n"
    suite += "    assert pytestconfig.pluginmanager.has_plugin('twisted-broker')\n"
    suite += "    found = {name for name in sys.modules if name.startswith('twisted')}\n"
    suite += "    assert found == {'twisted_broker', 'twisted_broker.testing', "
    suite += "'twisted_broker.testing.pytest_plugin'}\n"
    pytest_of(tmp_path, suite, "-p", "no:twisted")  # which imports the reactor


TRIAL = """
from twisted.trial.unittest import TestCase
from twisted_broker.testing import in_sync, records, trial

class Shop(TestCase):
    async def setUp(self):
        self.cluster = await trial.Cluster(3, topics={"orders": 1}).start()
        self.addCleanup(lambda: ensureDeferred(self.cluster.stop()))

    async def test_orders(self):
        orders = await self.cluster.topic("orders")
        self.assertEqual(await orders.produce([b"one"]), [(0, 0)])
        self.assertEqual([each.value for each in await orders.records(1)], [b"one"])
        group = self.cluster.group("shop")
        await group.set_offsets({("orders", 0): 0})
        self.assertEqual(await group.lag(), 1)
        await self.cluster.wait_until((records("orders") == 1) & in_sync(), within="10s")
        with self.assertRaisesRegex(TimeoutError, "it is 1$"):
            await self.cluster.wait_until(records("orders") == 2, within="50ms")

from twisted.internet.defer import ensureDeferred
"""


def test_twisteds_trial(tmp_path: Path) -> None:
    """The reactor is clean afterwards: trial fails a test that leaves a port or a timer."""
    passes(tmp_path, TRIAL)


PYTEST_TWISTED = """
import pytest_twisted
from twisted_broker.testing import trial

@pytest_twisted.async_yield_fixture
async def cluster():
    made = await trial.Cluster().start()
    yield made
    await made.stop()

@pytest_twisted.ensureDeferred
async def test_orders(cluster):
    orders = await cluster.topic("orders")
    assert await orders.produce([b"one"]) == [(0, 0)]

@pytest_twisted.inlineCallbacks
def test_more_orders(cluster):
    from twisted.internet.defer import ensureDeferred
    orders = yield ensureDeferred(cluster.topic("orders"))
    assert (yield ensureDeferred(orders.records())) == []
"""


def test_pytest_twisted(tmp_path: Path) -> None:
    pytest.importorskip("pytest_twisted")
    (tmp_path / "test_shop.py").write_text(PYTEST_TWISTED)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | {"PYTHONPATH": str(HERE)},
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr


class _Interrupted(Exception):
    pass


def test_a_call_that_is_interrupted_leaves_its_answer_to_nobody() -> None:
    """As Ctrl-C does, or the time-out of a test: the calls after it have answers of their own."""

    def interrupt(number: int, frame: object) -> None:
        raise _Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with Cluster(topics={"orders": 1}) as cluster:
            orders = cluster.topic("orders")
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(_Interrupted):
                orders.records(at_least=1, within="100ms")
            with pytest.raises(ClusterTimeout, match="not 2"):
                orders.records(at_least=2, within="150ms")
            assert orders.produce([b"one"]) == [(0, 0)]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_call_that_is_cancelled_leaves_its_answer_to_nobody() -> None:
    async def program() -> list[bytes | None]:
        async with AsyncCluster(topics={"orders": 1}) as cluster:
            orders = await cluster.topic("orders")
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(orders.records(at_least=1, within="100ms"), 0.05)
            with pytest.raises(ClusterTimeout, match="not 2"):
                await orders.records(at_least=2, within="150ms")
            assert await orders.produce([b"one"]) == [(0, 0)]
            return [each.value for each in await orders.records(at_least=1)]

    assert asyncio.run(program()) == [b"one"]


def test_a_port_can_be_given() -> None:
    """As programs have it whose address cannot be set."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with Cluster(settings={"listeners": f"PLAINTEXT://127.0.0.1:{port}"}) as cluster:
        assert cluster.bootstrap == f"127.0.0.1:{port}"
        assert cluster.topic("orders").produce([b"one"]) == [(0, 0)]


def test_a_closed_cluster_says_so() -> None:
    with Cluster() as cluster:
        first = cluster.broker(1)
    for call in (first.kill, lambda: cluster.topic("orders"), lambda: cluster.clock.advance(1)):
        with pytest.raises(ClusterError, match="the cluster is closed"):
            call()


def test_what_a_cluster_takes_is_said() -> None:
    with pytest.raises(TypeError, match="brokers takes a number, not '3'"):
        Cluster("3")
    with pytest.raises(TypeError, match="topics takes partitions by name"):
        Cluster(topics=["orders"])


def test_the_example_says_what_of_it_is_installed() -> None:
    """`pip install` of a folder with several modules refuses to guess."""
    project = tomllib.loads((HERE / "examples/shop/pyproject.toml").read_text())
    assert project["tool"]["setuptools"]["py-modules"] == ["shop"]
