"""The status port of a whole broker in memory: what is told, in which words, and what is
refused.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent

from tests.memory_broker import MemoryBroker
from tests.status.looking import Looking
from tests.test_broker import create, fetch, produce
from twisted_broker.interfaces import TopicPartition
from twisted_broker.settings import ConfigError
from twisted_broker.status import http_server
from twisted_broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from twisted_broker.wire.messages.offsets import (
    FindCoordinatorRequest,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker().start()


def test_a_partition_is_explained_as_json(broker: MemoryBroker) -> None:
    """Issue, explain: role, offsets, ISR, and the controller's word beside them."""
    create(broker, "orders", 2)
    produce(broker, "orders", b"a", b"b", b"c")
    told = Looking(broker).json("/explain/orders/0")
    assert (told["topic"], told["partition"], told["broker"], told["role"], told["leader"]) == (
        "orders",
        0,
        1,
        "leader",
        1,
    )
    assert (
        told["isr"],
        told["log_start"],
        told["high_watermark"],
        told["log_end"],
        told["out_of_sync"],
    ) == ([1], 0, 3, 3, [])
    assert (
        told["high_watermark_waits"] is None and told["waiting"] == [] and told["truncations"] == []
    )
    assert (
        told["metadata"]["leader"] == 1
        and told["metadata"]["isr"] == [1]
        and told["metadata"]["offset"] > 0
    )


def test_a_group_is_explained_as_json(broker: MemoryBroker) -> None:
    """By its coordinator; the reasons are in `test_group_explanation.py`."""
    broker.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=["a/g"]), 4)
    broker.pass_time(1)
    create(broker, "t")
    committed = OffsetCommitRequestTopic(
        name="t", partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=1)]
    )
    broker.ask(OffsetCommitRequest(group_id="a/g", topics=[committed]), 8)
    assert Looking(broker).json("/explain/a%2Fg") == {
        "broker": 1,
        "group": "a/g",
        "kind": "classic",
        "state": "Empty",
        "generation": 0,
        "leader": None,
        "why": [],
        "members": [],
    }


def test_a_waiting_consumer_is_seen(broker: MemoryBroker) -> None:
    """RL 1.9: a fetch that is parked is told while it waits, and no longer afterwards."""
    create(broker, "t")
    looking = Looking(broker)
    asked = FetchTopic(
        topic="t",
        partitions=[FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)],
    )
    connection = broker.connection()
    answer = connection.send(
        FetchRequest(max_wait_ms=20_000, min_bytes=1, max_bytes=1 << 20, topics=[asked]), 11
    )
    broker.pass_time(0.5)
    (waiting,) = looking.json("/explain/t/0")["waiting"]
    assert waiting["request"] == "Fetch" and waiting["why"].startswith(
        "a consumer reads from 0 up to the high watermark: 0 of 1 bytes"
    )
    assert (
        looking.numbers()[
            "kafka_server_delayedoperationpurgatory_numdelayedoperations"
            '{delayedOperation="Fetch",delayedoperation="Fetch"}'
        ]
        == 1
    )
    assert "1 request waits" in looking.get("/topics/t")[2]
    produce(broker, "t", b"a")
    broker.run(answer)
    assert looking.json("/explain/t/0")["waiting"] == []
    connection.close()


