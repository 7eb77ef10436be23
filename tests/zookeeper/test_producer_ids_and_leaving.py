"""Producer ids by block, controlled shutdown and a failed directory, as ZooKeeper mode has them."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred, ensureDeferred, fail, succeed

from tests.zookeeper.test_membership import Joining
from twisted_broker.cluster.broker_lifecycle_manager import BrokerState
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.zookeeper.controller_requests import ZnodeProducerIds
from twisted_broker.zookeeper.protocol_versions import IBP_2_6

BLOCK = "/latest_producer_id_block"


class Ids(Joining):
    """Broker 1 hands out producer ids at protocol 2.6."""

    def __init__(self) -> None:
        super().__init__(IBP_2_6)
        self.join()
        self.ids = ZnodeProducerIds(
            self.runtime, 1, SimpleNamespace(), self.membership, self.zookeeper
        )

    def next(self) -> int:
        return self.done(ensureDeferred(self.ids.next()))


def test_the_first_block_makes_the_node() -> None:
    ids = Ids()
    assert [ids.next() for _ in range(3)] == [0, 1, 2]
    wanted = {"version": 1, "broker": 1, "block_start": "0", "block_end": "999"}
    assert json.loads(ids.ensemble.node(BLOCK).data) == wanted


def test_blocks_follow_that_of_another_broker() -> None:
    """What Kafka's ZkProducerIdManager wrote; and after 1,000 ids the next block."""
    ids = Ids()
    theirs = {"version": 1, "broker": 7, "block_start": "5000", "block_end": "5999"}
    ids.ensemble.create(BLOCK, json.dumps(theirs).encode())
    assert [ids.next() for _ in range(1000)] == [*range(6000, 7000)]
    ids.ensemble.set(
        BLOCK, json.dumps(theirs | {"block_start": "7000", "block_end": "7999"}).encode()
    )
    assert ids.next() == 8000


@pytest.mark.parametrize("is_there", [False, True])
def test_a_race_that_is_lost_is_run_again(is_there: bool) -> None:
    """Another broker took the block between our read and our write: nobody gets an id twice."""
    ids = Ids()
    theirs = {"version": 1, "broker": 7, "block_start": "0", "block_end": "999"}
    if is_there:
        ids.ensemble.create(BLOCK, json.dumps(theirs).encode())
    name = "set" if is_there else "create"
    real = getattr(ids.zookeeper, name)
    lost: list[str] = []

    def late(path: str, *arguments: Any, **options: Any) -> Any:
        if not lost:
            lost.append(path)
            if is_there:
                again = theirs | {"block_start": "1000", "block_end": "1999"}
                ids.ensemble.set(path, json.dumps(again).encode())
            else:
                ids.ensemble.create(path, json.dumps(theirs).encode())
        return real(path, *arguments, **options)

    setattr(ids.zookeeper, name, late)
    assert ids.next() == (2000 if is_there else 1000)
    assert lost == [BLOCK]


class Leaving(Joining):
    """Serves; `answers` are the controller's, in order: partitions that are still led here, or what
    goes wrong.
    """

    def __init__(self, *answers: int | Exception) -> None:
        super().__init__()
        self.join()
        self.membership.state = BrokerState.RUNNING
        self.answers = [*answers]
        self.sent: list[Any] = []
        self.membership.use_channel(self)

    def send_until_answered(self, request: Any, version: int) -> Deferred[Any]:
        self.sent.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            return fail(answer)
        return succeed(SimpleNamespace(error_code=0, remaining_partitions=[None] * answer))

    def leave(self) -> list[None]:
        left: list[None] = []
        self.membership.controlled_shutdown().addCallback(left.append)
        return left


def test_a_controlled_shutdown_is_tried_again_until_nothing_is_led_here() -> None:
    """`controlled.shutdown.retry.backoff.ms` between two tries; an error counts as one."""
    leaving = Leaving(2, BrokerError(ErrorCode.STALE_CONTROLLER_EPOCH), 0)
    left = leaving.leave()
    for count in (1, 2):
        assert len(leaving.sent) == count and not left
        leaving.turns(4.9)
        assert len(leaving.sent) == count
        leaving.turns(0.2)
    assert left == [None] and len(leaving.sent) == 3
    assert {each.broker_epoch for each in leaving.sent} == {leaving.membership.broker_epoch}


def test_a_controlled_shutdown_is_given_up_after_so_many_tries() -> None:
    """`controlled.shutdown.max.retries`: 3."""
    leaving = Leaving(1, 1, 1)
    left = leaving.leave()
    leaving.turns(5.1)
    leaving.turns(5.1)
    assert left == [None] and not leaving.answers
    assert leaving.membership.state is BrokerState.SHUTTING_DOWN


def test_a_failed_directory_is_announced() -> None:
    """The controller reads by LeaderAndIsr what is offline here."""
    joining = Joining()
    joining.ensemble.create("/log_dir_event_notification", b"")
    joining.join()
    joining.membership.directory_failed(bytes(16))
    joining.turns()
    (path,) = [each for each in joining.ensemble.nodes if "/log_dir_event_" in each[5:]]
    assert path.startswith("/log_dir_event_notification/log_dir_event_")
    assert json.loads(joining.ensemble.node(path).data) == {"version": 1, "broker": 1, "event": 1}
