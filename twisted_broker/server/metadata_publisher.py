"""Takes changes of the metadata over into a broker: settings first, then roles.

Owns `BrokerMetadataPublisher` and the pieces that wait.

1. Of the metadata before this broker's registration only the outcome counts: nothing is taken over
   until `first_publish`, which takes the whole image as one change.
2. Many partitions are taken over in several turns: their files are made on the way, and heartbeats
   must not wait for a thousand of them.
3. Coordinators subscribe to the image themselves.

Source: Kafka's `BrokerMetadataPublisher`. Not here: what a delta does to replicas
(`replication/role_change.py`), who publishes (`kraft_membership.py`, `zookeeper_membership.py`).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from twisted.logger import Logger

from twisted_broker.image.metadata_image import MetadataDelta, MetadataImage
from twisted_broker.turns import SECONDS_PER_TURN, Turns

if TYPE_CHECKING:
    from twisted_broker.broker_config import LiveConfig
    from twisted_broker.cluster.directory_assignments import DirectoryAssignments
    from twisted_broker.image.metadata_delta import Removals
    from twisted_broker.interfaces import IClock, IDelayedCall
    from twisted_broker.replication.replica_manager import ReplicaManager
    from twisted_broker.security.quota.quotas import Quotas

_logger = Logger(namespace="replog")

# Making the log of a new partition takes a millisecond, opening an old one 30 us. A turn is over
# after its time; the number is for a clock that stands still within a turn.
_PARTITIONS_A_PIECE, _PIECES_A_TURN = 10, 5


class BrokerMetadataPublisher:
    """`assignments` None: the cluster knows of no directories."""

    def __init__(
        self,
        clock: IClock,
        config: LiveConfig,
        turns: Turns,
        quotas: Quotas,
        replica_manager: ReplicaManager,
        assignments: DirectoryAssignments | None,
    ) -> None:
        self.caught_up = False
        """whether the metadata up to this broker's registration is there"""
        self._clock, self._config, self._turns, self._quotas = clock, config, turns, quotas
        self._replica_manager, self._assignments = replica_manager, assignments
        self._deltas: deque[MetadataDelta] = deque()
        self._delta_call: IDelayedCall | None = None
        self._is_taking_deltas = False

    @property
    def is_behind(self) -> bool:
        """Whether changes wait for their turn."""
        return bool(self._deltas)

    async def first_publish(self, image: MetadataImage, removals: Removals | None) -> None:
        """Takes the image over as one change. `removals`: what records removed meanwhile."""
        self.caught_up = True
        first = MetadataDelta.between(MetadataImage(), image)
        first.removals = removals
        self.metadata_changed(first)
        while self._deltas:  # so that the reactor is not held by the logs of many partitions
            await self._turns.next_turn()

    def metadata_changed(self, delta: MetadataDelta) -> None:
        """A piece of the metadata log, in several turns."""
        if not self.caught_up:
            return
        self._deltas.extend(delta.pieces(_PARTITIONS_A_PIECE))
        if self._delta_call is None and not self._is_taking_deltas:
            self._next_deltas()

    def _next_deltas(self) -> None:
        """Takes over the deltas of one turn."""
        self._delta_call, self._is_taking_deltas = None, True
        until = self._clock.seconds() + SECONDS_PER_TURN
        try:
            for _ in range(_PIECES_A_TURN):
                self.take(self._deltas.popleft())
                if not self._deltas or self._clock.seconds() >= until:
                    break
        finally:
            self._is_taking_deltas = False
            if self._deltas:
                self._delta_call = self._clock.callLater(0, self._next_deltas)

    def take(self, delta: MetadataDelta) -> None:
        """Settings first, then roles, in this turn."""
        image = delta.after
        self._quotas.apply(delta.quotas, delta.before.client_quotas, image.client_quotas)
        if delta.configs & {(4, ""), (4, str(self._config.node_id))}:
            config, refused = self._config.with_stored(
                image.config(4, ""), image.config(4, str(self._config.node_id))
            )
            for line in refused:
                _logger.warn("a stored setting is refused: {reason}", reason=line)
            self._config.replace(config)
        self._replica_manager.apply_delta(delta, image)
        if self._assignments is not None:
            self._assignments.apply_delta(delta)

    def stop(self) -> None:
        if self._delta_call is not None:
            self._delta_call.cancel()