def test_numbers_have_kafkas_names_per_topic_and_in_total(broker: MemoryBroker) -> None:
    """RL 1.13: what clients did is counted once, under the names that dashboards for Kafka know."""
    create(broker, "t", 2)
    looking = Looking(broker)
    before = looking.numbers()
    produce(broker, "t", b"a", b"b")
    assert fetch(broker, "t") == [b"a", b"b"]
    after = looking.numbers()

    def grew(name: str) -> float:
        return after[name] - before.get(name, 0.0)

    size = broker.broker.parts.replica_manager.partitions[TopicPartition("t", 0)].log.size_in_bytes
    for labels in ("", '{topic="t"}'):
        prefix = "kafka_server_brokertopicmetrics_"
        assert grew(f"{prefix}messagesin_total{labels}") == 2
        assert (
            grew(f"{prefix}bytesin_total{labels}")
            == grew(f"{prefix}bytesout_total{labels}")
            == size
        )
        assert (
            grew(f"{prefix}totalproducerequests_total{labels}")
            == grew(f"{prefix}totalfetchrequests_total{labels}")
            == 1
        )
    assert (
        after["kafka_server_replicamanager_partitioncount"]
        == after["kafka_server_replicamanager_leadercount"]
        == 2
    )
    assert after["kafka_server_replicamanager_atminisrpartitioncount"] == 2, (
        "one replica, a minimum of one"
    )
    for name in (
        "underreplicatedpartitions",
        "underminisrpartitioncount",
        "offlinereplicacount",
        "reassigningpartitions",
    ):
        assert after[f"kafka_server_replicamanager_{name}"] == 0
    assert grew('kafka_network_requestmetrics_requests_total{request="Produce",version="7"}') == 1
    assert after['kafka_network_requestmetrics_remotetimems_count{request="Fetch"}'] >= 1, (
        "the metadata log is followed by waiting fetches"
    )
    assert (
        after['kafka_server_replicafetchermanager_maxlag{clientId="Replica",clientid="Replica"}']
        == 0
    )


def test_a_reads_bytes_count_when_they_are_sent(broker: MemoryBroker) -> None:
    """RL 1.13: a fetch that found too little, waited and read again has read once."""
    create(broker, "t")
    produce(broker, "t", b"a")
    looking = Looking(broker)
    asked = FetchTopic(
        topic="t",
        partitions=[FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)],
    )
    broker.ask(
        FetchRequest(max_wait_ms=200, min_bytes=100_000, max_bytes=1 << 20, topics=[asked]), 11
    )
    numbers = looking.numbers()
    assert (
        numbers["kafka_server_brokertopicmetrics_bytesout_total"]
        == numbers["kafka_server_brokertopicmetrics_bytesin_total"]
        > 0
    )


@pytest.mark.parametrize(
    "path",
    [
        "/nothing",
        "//",
        "/explain",
        "/explain/t",
        "/explain/none/0",
        "/explain/t/7",
        "/explain/t/x",
        "/explain/t/0/1",
        "/explain/t/-1",
        "/explain//0",
        "/explain/t/%C2%B2",
        "/explain/t/99999999999999999999",
        "/topics/none",
        "/topics/",
        "/topics/t/0",
    ],
)
def test_what_is_not_there_is_404_with_one_line(broker: MemoryBroker, path: str) -> None:
    """One line of text, whatever was asked."""
    create(broker, "t")
    status, headers, body = Looking(broker).get(path)
    assert (status, headers["content-type"]) == (404, "text/plain; charset=utf-8")
    assert body.count("\n") == 1 and body.endswith("\n")


def test_only_reading_is_served(broker: MemoryBroker) -> None:
    """POST is 405; HEAD is the answer without its body."""
    looking = Looking(broker)
    assert looking.get("/metrics", "POST")[0] == 405
    status, _, body = looking.get("/", "HEAD")
    assert (status, body) == (200, "")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("127.0.0.1:8080", 200),
        ("localhost:8080", 200),
        ("LocalHost.", 200),
        ("status.localhost", 200),
        ("[::1]:8080", 200),
        ("10.1.2.3:80", 200),
        ("kafka1.example.org:9100", 200),
        ("example.org", 421),
        ("localhost.example.org", 421),
        ("notlocalhost", 421),
        ("127.0.0.1.example.org:8080", 421),
        ("[example.org]:80", 421),
        ("", 421),
    ],
)
def test_only_its_own_names_are_served(host: str, status: int) -> None:
    """A page whose name leads to 127.0.0.1 would be let read what is there (DNS rebinding)."""
    broker = MemoryBroker(advertised_listeners="PLAINTEXT://Kafka1.example.org:9092").start()
    looking = Looking(broker)
    for path in ("/healthz", "/metrics"):
        found, headers, body = looking.get(path, host=host)
        assert found == status
        if status == 421:
            assert headers["content-type"] == "text/plain; charset=utf-8"
            assert body.count("\n") == 1 and "listeners" in body


