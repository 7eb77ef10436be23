"""The numbers that the contract names are told, under its names, and are true (RL 1.13)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.memory_broker import MemoryBroker
from tests.status.looking import Looking
from tests.test_broker import fetch, produce
from tests.test_broker_joining import memory_broker
from twisted_broker.interfaces import TopicPartition
from twisted_broker.wire.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)

CONTRACT = Path(__file__).parents[2] / "docs" / "REPLICA_LAYER.md"
_LINE = re.compile(r"^13\. Metrics under Kafka's names.*?(?=^14\. )", re.MULTILINE | re.DOTALL)
_IN_WORDS = {
    "per fetcher requests": "kafka_server_fetcherstats_requests_total",
    "bytes, lag": "kafka_server_fetcherstats_bytes_total",
    "lag per\n   partition": "kafka_server_fetcherlagmetrics_consumerlag",
    "queue": "kafka_network_requestmetrics_requestqueuetimems_count",
    "local": "kafka_network_requestmetrics_localtimems_count",
    "remote": "kafka_network_requestmetrics_remotetimems_count",
    "throttle": "kafka_network_requestmetrics_throttletimems_count",
    "response": "kafka_network_requestmetrics_responsesendtimems_count",
}


def names_in_the_contract() -> list[str]:
    """Kafka's names as line 1.13 has them, `...In/Out` being two."""
    found = _LINE.search(CONTRACT.read_text())
    assert found is not None
    line = re.sub(r"\b(\w+)In/Out\b", r"\1In \1Out", found[0])
    assert all(words in line for words in _IN_WORDS), "the contract's words are others"
    return re.findall(r"\b[A-Z][a-z]+(?:[A-Z][a-z]+)+\b", line)


class Pair:
    """Broker 1, which is also the controller and leads `t`, and broker 2, which follows;
    `numbers(1)` is what 1 tells.
    """

    def __init__(self) -> None:
        self.one = MemoryBroker().start()
        self.two = memory_broker(self.one, node_id=2, port=9094).start()
        self.looking = {1: Looking(self.one), 2: Looking(self.two, 8082)}
        placed = [CreatableReplicaAssignment(partition_index=0, broker_ids=[1, 2])]
        asked = CreatableTopic(
            name="t", num_partitions=-1, replication_factor=-1, assignments=placed
        )
        assert (
            self.one.ask(CreateTopicsRequest(topics=[asked], timeout_ms=1000), 7, port=9093)
            .topics[0]
            .error_code
            == 0
        )
        self.one.pass_time(1)

    def numbers(self, broker: int) -> dict[str, float]:
        return self.looking[broker].numbers()

    def stop(self) -> None:
        self.two.stop()
        self.one.stop()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.stop()


def test_every_name_of_the_contract_is_shown(pair: Pair) -> None:
    """RL 1.13: read out of the contract's text; per topic and in total where it says so."""
    told = pair.numbers(1).keys() | pair.numbers(2).keys()
    bare = {sample.partition("{")[0] for sample in told}
    names = names_in_the_contract()
    assert len(names) == len(set(names)) == 27
    missing = [
        name
        for name in names
        if not any(sample.removesuffix("_total").endswith(f"_{name.lower()}") for sample in bare)
    ]
    missing += [words for words, sample in _IN_WORDS.items() if sample not in bare]
    assert missing == []
    for name in names[: names.index("LeaderCount")]:
        total = f"kafka_server_brokertopicmetrics_{name.lower()}_total"
        assert {total, f'{total}{{topic="t"}}'} <= told


def test_what_was_replicated_is_the_same_on_both_sides(pair: Pair) -> None:
    """RL 1.13: bytes in, bytes that a follower read, bytes that it wrote, bytes its fetcher
    took: one number; no lag is left.
    """
    before = {broker: pair.numbers(broker) for broker in (1, 2)}
    produce(pair.one, "t", b"a", b"b")
    pair.one.pass_time(1)
    after = {broker: pair.numbers(broker) for broker in (1, 2)}

    def grew(broker: int, name: str) -> float:
        return after[broker][name] - before[broker].get(name, 0.0)

    size = pair.one.broker.parts.replica_manager.partitions[
        TopicPartition("t", 0)
    ].log.size_in_bytes
    name = "ReplicaFetcherThread-0-1"
    labels = f'clientId="{name}",broker="127.0.0.1:9092"'
    assert grew(1, 'kafka_server_brokertopicmetrics_bytesin_total{topic="t"}') == size > 0
    assert grew(1, 'kafka_server_brokertopicmetrics_replicationbytesout_total{topic="t"}') == size
    assert grew(2, 'kafka_server_brokertopicmetrics_replicationbytesin_total{topic="t"}') == size
    assert grew(2, f"kafka_server_fetcherstats_bytes_total{{{labels}}}") == size
    assert grew(2, f"kafka_server_fetcherstats_requests_total{{{labels}}}") >= 2
    lag = (
        "kafka_server_fetcherlagmetrics_consumerlag"
        f'{{clientId="{name}",topic="t",partition="0",clientid="{name}"}}'
    )
    assert (
        after[2][lag]
        == after[2][
            'kafka_server_replicafetchermanager_maxlag{clientId="Replica",clientid="Replica"}'
        ]
        == 0
    )
    assert (
        after[2][
            'kafka_server_replicafetchermanager_minfetchrate{clientId="Replica",clientid="Replica"}'
        ]
        > 0
    )
    assert [after[broker]["kafka_server_replicamanager_partitioncount"] for broker in (1, 2)] == [
        1,
        1,
    ]
    assert [after[broker]["kafka_server_replicamanager_leadercount"] for broker in (1, 2)] == [1, 0]


def test_a_follower_that_left_is_seen_in_the_numbers(pair: Pair) -> None:
    """RL 1.13: UnderReplicatedPartitions; the ISR that the controller made smaller is no
    IsrShrinks of this leader.
    """
    assert pair.numbers(1)["kafka_server_replicamanager_underreplicatedpartitions"] == 0
    pair.two.stop()
    pair.one.pass_time(15)
    numbers = pair.numbers(1)
    assert numbers["kafka_server_replicamanager_underreplicatedpartitions"] == 1
    assert numbers["kafka_server_replicamanager_atminisrpartitioncount"] == 1
    assert numbers["kafka_server_replicamanager_isrshrinks_total"] == 0
    assert fetch(pair.one, "t") == []
