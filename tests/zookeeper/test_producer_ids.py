"""Blocks of producer ids from `/latest_producer_id_block`."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock

from tests.cluster.test_broker_requests import given
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.zookeeper.forwarding import ZnodeProducerIds
from twisted_broker.zookeeper.port import BadVersionError, NodeExistsError, NodeStat, NoNodeError
from twisted_broker.zookeeper.znodes import PRODUCER_ID_BLOCK, producer_block_json


class Znode:
    """The one znode; `others` write it that many times before this broker does."""

    def __init__(self, last_start: int | None = None) -> None:
        self.data = None if last_start is None else producer_block_json(7, last_start)
        self.version, self.others = 0, 0

    def get(self, path: str) -> Deferred[tuple[bytes, NodeStat]]:
        assert path == PRODUCER_ID_BLOCK
        if self.data is None:
            return fail(NoNodeError())
        return succeed((self.data, NodeStat(self.version, 0, 0)))

    def create(self, path: str, data: bytes) -> Deferred[tuple[str, NodeStat]]:
        assert self.data is None
        if self.others:
            self.others -= 1
            self.data = producer_block_json(7, 0)
            return fail(NodeExistsError())
        self.data = data
        return succeed((path, NodeStat(0, 0, 0)))

    def set(self, path: str, data: bytes, version: int) -> Deferred[int]:
        if self.others:
            self.others -= 1
            self.data = producer_block_json(7, int(json.loads(self.data or b"")["block_end"]) + 1)
            self.version += 1
        if version != self.version:
            return fail(BadVersionError())
        self.data, self.version = data, self.version + 1
        return succeed(self.version)

    @property
    def start(self) -> int:
        return int(json.loads(self.data or b"")["block_start"])


def of(znode: Znode, clock: Clock) -> ZnodeProducerIds:
    runtime: Any = SimpleNamespace(clock=clock, now_ms=lambda: round(clock.seconds() * 1000))
    nobody = cast(Any, None)
    return ZnodeProducerIds(runtime, 2, nobody, nobody, cast(Any, znode))


def test_the_first_block_makes_the_znode() -> None:
    """As Kafka's ZkProducerIdManager writes it."""
    znode = Znode()
    assert given(of(znode, Clock())) == 0
    wanted = {"version": 1, "broker": 2, "block_start": "0", "block_end": "999"}
    assert json.loads(znode.data or b"") == wanted


def test_a_znode_that_another_broker_makes_first_is_read() -> None:
    znode = Znode()
    znode.others = 1
    assert given(of(znode, Clock())) == 1000


def test_a_block_that_another_broker_takes_is_left_to_it() -> None:
    """`testGetProducerIdZk` of Kafka's `ProducerIdManagerTest`, with writes that lose."""
    znode = Znode()
    ids = of(znode, Clock())
    assert [given(ids) for _ in range(1000)] == list(range(1000))
    znode.others = 2
    assert given(ids) == 3000 and znode.start == 3000


def test_no_block_is_written_that_is_beyond_the_last_producer_id() -> None:
    """`testExceedProducerIdLimitZk` of Kafka's `ProducerIdManagerTest`."""
    znode = Znode(2**63 - 1500)
    before = znode.data
    assert given(of(znode, Clock())) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert (znode.data, znode.version) == (before, 0)


def test_a_znode_that_went_back_is_passed() -> None:
    """Someone deleted it: no id is given a second time by this broker, and it comes to new ones."""
    znode, clock = Znode(4000), Clock()
    ids = of(znode, clock)
    assert [given(ids) for _ in range(1000)] == list(range(5000, 6000))
    znode.data = producer_block_json(7, 3000)
    for start in (4000, 5000):
        assert given(ids) is ErrorCode.UNKNOWN_SERVER_ERROR and znode.start == start
        clock.advance(0.05)
    assert given(ids) == 6000
