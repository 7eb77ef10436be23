"""ISR changes as writes of partitions' `state` nodes, below inter-broker protocol 2.7.

Owns `IsrStateWrites` (an `IAlterPartitionManager`) and the task `isr-change-propagation`.

1. Every write names the version of the node that the leader knows: a controller that elected
   another leader has written since, and the write fails. Nothing is written unconditionally.
2. A write whose answer was lost is tried again; where it was done after all, the node holds what
   was to be written, and counts as confirmed.
3. A lost race changes nothing until the controller's next LeaderAndIsr.
4. What was written is announced every 2.5 s, once nothing changed for more than 5 s, or the last
   announcement is more than 60 s old. What could not be announced stays.

Source: RL 1.2, 2.5; Kafka 2.6's `Partition.expandIsr`, `ReplicaManager.maybePropagateIsrChanges`.
Not here: what an answer does to a partition (`replication/partition/partition.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import CancelledError, Deferred, ensureDeferred, succeed
from twisted.internet.task import deferLater
from twisted.logger import Logger

from twisted_broker.interfaces import Runtime, TopicPartition
from twisted_broker.periodic import PeriodicTasks
from twisted_broker.replication.partition.isr_state import RECOVERING, IsrAnswer, IsrProposal
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.zookeeper.port import (
    BadVersionError,
    IZooKeeper,
    NoNodeError,
    ZooKeeperError,
)
from twisted_broker.zookeeper.znodes import (
    ISR_CHANGE,
    PartitionStateNode,
    ZnodeError,
    isr_change_json,
    read_state,
    state_json,
    state_path,
)

_logger = Logger()
PROPAGATION_MS, QUIET_MS, LONGEST_MS = 2_500, 5_000, 60_000
_RETRY_MS = 1_000


class IsrStateWrites:
    """`controller_epoch(partition)`: of the controller that decided on its leader."""

    def __init__(
        self,
        runtime: Runtime,
        node_id: int,
        zookeeper: IZooKeeper,
        controller_epoch: Callable[[TopicPartition], int],
    ) -> None:
        self.changed: set[TopicPartition] = set()
        self._runtime, self._node_id, self._zookeeper = runtime, node_id, zookeeper
        self._controller_epoch = controller_epoch
        self._wanted: dict[TopicPartition, tuple[IsrProposal, Deferred[IsrAnswer]]] = {}
        self._changed_ms = self._announced_ms = runtime.now_ms()
        self._announcing = self._stopped = False
        self._tasks = PeriodicTasks(runtime.clock)

    def start(self) -> None:
        """The task begins."""
        self._tasks.every(
            PROPAGATION_MS / 1000, self.propagate, "isr-change-propagation", skip_late=True
        )

    def stop(self) -> None:
        """Nothing is written any more."""
        self._stopped = True
        self._tasks.stop()

    # `IAlterPartitionManager`

    def submit(self, proposal: IsrProposal) -> Deferred[IsrAnswer]:
        """Fires when the node was written, or cannot be as proposed; never fails."""
        name = proposal.topic_partition
        if proposal.leader_recovery_state == RECOVERING:
            # A truncation of a mirrored log: the leader epoch is the controller's, not ours.
            return succeed(IsrAnswer(ErrorCode.INVALID_REQUEST))
        if name in self._wanted:
            return succeed(IsrAnswer(ErrorCode.OPERATION_NOT_ATTEMPTED))
        answer: Deferred[IsrAnswer] = Deferred()
        self._wanted[name] = (proposal, answer)
        ensureDeferred(self._write(proposal, answer)).addErrback(
            lambda failure: _logger.failure("writing an ISR failed", failure)
        )
        return answer

    def withdraw(self, topic_id: bytes, partition: int) -> None:
        """The partition is no longer led here: its proposal need not be tried again.

        Topics of 2.6 have no ids: another one's proposal may be meant, too, and is made again.
        """
        for name, (proposal, answer) in list(self._wanted.items()):
            if (proposal.topic_id, name.partition) == (topic_id, partition):
                del self._wanted[name]
                answer.callback(IsrAnswer(ErrorCode.NOT_LEADER_OR_FOLLOWER))

    async def _write(self, proposal: IsrProposal, answer: Deferred[IsrAnswer]) -> None:
        name = proposal.topic_partition
        state = PartitionStateNode(
            self._node_id,
            proposal.leader_epoch,
            self._controller_epoch(name),
            tuple(member for member, _ in proposal.members),
            proposal.leader_recovery_state == RECOVERING,
        )
        while not self._stopped and self._wanted.get(name, (None, None))[1] is answer:
            try:
                found = await self._write_once(proposal, state)
            except CancelledError:
                return
            except ZooKeeperError as error:
                _logger.debug("{name}: its ISR is written again: {error}", name=name, error=error)
                await self._pause()
                continue
            if self._wanted.get(name, (None, None))[1] is answer:
                del self._wanted[name]
                if found.error is ErrorCode.NONE:
                    self.changed.add(name)
                    self._changed_ms = self._runtime.now_ms()
                answer.callback(found)

    async def _write_once(self, proposal: IsrProposal, state: PartitionStateNode) -> IsrAnswer:
        path = state_path(proposal.topic_partition)
        try:
            version = await self._zookeeper.set(path, state_json(state), proposal.partition_epoch)
        except NoNodeError:
            return IsrAnswer(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        except BadVersionError:
            found = await self._done_before(path, state)
            if found is None:
                return IsrAnswer(ErrorCode.INVALID_UPDATE_VERSION)
            version = found
        return IsrAnswer(
            ErrorCode.NONE,
            self._node_id,
            proposal.leader_epoch,
            frozenset(state.isr),
            proposal.leader_recovery_state,
            version,
        )

    async def _done_before(self, path: str, state: PartitionStateNode) -> int | None:
        """The node's version, where it holds `state`: an earlier try's answer was lost."""
        try:
            data, stat = await self._zookeeper.get(path)
            return stat.version if read_state(path, data) == state else None
        except (NoNodeError, ZnodeError):
            return None

    def _pause(self) -> Deferred[None]:
        return deferLater(self._runtime.clock, _RETRY_MS / 1000, lambda: None)  # type: ignore[arg-type]

    # isr-change-propagation

    def propagate(self) -> None:
        """RL 1.2: announces what was written, when it is time."""
        now_ms = self._runtime.now_ms()
        due = now_ms - self._changed_ms > QUIET_MS or now_ms - self._announced_ms > LONGEST_MS
        if self.changed and due and not self._announcing:
            self._announcing = True
            ensureDeferred(self._announce()).addErrback(
                lambda failure: _logger.failure("announcing ISR changes failed", failure)
            )

    async def _announce(self) -> None:
        announced, self.changed = self.changed, set()
        try:
            await self._zookeeper.create(
                ISR_CHANGE, isr_change_json(sorted(announced)), sequence=True
            )
            self._announced_ms = self._runtime.now_ms()
        except ZooKeeperError as error:
            _logger.debug("ISR changes are announced again: {error}", error=error)
            self.changed |= announced
        finally:
            self._announcing = False
