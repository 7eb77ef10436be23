"""The partitions of `__consumer_offsets` that this broker leads: load, serve, unload. Ring 1.

Owns `CoordinatorRuntime`: which shard serves a group, the loads in progress, the limit on groups.

1. A group is served by the shard that its id hashes to, while this broker leads that partition:
   else NOT_COORDINATOR, also while that is in doubt after a stop of the process; while the
   partition is read COORDINATOR_LOAD_IN_PROGRESS, but for 6.
2. Partitions are read side by side, in steps; a large one is unloaded in steps, too. An empty
   partition is served at once. Members' sessions start in steps when their partition is served:
   while it was read no heartbeat could have kept one alive.
3. Memory is bounded: beyond `max_groups` a new group takes the place of an idle one (no members, no
   offsets), or is refused. An idle consumer group is deleted first, by its tombstones; until they
   are stored the new group is refused, too. A search checks `GROUPS_CHECKED_FOR_EVICTION` groups at
   most, and goes on where the one before ended. An idle group with one offset takes about 1.3 KB.
4. What was read is committed before it is served: an answer from records that are lost with this
   leader would be taken back, and a generation given out twice.
5. A partition that cannot be read is not served, until its next leader epoch.
6. Where what was read is not committed after `VIEW_AFTER_SECONDS`, the partition becomes READABLE:
   the ISR may be below its minimum for long. What lies below the high watermark is then served to
   those who read offsets and descriptions; offsets above it are unstable; a group whose last record
   lies above it is not described. All that writes still gets COORDINATOR_LOAD_IN_PROGRESS: it could
   not be stored, and members keep their sessions. Once all is committed it is read anew.

Source: Apache Kafka 4.3.1 `CoordinatorRuntime`. Not here: requests (`group_coordinator.py`), expiry
(`offset_cleanup.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from twisted_broker.coordinator.consumer.group import ConsumerGroup
from twisted_broker.coordinator.coordinator_context import CoordinatorContext
from twisted_broker.coordinator.coordinator_loader import (
    LogReplay,
    forget_steps,
    load_steps,
    view_steps,
)
from twisted_broker.coordinator.coordinator_shard import CoordinatorShard, CoordinatorState
from twisted_broker.coordinator.group_deletion import GroupDeletion
from twisted_broker.coordinator.group_entry import GroupEntry
from twisted_broker.coordinator.group_records import fits_record, partition_for
from twisted_broker.interfaces import IClock
from twisted_broker.turns import Steps
from twisted_broker.wire.errors import BrokerError, ErrorCode

# Bounds the search for an idle group to a fraction of a turn.
GROUPS_CHECKED_FOR_EVICTION = 1000
# Each starts timers of a group's members.
SESSIONS_PER_STEP = 100
# An election's lag is over by then; a view costs two more reads of the partition.
VIEW_AFTER_SECONDS = 1.0
_logger = Logger()


class _LedNoMore(Exception):
    """The shard was closed."""


def _while_led(shard: CoordinatorShard, steps: Steps) -> Steps:
    """Raises _LedNoMore."""
    for pause in steps:
        yield pause
        if shard.state is CoordinatorState.CLOSED:
            raise _LedNoMore


def _at_most(waiting: Deferred[None], seconds: float, clock: IClock) -> Deferred[None]:
    """Fires with `waiting`, or after the time."""
    either: Deferred[None] = Deferred()
    call = clock.callLater(seconds, either.callback, None)

    def over(_: None) -> None:
        if call.active():
            call.cancel()
            either.callback(None)

    waiting.addCallback(over)
    return either


class CoordinatorRuntime:
    """`shards` by partition. `loaded(shard)` is called when one begins to be served."""

    __slots__ = ("_candidates", "_context", "_is_limit_logged", "_loaded", "shards")

    def __init__(
        self, context: CoordinatorContext, loaded: Callable[[CoordinatorShard], None]
    ) -> None:
        self._context, self._loaded = context, loaded
        self.shards: dict[int, CoordinatorShard] = {}
        self._is_limit_logged = False
        # Where the next search for an idle group goes on: repeated ones come by every group.
        self._candidates: Iterator[tuple[CoordinatorShard, str]] = iter(())

    # leadership
    def load(self, index: int, leader_epoch: int) -> None:
        """This broker leads partition `index` from `leader_epoch` on: reads it, then serves it."""
        before = self.shards.get(index)
        if before is not None and before.leader_epoch >= leader_epoch:
            return
        if before is not None:
            self._context.turns.start(before.unload_steps())
        shard = self.shards[index] = CoordinatorShard(self._context, index, leader_epoch)
        self._context.turns.start(self._load_steps(shard))

    def unload(self, index: int, leader_epoch: int | None = None) -> None:
        """Another broker leads partition `index`, or nobody, since `leader_epoch`."""
        shard = self.shards.get(index)
        if shard is not None and (leader_epoch is None or leader_epoch >= shard.leader_epoch):
            del self.shards[index]
            self._context.turns.start(shard.unload_steps())

    def unload_all(self) -> None:
        """At once: this broker ends."""
        for index in list(self.shards):
            shard = self.shards.pop(index)
            for _ in shard.unload_steps():
                pass
            shard.run_all_effects()

    def _load_steps(self, shard: CoordinatorShard) -> Steps:
        replays: list[LogReplay] = []
        yield from self._load(shard, replays)
        yield from forget_steps(replays)

    def _load(self, shard: CoordinatorShard, replays: list[LogReplay]) -> Steps:
        """Reads the partition, serves it, starts its members' sessions; ends as soon as it is
        led elsewhere.
        """
        try:
            yield from _while_led(shard, self._read_steps(shard, replays))
            if shard.state is CoordinatorState.CLOSED:
                return
        except _LedNoMore:
            return
        except BrokerError as error:
            self._loading_failed(shard, error)
            return
        except Exception as error:
            _logger.failure("loading __consumer_offsets-{index} failed", index=shard.index)
            self._loading_failed(shard, error)
            return
        # Before the sessions are started: a heartbeat may come between two steps.
        shard.state = CoordinatorState.ACTIVE
        self._loaded(shard)
        if shard.groups:
            _logger.info(
                "__consumer_offsets-{index}: {count} groups loaded",
                index=shard.index,
                count=len(shard.groups),
            )
        number = 0
        for part in shard.groups.parts():
            for group_id in part:
                entry = shard.groups.get(group_id)
                if entry is not None and entry.group.members:
                    shard.group_loaded(entry.group)
                number += 1
                if number % SESSIONS_PER_STEP == 0:
                    yield None
                    if shard.state is CoordinatorState.CLOSED:
                        return

    def _read_steps(self, shard: CoordinatorShard, replays: list[LogReplay]) -> Steps:
        """Ends when all that was read is committed, or the shard is closed."""
        while True:
            yield from load_steps(shard, replays)
            # Kafka serves at once, and holds each answer back until the records are committed.
            committed: list[bool] = []
            caught_up = self._context.store.committed(shard.index).addCallback(committed.append)
            if not committed:
                yield _at_most(caught_up, VIEW_AFTER_SECONDS, self._context.clock)
            is_whole = bool(committed)
            if not is_whole:
                shard.clear()
                yield from view_steps(shard, replays)
                if not committed:
                    shard.state = CoordinatorState.READABLE
                    _logger.warn(
                        "__consumer_offsets-{index}: too few replicas have its last records; its "
                        "groups read what is committed, and write when the replicas are back",
                        index=shard.index,
                    )
                    yield caught_up
            if not committed[0]:  # it is led no more, or its directory failed
                self.unload(shard.index)
                return
            if is_whole:
                return
            shard.state = CoordinatorState.LOADING
            shard.clear()

    def _loading_failed(self, shard: CoordinatorShard, error: Exception) -> None:
        _logger.error(
            "__consumer_offsets-{index} cannot be read; its groups are not served until its "
            "leader changes or this broker restarts: {error}",
            index=shard.index,
            error=error,
        )
        del self.shards[shard.index]
        self._context.turns.start(shard.unload_steps())

    @property
    def is_loading(self) -> bool:
        """Whether a partition is still being read, so that its groups are not known."""
        return any(shard.state is CoordinatorState.LOADING for shard in self.shards.values())

    # groups
    def shard_of(
        self, group_id: str, empty_allowed: bool = False, reads: bool = False
    ) -> CoordinatorShard:
        """The shard that serves the group; raises BrokerError when there is none. `reads`: nothing
        is to be written, so that a READABLE one will do.
        """
        if (not group_id and not empty_allowed) or not fits_record(group_id):
            raise BrokerError(ErrorCode.INVALID_GROUP_ID)
        shard = self.shards.get(partition_for(group_id, self._context.store.partitions_count()))
        if shard is None or self._context.has_stale_roles():
            raise BrokerError(ErrorCode.NOT_COORDINATOR)
        if shard.state is CoordinatorState.LOADING or (
            shard.state is CoordinatorState.READABLE and not reads
        ):
            raise BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return shard

    def create_group(self, shard: CoordinatorShard, group_id: str) -> GroupEntry:
        """A classic group. Raises COORDINATOR_NOT_AVAILABLE when there are too many groups."""
        self.make_room()
        return shard.create(group_id)

    def make_room(self) -> None:
        """For another group. Raises COORDINATOR_NOT_AVAILABLE when there are too many."""
        groups_count = sum(len(each.groups) for each in self.shards.values())
        if groups_count >= self._context.settings.max_groups:
            self._evict_idle_group()

    def _evict_idle_group(self) -> None:
        """Removes the first idle group that it finds; raises COORDINATOR_NOT_AVAILABLE when none of
        those checked is idle. The next search goes on behind it.
        """
        left, is_last_round = GROUPS_CHECKED_FOR_EVICTION, False
        while left:
            found = next(self._candidates, None)
            if found is None:
                if is_last_round:
                    break
                self._candidates, is_last_round = self._group_names(), True
                continue
            left -= 1
            shard, group_id = found
            entry = shard.groups.get(group_id)
            if (
                shard.state is not CoordinatorState.ACTIVE
                or entry is None
                or entry.is_being_deleted
            ):
                continue
            if entry.is_idle:
                shard.remove(entry)
                return
            if _may_be_deleted(shard, entry):
                # There is room once its tombstones are stored: whoever asked comes again.
                GroupDeletion(shard, entry).start().addErrback(lambda _: None)
                if shard.groups.get(group_id) is entry:
                    raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
                return
        if not self._is_limit_logged:
            self._is_limit_logged = True
            _logger.error(
                "new groups are refused: this broker has {count} consumer groups, its limit",
                count=self._context.settings.max_groups,
            )
        raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _group_names(self) -> Iterator[tuple[CoordinatorShard, str]]:
        """Each group once; they may come and go between two of them."""
        for shard in list(self.shards.values()):
            if shard.state is CoordinatorState.ACTIVE:
                for part in shard.groups.parts():
                    for group_id in part:
                        yield shard, group_id


def _may_be_deleted(shard: CoordinatorShard, entry: GroupEntry) -> bool:
    """Whether it is a consumer group that holds nothing that anybody could miss."""
    group = entry.group
    return (
        isinstance(group, ConsumerGroup)
        and group.is_empty
        and entry.offsets.is_empty()
        and shard.is_settled(entry)
    )
