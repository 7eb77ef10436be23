"""As of when this member of a ZooKeeper cluster knows that it has the roles that it has.

Owns `ConfirmedRoles`, which `StaleRoles` asks after this process stood still. The controller sends
roles; there is no log of them that could be read to its end.

1. The controller takes roles of a broker whose node is gone, and gives all of them anew to one that
   comes back. So they are confirmed when the ensemble has this broker's node after the stop, of the
   broker epoch under which the controller gave the newest roles.
2. Roles that it moves between live brokers meanwhile lie in the sockets, and are read before the
   ensemble answers, as a rule: a few turns of the reactor pass.
3. It is asked, once in `_AGAIN_SECONDS`, until they are confirmed.

Source: our own; `KafkaController.onBrokerFailure`, `onBrokerStartup`. State: two times; a restart
begins anew. Not here: what a stop is (`cluster/stale_roles.py`), the session (`membership.py`).
"""

from __future__ import annotations

from twisted.python.failure import Failure

from twisted_broker.interfaces import IClock, IDelayedCall
from twisted_broker.zookeeper.cluster_state import ClusterState
from twisted_broker.zookeeper.port import IZooKeeper, NodeStat, ZooKeeperError
from twisted_broker.zookeeper.znodes import broker_path

_AGAIN_SECONDS = 0.5


class ConfirmedRoles:
    """`caught_up_as_of`: when the question was asked whose answer confirmed the roles."""

    def __init__(
        self, clock: IClock, zookeeper: IZooKeeper, state: ClusterState, node_id: int
    ) -> None:
        self.caught_up_as_of = -1.0
        self._clock, self._zookeeper, self._state = clock, zookeeper, state
        self._path = broker_path(node_id)
        self._wanted = -1.0
        self._is_asking = self._stopped = False
        self._later: IDelayedCall | None = None

    def hurry(self) -> None:
        """They are to be confirmed as of now."""
        self._wanted = self._clock.seconds()
        if not self._is_asking:
            self._is_asking = True
            self._ask()

    def stop(self) -> None:
        """Asks no more."""
        self._stopped = True
        if self._later is not None:
            self._later.cancel()
            self._later = None

    def _ask(self) -> None:
        self._later = None
        sent = self._clock.seconds()
        answer = self._zookeeper.get(self._path)
        answer.addCallbacks(self._found, self._not_found, callbackArgs=(sent,))
        answer.addBoth(self._go_on)

    def _found(self, node: tuple[bytes, NodeStat], sent: float) -> None:
        if node[1].czxid == self._state.broker_epoch == self._state.roles_epoch:
            self.caught_up_as_of = sent

    def _not_found(self, failure: Failure) -> None:
        failure.trap(ZooKeeperError)

    def _go_on(self, _: object) -> None:
        if self._stopped or self.caught_up_as_of >= self._wanted:
            self._is_asking = False
        else:
            self._later = self._clock.callLater(_AGAIN_SECONDS, self._ask)
