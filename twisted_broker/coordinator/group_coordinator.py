"""The group coordinator of one broker: requests find their shard here, shards come and go with leadership. Ring 1.

Owns `GroupCoordinator`, whose methods the APIs of groups and offsets call.

1. A group is served by the shard that its id hashes to, while this broker leads that partition: else NOT_COORDINATOR. While the
   partition is read COORDINATOR_LOAD_IN_PROGRESS; a heartbeat meanwhile is NONE, since its member may well be alive.
2. Memory is bounded: beyond `max_groups` a new group takes the place of an idle one (no members, no offsets), or is refused.
3. Every text that ends up in a record fits the record's 16-bit length; a member id holds at most 255 characters of its client's id.
4. A call that raises or fails does so with BrokerError; nothing of it stays behind.

Source: Apache Kafka 4.3.1 `GroupCoordinatorService`. Leaves out permission and the wire (api/groups.py, api/offsets.py), transactions,
groups of KIP-848.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from twisted_broker.coordinator import offset_requests
from twisted_broker.coordinator.consequences import JoinAnswer, LeaveAnswer, SyncAnswer
from twisted_broker.coordinator.group_core import JoinRequest, SyncRequest
from twisted_broker.coordinator.group_records import partition_for
from twisted_broker.coordinator.group_state import STABLE
from twisted_broker.coordinator.loading import load_steps
from twisted_broker.coordinator.offset_requests import CommitAnswer, CommitRequest, FetchedOffset
from twisted_broker.coordinator.offsets import Place
from twisted_broker.coordinator.offsets_topic import OffsetsTopic
from twisted_broker.coordinator.ports import CoordinatorParts, CoordinatorSettings
from twisted_broker.coordinator.shard import GroupEntry, Shard, ShardState, append_error
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.primitives import NULL_UUID

CLIENT_ID_CHARACTERS = 255
LONGEST_TEXT_BYTES = 32767
IDLE_GROUPS_LOOKED_AT = 1000
_log = Logger()


@dataclass(frozen=True, slots=True)
class GroupListing:
    group_id: str
    protocol_type: str
    state: str


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """`members` is (member id, instance id, client id, client host, metadata, assignment); the last two empty unless Stable."""

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[tuple[str, str | None, str, str, bytes, bytes], ...]


def _fits(*texts: str | None) -> bool:
    return all(len(text) <= LONGEST_TEXT_BYTES // 4 or len(text.encode()) <= LONGEST_TEXT_BYTES for text in texts if text)


class GroupCoordinator:
    """All groups whose partition of `__consumer_offsets` this broker leads."""

    def __init__(self, parts: CoordinatorParts, offsets_topic: OffsetsTopic | None = None) -> None:
        self.parts = parts
        self.offsets_topic = offsets_topic
        self.shards: dict[int, Shard] = {}
        self._groups_count_limit_warned = False
        self._expiry = LoopingCall(self._expire)
        self._expiry.clock = parts.clock  # type: ignore[assignment]  # LoopingCall needs only what IClock names
        self._rounds: Iterator[None] | None = None
        self._loads: deque[tuple[Shard, Iterator[None]]] = deque()

    def start(self) -> None:
        """Begins to look for expired offsets."""
        self._expiry.start(self.parts.settings.retention_check_interval_ms / 1000, now=False)

    def stop(self) -> None:
        """Gives up every partition; parked requests are answered NOT_COORDINATOR."""
        if self._expiry.running:
            self._expiry.stop()
        for index in list(self.shards):
            self.on_resignation(index)

    def update_settings(self, settings: CoordinatorSettings) -> None:
        interval_ms = self.parts.settings.retention_check_interval_ms
        self.parts.settings = settings
        if self._expiry.running and settings.retention_check_interval_ms != interval_ms:
            self._expiry.stop()
            self.start()

    # -- leadership --------------------------------------------------------------------------------------------------
    def on_leadership(self, index: int, leader_epoch: int) -> None:
        """This broker leads partition `index` of `__consumer_offsets` from `leader_epoch` on: reads it, then serves it."""
        before = self.shards.get(index)
        if before is not None and before.leader_epoch >= leader_epoch:
            return
        if before is not None:
            before.close()
        shard = self.shards[index] = Shard(self.parts, index, leader_epoch)
        steps = load_steps(shard)
        if self._load_step(shard, steps):
            self._loads.append((shard, steps))
            if len(self._loads) == 1:
                self.parts.clock.callLater(0, self._load_some)

    def on_resignation(self, index: int, leader_epoch: int | None = None) -> None:
        """Another broker leads partition `index`, or nobody, since `leader_epoch`."""
        shard = self.shards.get(index)
        if shard is not None and (leader_epoch is None or leader_epoch >= shard.leader_epoch):
            del self.shards[index]
            shard.close()

    def _load_some(self) -> None:
        """One step of one partition per turn of the reactor, so that fifty large ones do not block it together."""
        if self._loads and not self._load_step(*self._loads[0]):
            self._loads.popleft()
        if self._loads:
            self.parts.clock.callLater(0, self._load_some)

    def _load_step(self, shard: Shard, steps: Iterator[None]) -> bool:
        """Whether more steps are to come."""
        if shard.state is ShardState.CLOSED:
            return False
        try:
            next(steps)
        except StopIteration:
            self._activate(shard)
        except BrokerError as error:
            self._give_up(shard, error)
        except Exception as error:
            _log.failure("loading __consumer_offsets-{index} failed", index=shard.index)
            self._give_up(shard, error)
        else:
            return True
        return False

    def _give_up(self, shard: Shard, error: Exception) -> None:
        _log.error("__consumer_offsets-{index} cannot be read, its groups are not served: {error}", index=shard.index, error=error)
        del self.shards[shard.index]
        shard.close()

    def _activate(self, shard: Shard) -> None:
        shard.state = ShardState.ACTIVE
        if shard.groups:
            _log.info("__consumer_offsets-{index}: {count} groups loaded", index=shard.index, count=len(shard.groups))
        for entry in shard.groups.values():
            shard.carry_out(entry, entry.core.loaded(self.parts.wall_ms()))

    def _shard(self, group_id: str, empty_allowed: bool = False) -> Shard:
        if (not group_id and not empty_allowed) or not _fits(group_id):
            raise BrokerError(ErrorCode.INVALID_GROUP_ID)
        shard = self.shards.get(partition_for(group_id, self.parts.store.partitions_count()))
        if shard is None:
            raise BrokerError(ErrorCode.NOT_COORDINATOR)
        if shard.state is ShardState.LOADING:
            raise BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return shard

    def _entry_to_change(self, shard: Shard, group_id: str) -> GroupEntry | None:
        entry = shard.usable(group_id)
        if entry is not None:
            entry.core.settings = self.parts.settings.group
        return entry

    def _create(self, shard: Shard, group_id: str) -> GroupEntry:
        if sum(len(each.groups) for each in self.shards.values()) >= self.parts.settings.max_groups:
            self._make_room()
        return shard.create(group_id)

    def _make_room(self) -> None:
        """Forgets the longest idle group; raises COORDINATOR_NOT_AVAILABLE when none of those looked at is idle."""
        for shard in self.shards.values():
            for _, entry in zip(range(IDLE_GROUPS_LOOKED_AT), shard.groups.values(), strict=False):
                if entry.is_idle and not entry.is_being_deleted and shard.state is ShardState.ACTIVE:
                    shard.forget(entry)
                    return
        if not self._groups_count_limit_warned:
            self._groups_count_limit_warned = True
            _log.error("{count} groups: no more are taken", count=self.parts.settings.max_groups)
        raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    # -- membership --------------------------------------------------------------------------------------------------
    def join(self, group_id: str, request: JoinRequest) -> Deferred[JoinAnswer]:
        """Fires when the round is complete, or with an error; `request.new_member_id` is filled in here."""
        answer: Deferred[JoinAnswer] = Deferred()
        try:
            self._join(group_id, request, answer)
        except BrokerError as refusal:
            answer.callback(JoinAnswer(refusal.code, request.member_id))
        return answer

    def _join(self, group_id: str, request: JoinRequest, answer: Deferred[JoinAnswer]) -> None:
        shard = self._shard(group_id)
        settings = self.parts.settings
        if not settings.min_session_timeout_ms <= request.session_timeout_ms <= settings.max_session_timeout_ms:
            raise BrokerError(ErrorCode.INVALID_SESSION_TIMEOUT)
        if request.rebalance_timeout_ms < 0 or not _fits(request.instance_id, request.client_id, request.protocol_type, *request.protocols):
            raise BrokerError(ErrorCode.INVALID_REQUEST)
        entry = self._entry_to_change(shard, group_id)
        is_new = entry is None
        if entry is None:
            if request.member_id:
                raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
            entry = self._create(shard, group_id)
        prefix = request.client_id if request.instance_id is None else request.instance_id
        member_id = f"{prefix[:CLIENT_ID_CHARACTERS]}-{UUID(int=self.parts.random.getrandbits(128), version=4)}"
        consequences = entry.core.join(replace(request, new_member_id=member_id), answer, self.parts.wall_ms())
        if is_new and entry.is_idle:
            del shard.groups[group_id]  # refused: a group that nobody is in leaves no trace
        elif is_new:
            consequences += entry.core.created()
        shard.carry_out(entry, consequences)

    def sync(self, group_id: str, request: SyncRequest) -> Deferred[SyncAnswer]:
        """Fires when the leader's assignment is stored, or with an error."""
        answer: Deferred[SyncAnswer] = Deferred()
        try:
            shard = self._shard(group_id)
            entry = self._entry_to_change(shard, group_id)
            if entry is None:
                raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
        except BrokerError as refusal:
            answer.callback(SyncAnswer(refusal.code))
            return answer
        shard.carry_out(entry, entry.core.sync(request, answer))
        return answer

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        try:
            shard = self._shard(group_id)
            entry = self._entry_to_change(shard, group_id)
        except BrokerError as refusal:
            return ErrorCode.NONE if refusal.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else refusal.code
        if entry is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error, consequences = entry.core.heartbeat(member_id, instance_id, generation)
        shard.carry_out(entry, consequences)
        return error

    def leave(self, group_id: str, leavers: list[tuple[str, str | None]]) -> list[LeaveAnswer]:
        """(member id, instance id) each; raises BrokerError."""
        shard = self._shard(group_id)
        entry = self._entry_to_change(shard, group_id)
        if entry is None:
            return [LeaveAnswer(member_id, instance_id, ErrorCode.UNKNOWN_MEMBER_ID) for member_id, instance_id in leavers]
        error, answers, consequences = entry.core.leave(leavers, self.parts.wall_ms())
        if error:
            raise BrokerError(error)
        shard.carry_out(entry, consequences)
        return answers

    # -- offsets -----------------------------------------------------------------------------------------------------
    def commit(self, request: CommitRequest) -> Deferred[CommitAnswer]:
        """Fires with an error per place when the offsets are stored. Raises BrokerError."""
        shard = self._shard(request.group_id, empty_allowed=True)
        entry = self._entry_to_change(shard, request.group_id)
        if entry is None:
            if request.generation >= 0:
                raise BrokerError(request.unknown_group_error)
            if not request.offsets:
                return succeed({})
            entry = self._create(shard, request.group_id)
        return offset_requests.commit(shard, entry, request)

    def fetch_offsets(
        self, group_id: str, places: Sequence[tuple[str, int, bytes]] | None, require_stable: bool = False
    ) -> list[FetchedOffset]:
        """(topic, partition, topic id or NULL_UUID) each, or None for all that is committed. Raises BrokerError."""
        entry = self._shard(group_id, empty_allowed=True).groups.get(group_id)
        return offset_requests.fetch(entry, places, require_stable)

    def check_delete_offsets(self, group_id: str) -> None:
        """Raises the error that an OffsetDelete of this group gets as a whole."""
        offset_requests.check_delete_offsets(self._shard(group_id).usable(group_id))

    def delete_offsets(self, group_id: str, places: Sequence[Place]) -> Deferred[dict[Place, ErrorCode]]:
        """Fires with an error per place; raises or fails with BrokerError."""
        shard = self._shard(group_id)
        entry = offset_requests.check_delete_offsets(shard.usable(group_id))
        return offset_requests.delete_offsets(shard, entry, places)

    def on_topics_deleted(self, topics: dict[str, bytes]) -> None:
        """Topics (name to id) are gone: what was committed for them goes too, but not what was committed for a later topic of that name."""
        for shard in self.shards.values():
            for entry in list(shard.groups.values()) if shard.state is ShardState.ACTIVE else ():
                gone = [p for p, c in entry.offsets.committed.items() if p[0] in topics and c.topic_id in (NULL_UUID, topics[p[0]])]
                if gone and not entry.is_being_deleted:
                    shard.delete_offsets(entry, gone).addErrback(_note_failure)

    # -- administration ----------------------------------------------------------------------------------------------
    def list_groups(self) -> tuple[ErrorCode, list[GroupListing]]:
        """All groups served here; COORDINATOR_LOAD_IN_PROGRESS with those known so far when some are being read."""
        is_loading = any(shard.state is ShardState.LOADING for shard in self.shards.values())
        listings = [
            GroupListing(name, entry.group.protocol_type or "", entry.group.state.value)
            for shard in self.shards.values() if shard.state is ShardState.ACTIVE for name, entry in shard.groups.items()
        ]  # fmt: skip
        return (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_loading else ErrorCode.NONE), listings

    def describe(self, group_id: str) -> GroupDescription | None:
        """None for a group that does not exist; raises BrokerError."""
        entry = self._shard(group_id, empty_allowed=True).groups.get(group_id)
        if entry is None:
            return None
        group, is_stable = entry.group, entry.group.state is STABLE
        members = tuple(
            (m.member_id, m.instance_id, m.client_id, m.client_host,
             m.protocols[group.protocol_name] if is_stable and group.protocol_name in m.protocols else b"", m.assignment if is_stable else b"")
            for m in group.members.values()
        )  # fmt: skip
        return GroupDescription(group_id, group.state.value, group.protocol_type or "", (group.protocol_name or "") if is_stable else "", members)

    def delete_group(self, group_id: str) -> Deferred[ErrorCode]:
        """Fires when the group's tombstones are stored, or with why not. Raises BrokerError."""
        shard = self._shard(group_id, empty_allowed=True)
        entry = offset_requests.check_delete_group(shard.usable(group_id))
        return shard.delete_group(entry).addCallbacks(lambda _: ErrorCode.NONE, append_error)

    # -- expiry ------------------------------------------------------------------------------------------------------
    def _expire(self) -> None:
        """Starts a walk over all groups unless the last one is still on its way."""
        if self._rounds is None:
            self._rounds = (step for shard in list(self.shards.values()) for step in offset_requests.expiry_steps(shard))
            self._expire_some()

    def _expire_some(self) -> None:
        assert self._rounds is not None
        try:
            next(self._rounds)
        except StopIteration:
            self._rounds = None
        except Exception:
            self._rounds = None
            _log.failure("the walk over expired offsets failed; the next one starts anew")
        else:
            self.parts.clock.callLater(0, self._expire_some)


def _note_failure(failure: Failure) -> None:
    _log.warn("offsets of a deleted topic stay until they expire: {error}", error=failure.value)
