"""What is asked of a broker that has not heard of a topic yet, or does not serve it yet: the
condition is waited for.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from benchmarks import cluster_load, cluster_topic
from benchmarks.cluster_topic import IsrWatch, is_whole

BROKERS = {1: ("one", 1), 2: ("two", 2)}


class Late:
    """A broker whose first answers know nothing; `served` says which (broker, partition) it
    serves.
    """

    unknown_for = 0
    asked = 0
    served: set[tuple[str, int]] = set()

    def __init__(self, address: tuple[str, int]) -> None:
        self.name = address[0]

    def __enter__(self) -> Late:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def describe(self, topic: str) -> tuple[dict[int, Any], list[tuple[int, int]]]:
        Late.asked += 1
        return BROKERS, [] if Late.asked <= Late.unknown_for else [(1, 3), (2, 3), (1, 2)]

    def is_served(self, topic: str, partition: int) -> bool:
        return (self.name, partition) in Late.served


@pytest.fixture(autouse=True)
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    Late.asked, Late.unknown_for, Late.served = 0, 0, set()
    for module in (cluster_topic, cluster_load):
        monkeypatch.setattr(module, "Connection", Late)


def test_the_watch_waits_until_its_broker_knows_the_topic() -> None:
    """And counts what it is told from then on."""
    Late.unknown_for = 3
    with IsrWatch(("one", 1), "t") as watch:
        assert Late.asked >= 4
        began = time.monotonic()
        while watch.least > 3 and time.monotonic() - began < 10:
            time.sleep(0.001)
    assert watch.least == 2


def test_a_broker_that_does_not_know_the_topic_takes_no_records() -> None:
    """Whoever asks, asks again."""
    Late.unknown_for = 1
    assert not cluster_load._takes_records(Late(("one", 1)), "t", 1)


def test_a_topic_is_whole_when_each_leader_serves_it() -> None:
    """Each broker learns of its own leadership, at a time of its own."""
    asked = Late(("one", 1))
    assert not is_whole(asked, "t", 3, 2)
    Late.served = {("one", 2)}
    assert not is_whole(asked, "t", 3, 2)
    Late.served = {("one", 2), ("two", 1)}
    assert (
        is_whole(asked, "t", 3, 2)
        and not is_whole(asked, "t", 3, 3)
        and not is_whole(asked, "t", 4, 2)
    )