def test_a_controller_shows_what_it_has() -> None:
    """Without a broker there are no partitions: its requests are counted, the page says what it
    is.
    """
    broker = MemoryBroker(
        process_roles="controller", listeners="CONTROLLER://127.0.0.1:9093"
    ).start()
    looking = Looking(broker)
    assert "Controller 1" in looking.get("/")[2]
    assert looking.get("/explain/t/0")[0] == 404
    assert not any("brokertopicmetrics" in name for name in looking.numbers())


def test_a_port_in_use_is_no_end_and_minus_one_is_none(broker: MemoryBroker) -> None:
    """The broker serves without it."""
    assert Looking(broker, 9092).port.address is None
    assert Looking(broker, -1).port.address is None
    with pytest.raises(ConfigError):
        MemoryBroker(replog_status_port="70000")


def test_closing_ends_connections(broker: MemoryBroker) -> None:
    """A browser that keeps its connection does not keep the broker; the port is free again."""
    looking = Looking(broker)
    kept = looking.ask("/")
    broker.pass_time(1)
    assert not kept.called and ("127.0.0.1", 8080) in broker.network.ports
    broker.run(looking.port.close())
    assert broker.run(kept).startswith(b"HTTP/1.1 200 OK")
    assert ("127.0.0.1", 8080) not in broker.network.ports and looking.port.address is None
    assert Looking(broker).get("/metrics")[0] == 200


class Loading:
    """The site is loaded in two steps, each when it is told; `error` ends the second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, broker: MemoryBroker) -> None:
        self.clock, self.error, self.begun = Clock(), "", 0
        monkeypatch.setattr(http_server, "_load_steps", self._steps)
        self.looking = Looking(broker, clock=self.clock)

    def _steps(self) -> Iterator[None]:
        self.begun += 1
        yield
        if self.error:
            raise ImportError(self.error)

    def step(self) -> None:
        """As one turn of a reactor: what it asks for is called in the next."""
        call = self.clock.calls.pop(0)
        call.called = 1
        call.func(*call.args)


def test_who_comes_while_the_site_is_loaded_waits(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is loaded once, in steps between which others are served; who goes is not waited for."""
    loading = Loading(monkeypatch, broker)
    first = loading.looking.ask("/healthz")
    broker.pass_time(1)
    asked = [loading.looking.ask("/healthz", more="Connection: close\r\n") for _ in range(15)]
    gone = broker.run(broker.network.connect("127.0.0.1", 8080, Factory.forProtocol(Protocol), 10))
    assert broker.run(first) == b"", "the oldest makes room for a seventeenth"
    loading.step()
    gone.transport.abortConnection()
    broker.pass_time(1)
    asked.append(loading.looking.ask("/healthz", more="Connection: close\r\n"))
    broker.pass_time(1)
    assert not any(each.called for each in asked)
    loading.step()
    for each in asked:
        assert broker.run(each).startswith(b"HTTP/1.1 200 OK")
    assert loading.begun == 1 and loading.looking.get("/healthz")[0] == 200


def test_closing_ends_those_that_wait(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    loading = Loading(monkeypatch, broker)
    waiting = loading.looking.ask("/healthz")
    broker.pass_time(1)
    broker.run(loading.looking.port.close())
    assert broker.run(waiting) == b"" and not loading.clock.getDelayedCalls()


def test_a_site_that_cannot_be_loaded_is_tried_again(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    loading = Loading(monkeypatch, broker)
    loading.error = "no such module"
    for body, begun in ((b"", 1), (b"HTTP/1.1 200 OK", 2)):
        asked = loading.looking.ask("/healthz", more="Connection: close\r\n")
        broker.pass_time(1)
        with capturedLogs() as events:
            loading.step()
            loading.step()
        assert broker.run(asked).startswith(body) and loading.begun == begun
        told = "loading the status pages failed" in [formatEvent(each) for each in events]
        assert told is bool(loading.error)
        loading.error = ""


def test_nothing_of_it_is_loaded_before_somebody_comes() -> None:
    """The start and an idle broker pay for neither twisted.web nor prometheus-client."""
    program = (
        "import sys, twisted_broker.tap, twisted_broker.broker_service, "
        "twisted_broker.local_cluster\n"
        "print([name for name in ('twisted.web', 'prometheus_client', "
        "'twisted_broker.replication.explain.explanation') if name in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"
