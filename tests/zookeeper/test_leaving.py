"""Controlled shutdown and a failed directory, as ZooKeeper mode has them."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from twisted.internet.defer import Deferred, fail, succeed

from tests.zookeeper.test_membership import NODE, Joining
from twisted_broker.cluster.broker_lifecycle_manager import BrokerState
from twisted_broker.wire.errors import BrokerError, ErrorCode


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


def test_a_controlled_shutdown_ends_with_the_session() -> None:
    """Simulation, ZooKeeper seed 3696: nobody answered a broker that was registered no more, and
    its stop took three requests of 30 s.
    """
    leaving = Leaving(2)
    left = leaving.leave()
    assert not left
    leaving.zookeeper.expire()
    assert left == [None] and leaving.membership.state is BrokerState.SHUTTING_DOWN
    leaving.zookeeper.connect()
    leaving.turns()
    assert not leaving.fatal and NODE not in leaving.ensemble.nodes


def test_who_is_not_registered_leaves_at_once() -> None:
    """The session ended before the stop: the registration that is under way is given up."""
    for reconnected in (False, True):
        leaving = Leaving()
        leaving.zookeeper.expire()
        if reconnected:
            leaving.ensemble.create(NODE, b"{}", owner=99)
            leaving.zookeeper.connect()
            leaving.turns()
        assert leaving.leave() == [None] and not leaving.sent
        leaving.turns(60)
        assert leaving.membership.state is BrokerState.SHUTTING_DOWN and not leaving.fatal


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
