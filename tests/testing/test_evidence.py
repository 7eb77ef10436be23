"""The trace of a test's cluster, and what must hold of what clients were told."""

from __future__ import annotations

import asyncio
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from twisted_broker.testing import (
    AsyncCluster,
    Cluster,
    ClusterError,
    ClusterTimeout,
    requests,
    transaction,
)
from twisted_broker.testing.told import Kept, Sent, lost, reordered, repeated
from twisted_broker.testing.trace import Peer, Trace

clients = pytest.mark.clients
AT_ONCE = 0.0


def produced(cluster: Cluster, values: list[bytes], **more: Any) -> None:
    config = {"bootstrap.servers": cluster.bootstrap, "client.id": "shop", "log_level": 0, **more}
    producer = Producer(config)
    for value in values:
        producer.produce("orders", value, partition=0)
        assert producer.flush(10) == 0


@clients
def test_requests_and_answers_are_read_from_the_trace(tmp_path: Path) -> None:
    with Cluster(topics={"orders": 1}) as cluster:
        cluster.topic("orders").produce([b"of the test itself"])
        produced(cluster, [b"1", b"2"])
        cluster.fail("Produce", "MESSAGE_TOO_LARGE", times=1)
        produced(cluster, [b"3"])
        found = cluster.trace.requests("Produce", topic="orders", client_id="shop")
        codes = [
            part["error_code"]
            for each in found
            if each.answer is not None
            for response in each.answer["responses"]
            for part in response["partition_responses"]
        ]
        assert codes == [0, 0, 10] and found[0].machine == "broker-1"
        assert found[0].request["acks"] == -1 and (found[0].seconds or 0) > 0
        assert cluster.trace.requests(topic="other") == []
        assert {each.client_id for each in cluster.trace.requests()} == {"shop"}
        cluster.trace.save(tmp_path / "orders")
    lines = [json.loads(line) for line in (tmp_path / "orders.jsonl").read_text().splitlines()]
    assert [each["api"] for each in lines].count("Produce") == len(found)
    assert packets(tmp_path / "orders.pcap") > len(lines)


def packets(path: Path) -> int:
    """How many a file has; each header is looked at."""
    content, count, at = path.read_bytes(), 0, 24
    assert struct.unpack_from("<IHH", content) == (0xA1B2C3D4, 2, 4)
    while at < len(content):
        _, _, size, whole = struct.unpack_from("<IIII", content, at)
        assert size == whole == struct.unpack_from(">H", content, at + 18)[0]
        assert content[at + 16] == 0x45 and content[at + 25] == 6
        at, count = at + 16 + size, count + 1
    assert at == len(content)
    return count


@clients
def test_what_clients_were_told_is_compared_with_what_is_there() -> None:
    with Cluster(topics={"orders": 1}) as cluster:
        produced(cluster, [b"1", b"2"])
        cluster.assert_nothing_lost("orders")
        cluster.assert_no_duplicates("orders")
        cluster.assert_order_kept("orders")
        cluster.lose_answer("Produce", times=1)
        produced(cluster, [b"3"])
        with pytest.raises(AssertionError, match="record b'3' is 2 times in partition 0, at offs"):
            cluster.assert_no_duplicates("orders")
        cluster.assert_nothing_lost("orders")
        with cluster.broker(1).crashed():
            pass
        with pytest.raises(AssertionError, match=r"b'1' of .* at offset 0 .*: nothing is there"):
            cluster.assert_nothing_lost("orders")


@clients
def test_conditions_on_transactions_and_requests() -> None:
    with Cluster(topics={"orders": 1}) as cluster:
        config = {"bootstrap.servers": cluster.bootstrap, "transactional.id": "t"}
        producer = Producer(config)
        producer.init_transactions(10)
        cluster.wait_until(transaction("t").state == "Empty", AT_ONCE)
        producer.begin_transaction()
        producer.produce("orders", b"1")
        producer.flush(10)
        cluster.wait_until((transaction("t").state == "Ongoing") & (requests("Produce") == 1))
        producer.commit_transaction(10)
        cluster.wait_until(transaction("t").state == "CompleteCommit", "10s")
        with pytest.raises(ClusterTimeout, match=r"requests.*it is 1"):
            cluster.wait_until(requests("Produce") >= 2, AT_ONCE)
        cluster.wait_until(transaction("u").state == "Dead", AT_ONCE)
        with pytest.raises(ValueError, match="is one of CompleteAbort"):
            cluster.wait_until(transaction("t").state == "Done")


