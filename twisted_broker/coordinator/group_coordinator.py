"""The group coordinator of one broker, request by request: each finds its shard and its group, or
its error. Ring 1.

Owns `GroupCoordinator`, whose methods the APIs of groups and offsets call.

1. A call that raises or fails does so with BrokerError; nothing of it stays behind.
2. Every text that ends up in a record fits the record's 16-bit length; a member id holds at most
   255 characters of its client's id.
3. A heartbeat while the group's partition is read is NONE: the member may well be alive, and is
   known only when all is read.

Source: Apache Kafka 4.3.1 `GroupCoordinatorService`. Leaves out permission and the wire
(api/groups.py, api/offsets.py), transactions, groups of KIP-848.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from twisted.internet.defer import Deferred, succeed

from twisted_broker.coordinator import offset_requests
from twisted_broker.coordinator.collaborators import CoordinatorParts
from twisted_broker.coordinator.coordinator_runtime import CoordinatorRuntime, fits
from twisted_broker.coordinator.coordinator_shard import CoordinatorState, append_error
from twisted_broker.coordinator.effects import JoinAnswer, LeaveAnswer, SyncAnswer
from twisted_broker.coordinator.group_core import JoinRequest, SyncRequest
from twisted_broker.coordinator.group_state import STABLE
from twisted_broker.coordinator.offset_requests import CommitAnswer, CommitRequest, FetchedOffset
from twisted_broker.coordinator.offsets import TopicPartition
from twisted_broker.coordinator.offsets_topic import OffsetsTopic
from twisted_broker.wire.errors import BrokerError, ErrorCode

CLIENT_ID_CHARACTERS = 255
LISTED_PER_STEP = 500


@dataclass(frozen=True, slots=True)
class GroupListing:
    group_id: str
    protocol_type: str
    state: str


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """`members` is (member id, instance id, client id, client host, metadata, assignment). Metadata
    is empty unless Stable; the assignment is the last one that the member got, a round that runs
    included.
    """

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[tuple[str, str | None, str, str, bytes, bytes], ...]


class GroupCoordinator(CoordinatorRuntime):
    """All groups whose partition of `__consumer_offsets` this broker leads."""

    def __init__(self, parts: CoordinatorParts, offsets_topic: OffsetsTopic | None = None) -> None:
        super().__init__(parts)
        self.offsets_topic = offsets_topic
        self._deleted_topics: dict[str, set[bytes]] = {}
        self._is_forgetting = False

    # membership
    def join(self, group_id: str, request: JoinRequest) -> Deferred[JoinAnswer]:
        """Fires when the round is complete, or with an error; `request.new_member_id` is filled
        in here.
        """
        answer: Deferred[JoinAnswer] = Deferred()
        try:
            self._join(group_id, request, answer)
        except BrokerError as refusal:
            answer.callback(JoinAnswer(refusal.code, request.member_id))
        return answer

    def _join(self, group_id: str, request: JoinRequest, answer: Deferred[JoinAnswer]) -> None:
        shard = self.find(group_id)
        settings = self.parts.settings
        if (
            not settings.min_session_timeout_ms
            <= request.session_timeout_ms
            <= settings.max_session_timeout_ms
        ):
            raise BrokerError(ErrorCode.INVALID_SESSION_TIMEOUT)
        if request.rebalance_timeout_ms < 0 or not fits(
            request.instance_id, request.client_id, request.protocol_type, *request.protocols
        ):
            raise BrokerError(ErrorCode.INVALID_REQUEST)
        entry = self.entry_to_change(shard, group_id)
        is_new = entry is None
        if entry is None:
            if request.member_id:
                raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
            entry = self.create(shard, group_id)
        prefix = request.client_id if request.instance_id is None else request.instance_id
        unique = UUID(int=self.parts.random.getrandbits(128), version=4)
        member_id = f"{prefix[:CLIENT_ID_CHARACTERS]}-{unique}"
        consequences = entry.core.join(
            replace(request, new_member_id=member_id), answer, self.parts.wall_ms()
        )
        if is_new and entry.is_idle:
            del shard.groups[group_id]  # refused: a group that nobody is in leaves no trace
        elif is_new:
            consequences += entry.core.created()
        shard.carry_out(entry, consequences)

    def sync(self, group_id: str, request: SyncRequest) -> Deferred[SyncAnswer]:
        """Fires when the leader's assignment is stored, or with an error."""
        answer: Deferred[SyncAnswer] = Deferred()
        try:
            shard = self.find(group_id)
            entry = self.entry_to_change(shard, group_id)
            if entry is None:
                raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
        except BrokerError as refusal:
            answer.callback(SyncAnswer(refusal.code))
            return answer
        shard.carry_out(entry, entry.core.sync(request, answer))
        return answer

    def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        try:
            shard = self.find(group_id)
            entry = self.entry_to_change(shard, group_id)
        except BrokerError as refusal:
            return (
                ErrorCode.NONE
                if refusal.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                else refusal.code
            )
        if entry is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error, consequences = entry.core.heartbeat(member_id, instance_id, generation)
        shard.carry_out(entry, consequences)
        return error

    def leave(self, group_id: str, leavers: list[tuple[str, str | None]]) -> list[LeaveAnswer]:
        """(member id, instance id) each; raises BrokerError."""
        shard = self.find(group_id)
        entry = self.entry_to_change(shard, group_id)
        if entry is None:
            return [
                LeaveAnswer(member_id, instance_id, ErrorCode.UNKNOWN_MEMBER_ID)
                for member_id, instance_id in leavers
            ]
        error, answers, consequences = entry.core.leave(leavers, self.parts.wall_ms())
        if error:
            raise BrokerError(error)
        shard.carry_out(entry, consequences)
        return answers

    # offsets
    def commit(self, request: CommitRequest) -> Deferred[CommitAnswer]:
        """Fires with an error per place when the offsets are stored. Raises BrokerError."""
        shard = self.find(request.group_id, empty_allowed=True)
        entry = self.entry_to_change(shard, request.group_id)
        if entry is None:
            if request.generation >= 0:
                raise BrokerError(request.unknown_group_error)
            if not request.offsets:
                return succeed({})
            entry = self.create(shard, request.group_id)
        return offset_requests.commit(shard, entry, request)

    def fetch_offsets(
        self,
        group_id: str,
        places: Sequence[tuple[str, int, bytes]] | None,
        require_stable: bool = False,
    ) -> list[FetchedOffset]:
        """(topic, partition, topic id or NULL_UUID) each, or None for all that is committed.

        Raises BrokerError.
        """
        entry = self.find(group_id, empty_allowed=True).groups.get(group_id)
        return offset_requests.fetch(entry, places, require_stable)

    def check_delete_offsets(self, group_id: str) -> None:
        """Raises the error that an OffsetDelete of this group gets as a whole."""
        offset_requests.check_delete_offsets(self.find(group_id).usable(group_id))

    def delete_offsets(
        self, group_id: str, places: Sequence[TopicPartition]
    ) -> Deferred[dict[TopicPartition, ErrorCode]]:
        """Fires with an error per place; raises or fails with BrokerError."""
        shard = self.find(group_id)
        entry = offset_requests.check_delete_offsets(shard.usable(group_id))
        return offset_requests.delete_offsets(shard, entry, places)

    def on_topics_deleted(self, topics: dict[str, bytes]) -> None:
        """Topics (name to id) are gone: what was committed for them goes too, in slices.

        What comes while a walk is on its way waits for the next.
        """
        for name, topic_id in topics.items():
            self._deleted_topics.setdefault(name, set()).add(topic_id)
        if not self._is_forgetting:
            self._is_forgetting = True
            self.parts.slices.start(self._forget_topics())

    def _forget_topics(self) -> offset_requests.Walk:
        pace = offset_requests.Pace()
        try:
            while self._deleted_topics:
                topics, self._deleted_topics = self._deleted_topics, {}
                for shard in list(self.shards.values()):
                    yield from offset_requests.forget_topics_steps(shard, topics, pace)
        finally:
            self._is_forgetting = False

    # administration
    @property
    def is_loading(self) -> bool:
        """Whether groups are being read that are not known yet."""
        return any(shard.state is CoordinatorState.LOADING for shard in self.shards.values())

    def listings(self) -> Iterator[list[GroupListing]]:
        """All groups served here, `LISTED_PER_STEP` at a time; groups may come and go between
        two of them.
        """
        found: list[GroupListing] = []
        for shard in list(self.shards.values()):
            for name in list(shard.groups) if shard.state is CoordinatorState.ACTIVE else ():
                entry = shard.groups.get(name)
                if entry is not None:
                    found.append(
                        GroupListing(name, entry.group.protocol_type or "", entry.group.state.value)
                    )
                if len(found) == LISTED_PER_STEP:
                    yield found
                    found = []
        yield found

    def list_groups(self) -> tuple[ErrorCode, list[GroupListing]]:
        """All groups served here at once; COORDINATOR_LOAD_IN_PROGRESS with those known so far
        when some are being read.
        """
        error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if self.is_loading else ErrorCode.NONE
        return error, [listing for some in self.listings() for listing in some]

    def describe(self, group_id: str) -> GroupDescription | None:
        """None for a group that does not exist; raises BrokerError."""
        entry = self.find(group_id, empty_allowed=True).groups.get(group_id)
        if entry is None:
            return None
        group, is_stable = entry.group, entry.group.state is STABLE
        members = tuple(
            (
                m.member_id,
                m.instance_id,
                m.client_id,
                m.client_host,
                m.protocols[group.protocol_name]
                if is_stable and group.protocol_name in m.protocols
                else b"",
                m.assignment,
            )
            for m in group.members.values()
        )
        return GroupDescription(
            group_id,
            group.state.value,
            group.protocol_type or "",
            (group.protocol_name or "") if is_stable else "",
            members,
        )

    def delete_group(self, group_id: str) -> Deferred[ErrorCode]:
        """Fires when the group's tombstones are stored, or with why not. Raises BrokerError."""
        shard = self.find(group_id, empty_allowed=True)
        entry = offset_requests.check_delete_group(shard.usable(group_id))
        return shard.delete_group(entry).addCallbacks(lambda _: ErrorCode.NONE, append_error)
