"""The partitions of `__consumer_offsets` that this broker leads: taking over, reading, serving,
giving up, keeping clean. Ring 1.

Owns `CoordinatorRuntime`: which shard serves a group, the loads in progress, the limit on groups,
the walk over expired offsets.

1. A group is served by the shard that its id hashes to, while this broker leads that partition:
   else NOT_COORDINATOR; while the partition is read COORDINATOR_LOAD_IN_PROGRESS.
2. Partitions are read side by side, in slices (`slices.py`), and a large one is given up in slices,
   too; an empty partition is served at once. Members' sessions start in slices when their partition
   is served.
3. Memory is bounded: beyond `max_groups` a new group takes the place of an idle one (no members, no
   offsets), or is refused.
4. A partition that cannot be read is not served, until its next leader epoch.

Source: Apache Kafka 4.3.1 `CoordinatorRuntime`, `GroupCoordinatorShard.cleanupGroupMetadata`.
Leaves out requests (`group_coordinator.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

from twisted.logger import Logger

from twisted_broker.coordinator import offset_requests
from twisted_broker.coordinator.collaborators import CoordinatorParts, CoordinatorSettings
from twisted_broker.coordinator.coordinator_loader import load_steps
from twisted_broker.coordinator.coordinator_shard import (
    CoordinatorShard,
    CoordinatorState,
    GroupEntry,
)
from twisted_broker.coordinator.group_records import partition_for
from twisted_broker.periodic import PeriodicTask
from twisted_broker.wire.errors import BrokerError, ErrorCode

LONGEST_TEXT_BYTES = 32767
IDLE_GROUPS_LOOKED_AT = 1000
SESSIONS_PER_STEP = 100
_log = Logger()


def fits(*texts: str | None) -> bool:
    """Whether each could be a string of a record, whose length has 16 bits."""
    return all(
        len(text) <= LONGEST_TEXT_BYTES // 4 or len(text.encode()) <= LONGEST_TEXT_BYTES
        for text in texts
        if text
    )


class CoordinatorRuntime:
    """By partition. `start` and `stop` are the broker's."""

    def __init__(self, parts: CoordinatorParts) -> None:
        self.parts = parts
        self.shards: dict[int, CoordinatorShard] = {}
        self._groups_count_limit_warned = False
        self._expiry = PeriodicTask(parts.clock, self._expire, "the expiry of offsets")
        self._is_expiring = False

    def start(self) -> None:
        """Begins to look for expired offsets."""
        self._expiry.start(self.parts.settings.retention_check_interval_ms / 1000)

    def stop(self) -> None:
        """Gives up every partition; parked requests are answered NOT_COORDINATOR."""
        self._expiry.stop()
        self.parts.slices.stop()
        for index in list(self.shards):
            for _ in self.shards.pop(index).close_steps():
                pass

    def update_settings(self, settings: CoordinatorSettings) -> None:
        interval_ms = self.parts.settings.retention_check_interval_ms
        self.parts.settings = settings
        if self._expiry.running and settings.retention_check_interval_ms != interval_ms:
            self._expiry.stop()
            self.start()

    # leadership
    def on_leadership(self, index: int, leader_epoch: int) -> None:
        """This broker leads partition `index` of `__consumer_offsets` from `leader_epoch` on:
        reads it, then serves it.
        """
        before = self.shards.get(index)
        if before is not None and before.leader_epoch >= leader_epoch:
            return
        if before is not None:
            self.parts.slices.start(before.close_steps())
        shard = self.shards[index] = CoordinatorShard(self.parts, index, leader_epoch)
        self.parts.slices.start(self._load(shard))

    def on_resignation(self, index: int, leader_epoch: int | None = None) -> None:
        """Another broker leads partition `index`, or nobody, since `leader_epoch`."""
        shard = self.shards.get(index)
        if shard is not None and (leader_epoch is None or leader_epoch >= shard.leader_epoch):
            del self.shards[index]
            self.parts.slices.start(shard.close_steps())

    def _load(self, shard: CoordinatorShard) -> Iterator[None]:
        """Reads the partition, serves it, starts its members' sessions; ends as soon as it is
        led elsewhere.
        """
        try:
            for _ in load_steps(shard):
                yield
                if shard.state is CoordinatorState.CLOSED:
                    return
        except BrokerError as error:
            self._give_up(shard, error)
            return
        except Exception as error:
            _log.failure("loading __consumer_offsets-{index} failed", index=shard.index)
            self._give_up(shard, error)
            return
        shard.state = CoordinatorState.ACTIVE
        if shard.groups:
            _log.info(
                "__consumer_offsets-{index}: {count} groups loaded",
                index=shard.index,
                count=len(shard.groups),
            )
        yield from self._start_sessions(shard)

    def _start_sessions(self, shard: CoordinatorShard) -> Iterator[None]:
        """Once the partition is served: while it was read no heartbeat could have kept a session
        alive.
        """
        for number, group_id in enumerate(list(shard.groups), 1):
            entry = shard.groups.get(group_id)
            if entry is not None and entry.group.members:
                shard.carry_out(entry, entry.core.loaded(self.parts.wall_ms()))
            if number % SESSIONS_PER_STEP == 0:
                yield
                if shard.state is CoordinatorState.CLOSED:
                    return

    def _give_up(self, shard: CoordinatorShard, error: Exception) -> None:
        _log.error(
            "__consumer_offsets-{index} cannot be read, its groups are not served: {error}",
            index=shard.index,
            error=error,
        )
        del self.shards[shard.index]
        self.parts.slices.start(shard.close_steps())

    def find(self, group_id: str, empty_allowed: bool = False) -> CoordinatorShard:
        if (not group_id and not empty_allowed) or not fits(group_id):
            raise BrokerError(ErrorCode.INVALID_GROUP_ID)
        shard = self.shards.get(partition_for(group_id, self.parts.store.partitions_count()))
        if shard is None:
            raise BrokerError(ErrorCode.NOT_COORDINATOR)
        if shard.state is CoordinatorState.LOADING:
            raise BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return shard

    def entry_to_change(self, shard: CoordinatorShard, group_id: str) -> GroupEntry | None:
        entry = shard.usable(group_id)
        if entry is not None:
            entry.core.settings = self.parts.settings.group
        return entry

    def create(self, shard: CoordinatorShard, group_id: str) -> GroupEntry:
        if sum(len(each.groups) for each in self.shards.values()) >= self.parts.settings.max_groups:
            self._make_room()
        return shard.create(group_id)

    def _make_room(self) -> None:
        """Forgets the longest idle group; raises COORDINATOR_NOT_AVAILABLE when none of those
        looked at is idle.
        """
        for shard in self.shards.values():
            for _, entry in zip(range(IDLE_GROUPS_LOOKED_AT), shard.groups.values(), strict=False):
                if (
                    entry.is_idle
                    and not entry.is_being_deleted
                    and shard.state is CoordinatorState.ACTIVE
                ):
                    shard.forget(entry)
                    return
        if not self._groups_count_limit_warned:
            self._groups_count_limit_warned = True
            _log.error("{count} groups: no more are taken", count=self.parts.settings.max_groups)
        raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    # expiry
    def _expire(self) -> None:
        """Starts a walk over all groups unless the last one is still on its way."""
        if not self._is_expiring:
            self._is_expiring = True
            self.parts.slices.start(self._expire_all())

    def _expire_all(self) -> offset_requests.Walk:
        pace = offset_requests.Pace()
        try:
            for shard in list(self.shards.values()):
                yield from offset_requests.expiry_steps(shard, pace)
        finally:
            self._is_expiring = False