@clients
def test_asyncio_programs_have_evidence_as_well(tmp_path: Path) -> None:
    async def shop() -> None:
        async with AsyncCluster(topics={"orders": 1}) as cluster:
            producer = Producer({"bootstrap.servers": cluster.bootstrap})
            producer.produce("orders", b"1")
            await asyncio.to_thread(producer.flush, 10)
            await cluster.assert_nothing_lost("orders")
            assert len(await cluster.trace.requests("Produce")) == 1
            await cluster.trace.save(tmp_path / "trace")

    asyncio.run(shop())
    assert (tmp_path / "trace.jsonl").exists()


def sent(value: bytes, offset: int | None, stream: str = "p") -> Sent:
    return Sent(stream, 0, None, value, offset)


def kept(*values: bytes) -> list[Kept]:
    return [Kept(0, offset, None, value) for offset, value in enumerate(values)]


def test_a_record_is_lost_where_another_stands_and_not_where_it_was_deleted() -> None:
    told = [sent(b"a", 0), sent(b"b", 1), sent(b"c", None)]
    assert lost(told, kept(b"a", b"b"), {}) == []
    (found,) = lost(told, kept(b"a", b"x"), {})
    assert found == (
        "record b'b' of p was acknowledged at offset 1 of partition 0: record b'x' is there"
    )
    assert lost(told, [], {0: 2}) == []
    many = [sent(b"%d" % number, number) for number in range(9)]
    assert lost(many, [], {})[-1] == "and 4 more"


def test_a_record_that_was_acknowledged_twice_was_meant_twice() -> None:
    assert repeated([sent(b"a", 0), sent(b"a", 1)], kept(b"a", b"a")) == []
    assert repeated([sent(b"a", None), sent(b"a", None)], kept(b"a")) == []
    assert repeated([sent(b"a", None), sent(b"a", 1)], kept(b"a", b"a")) == [
        "record b'a' is 2 times in partition 0, at offsets 0, 1: it was sent 2 times and "
        "acknowledged 1 times"
    ]


def test_order_is_of_one_producer_and_of_the_first_time() -> None:
    told = [sent(b"a", None), sent(b"b", None), sent(b"a", 0)]
    assert reordered(told, kept(b"a", b"b")) == []
    assert reordered(told, kept(b"a", b"b", b"a")) == []
    (found,) = reordered(told, kept(b"b", b"a"))
    assert found == "p sent record b'a' before what lies before offset 1 of partition 0"
    assert reordered([sent(b"a", 1, "p"), sent(b"b", 0, "q")], kept(b"b", b"a")) == []


def test_a_trace_keeps_its_last_bytes_and_reads_no_other_protocol() -> None:
    trace = Trace(most_bytes=100)
    number = trace.opened(Peer("broker-1", ("127.0.0.1", 1), ("127.0.0.1", 2)))
    frame = struct.pack(">ihhih", 40, 18, 0, 7, 1) + b"c" * 30
    for part in (frame[:3], frame[3:20], frame[20:] + frame + frame[:1], frame[1:], frame):
        trace.fed(0.0, number, True, part)
    assert [len(each.content) for each in trace.frames] == [40, 40]
    other = trace.opened(Peer("broker-1", ("127.0.0.1", 3), ("127.0.0.1", 2)))
    for part in (b"\x16\x03\x01\x02\x00tls", frame):
        trace.fed(0.0, other, True, part)
    assert all(each.connection == number for each in trace.frames)
    trace.closed(number)
    trace.closed(number)


def test_records_are_one_transaction_without_a_client() -> None:
    with Cluster(topics={"orders": 2}) as cluster:
        orders = cluster.topic("orders")

        def read() -> list[list[bytes | None]]:
            return [
                [each.value for each in orders.records(isolation=each)]
                for each in ("read_committed", "read_uncommitted")
            ]

        assert orders.produce([b"1", b"2"], transaction="commit") == [(0, 0), (1, 0)]
        orders.produce([b"3"], transaction="abort")
        orders.produce([{"value": b"4", "partition": 0}], transaction="open")
        orders.produce([{"value": b"5", "partition": 0}])
        committed, written = read()
        assert {*written} == {b"1", b"2", b"3", b"4", b"5"} and committed == [b"1", b"2"]
        (ended,) = cluster.clock.advance("75s")  # its time-out, looked at every 10 s
        assert ended.endswith("Ongoing -> CompleteAbort")
        assert {*read()[0]} == {b"1", b"2", b"5"}
        with pytest.raises(ClusterError, match="is to commit, abort, open, not 'end'"):
            orders.produce([b"6"], transaction="end")
