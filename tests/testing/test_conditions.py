"""What tests wait for, as values, and in real clusters."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from twisted_broker.testing import (
    AsyncCluster,
    Cluster,
    ClusterError,
    ClusterTimeout,
    Condition,
    group,
    high_watermark,
    in_sync,
    isr,
    leader,
    log_end,
    records,
)

pytestmark = pytest.mark.clients


def test_a_condition_is_read_as_it_is_written_and_goes_through_json() -> None:
    whole = (isr("orders", 0) == {2, 1}) & in_sync() & ~(leader("orders", 0) == None)  # noqa: E711
    either = whole | (group("shop").state == "Stable") | (group("shop").lag <= 3)
    text = (
        '((isr("orders", 0) == {1, 2}) & (in_sync()) & (~(leader("orders", 0) == None)))'
        ' | (group("shop").state == "Stable") | (group("shop").lag <= 3)'
    )
    assert str(either) == text
    assert str(Condition(json.loads(json.dumps(either.form)))) == text


WRONG: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "name": (
        lambda: group("g").lagg,
        AttributeError,
        "a group has assigned.client., lag, members, state, not lagg",
    ),
    "state": (lambda: group("g").state == "stable", ValueError, "is one of .*Stable, not 'stable'"),
    "operator": (lambda: leader("o", 0) >= 1, TypeError, "is compared with ==, !=, not >="),
    "less": (lambda: records("o") > 1, TypeError, "is compared with ==, !=, >=, <=, not >"),
    "isr": (lambda: isr("o", 0) == 1, TypeError, "is a set of broker ids, not 1"),
    "number": (lambda: log_end("o", 0) >= "1", TypeError, "is a number, not '1'"),
    "partition": (lambda: isr("o", "0") == {1}, TypeError, "the partition of .* is a number"),
    "and": (lambda: in_sync() and in_sync(), TypeError, "join conditions with &, | and ~"),
    "not compared": (lambda: bool(isr("o", 0)), TypeError, r"compare it: isr\(\"o\", 0\) == \.\."),
    "precedence": (lambda: in_sync() & {1}, TypeError, "put each comparison in parentheses"),  # type: ignore[operator]
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_refused_where_it_is_written(what: str) -> None:
    make, kind, said = WRONG[what]
    with pytest.raises(kind, match=said):
        make()


def test_what_holds_and_what_a_time_out_says() -> None:
    with Cluster(3, topics={"orders": 2}) as cluster:
        cluster.wait_until((isr("orders", 0) == {1, 2, 3}) & in_sync(), within="10s")
        cluster.topic("orders").produce([b"one"] * 10)
        cluster.wait_until(
            (records("orders") >= 10)
            & (high_watermark("orders", 1) == 5)
            & (log_end("orders", 0) == 5)
        )
        cluster.group("shop").set_offsets({("orders", 0): 2})
        cluster.wait_until((group("shop").state == "Empty") & (group("shop").lag == 3))
        cluster.wait_until((isr("orders", 0) >= {1, 2}) & (isr("orders", 0) <= {1, 2, 3, 4}))
        for condition, said in (
            (isr("orders", 0) == {1}, r'^isr\("orders", 0\) == \{1\} does not hold after 0.05 s:'),
            (isr("orders", 0) != {1, 2, 3}, r"it is \{1, 2, 3\}$"),
            (records("orders") >= 11, "it is 10$"),
            (group("shop").members == 2, "it is 0$"),
            (isr("lost", 0) == {1}, r"there is no topic lost \(there are: orders\)$"),
            # what is not there is neither equal nor different
            (~(isr("lost", 0) == {1}), "there is no topic lost"),
            (leader("orders", 2) != 1, "topic orders has 2 partitions, none is orders-2$"),
            (in_sync() & (log_end("orders", 0) == 6), r"in_sync\(\): it is True; log_end\("),
            (in_sync() & (log_end("orders", 0) == 6), r"\) == 6: it is 5$"),
        ):  # fmt: skip
            with pytest.raises(ClusterTimeout, match=said):
                cluster.wait_until(condition, within="50ms")
        with cluster.broker(3).frozen(), cluster.link(1, 2).delayed("1ms"):
            line = sys._getframe().f_lineno - 1
            said = rf"broker 3 is frozen \(test_conditions.py:{line}\); the link of 1 and 2 is slow"
            with pytest.raises(ClusterTimeout, match=said):
                cluster.wait_until(log_end("orders", 0) == 6, within=0)
        with pytest.raises(ClusterTimeout, match=r"it is 5$"):
            cluster.wait_until(log_end("orders", 0) == 6, within=0)
        with pytest.raises(TypeError, match="True is no condition"):
            cluster.wait_until(True)
        with pytest.raises(ClusterError, match=r"no condition: there are isr, .*, not 'isrs'"):
            cluster.wait_until(Condition({"what": "isrs", "is": "==", "value": []}))


def test_a_wait_ends_when_a_record_comes() -> None:
    """Of another program: a call of the cluster itself would wait for its turn."""
    from confluent_kafka import Producer

    def write() -> None:
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        producer.produce("orders", b"one")
        producer.flush(30)

    with Cluster(topics={"orders": 1}) as cluster:
        writing = threading.Thread(target=write)
        writing.start()
        cluster.wait_until(records("orders") == 1, within="30s")
        writing.join()


def test_asyncio_programs_wait() -> None:
    async def shop() -> None:
        async with AsyncCluster(topics={"orders": 1}) as cluster:
            await cluster.wait_until(leader("orders", 0) == 1, within="10s")
            with pytest.raises(ClusterTimeout, match=r"it is 1$"):
                await cluster.wait_until(leader("orders", 0) != 1, within=0.05)

    asyncio.run(shop())
