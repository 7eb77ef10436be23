"""A member of a consumer group, by the classic protocol: joining, heartbeats, committed offsets.

Owns `GroupMembership`: one loop that joins, is assigned partitions, sends heartbeats until the
group rebalances, has its owner release them, and joins again.

1. Partitions are released (fetchers stopped, offsets committed, both by `IOwner.revoked`) before
   the next JoinGroup is sent: until then nobody else is given them.
2. A member that the coordinator does not know any more, or that heard nothing for a session
   timeout, has lost its partitions: they are released without a commit, which would be refused.
3. Its leader looks at partition counts every `metadata.max.age.ms`, and joins again when one
   changed.
4. A stop while partitions are released lets that end, as long as the group waits for this member.
5. Coordinator errors and lost connections are tried again for ever, after `retry.backoff.ms`; what
   no retry changes (permission, a refused setting) ends it, with one line.

Source: RL 7.5; Kafka's `ConsumerCoordinator`, KIP-394, KIP-345. Not here: assignment
(`rebalance`), what is fetched and which offsets are committed (`streams`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol

from twisted.internet.defer import CancelledError, Deferred, DeferredLock, ensureDeferred
from twisted.logger import Logger

from twisted_broker.consumer.cluster_client import ClientConnection, ClusterClient
from twisted_broker.consumer.consumer_config import ConsumerConfig
from twisted_broker.consumer.errors import BrokersUnreachable, ConsumerError
from twisted_broker.consumer.group_offsets import commit_offsets, committed_offsets
from twisted_broker.consumer.rebalance import (
    ASSIGNORS,
    assigned_partitions,
    assignment_bytes,
    subscription_bytes,
)
from twisted_broker.coordinator.subscription import subscribed_topics
from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.fetcher.leader_endpoint import BrokerEndPoint
from twisted_broker.wire.errors import BrokerError, ErrorCode, error_of
from twisted_broker.wire.messages import groups, offsets

_logger = Logger()
_PROTOCOL_TYPE: Final = "consumer"
# The highest versions of the shape that serves all: one group or key in each request.
_FIND, _JOIN, _SYNC, _HEARTBEAT, _LEAVE = 3, 9, 5, 4, 2
_TRIES: Final = 3
_ANSWER_MS = 5_000  # of JoinGroup, beyond the rebalance timeout
_COORDINATOR_ERRORS = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
    }
)
# The generation is over: join again.
_REBALANCE_ERRORS = frozenset(
    {
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
    }
)
_WAYS_ON: Final = {
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "give this user READ on the group",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: (
        "its other members have other strategies; set partition.assignment.strategy to theirs, or "
        "take another group.id"
    ),
    ErrorCode.INVALID_SESSION_TIMEOUT: (
        "set session.timeout.ms within the broker's group.min.session.timeout.ms and "
        "group.max.session.timeout.ms"
    ),
    ErrorCode.FENCED_INSTANCE_ID: "another consumer runs with this group.instance.id",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "stop a member, or raise the broker's group.max.size",
    ErrorCode.INVALID_GROUP_ID: "set another group.id",
    ErrorCode.UNSUPPORTED_VERSION: "the brokers are too old",
}


class IOwner(Protocol):
    """Who consumes what a member is assigned."""

    async def assigned(self, partitions: list[TopicPartition]) -> None:
        """It owns these from now on; of none before."""
        ...

    async def revoked(self, patience_ms: int) -> None:
        """Stops and commits: when this returns, another may own them. A coordinator that cannot be
        reached is tried for `patience_ms`.
        """
        ...

    def lost(self) -> None:
        """Stops: others may own them already."""
        ...

    def failed(self, error: ConsumerError) -> None:
        """The member has ended."""
        ...


class CommitFailed(ConsumerError):
    """Offsets were not committed: the group went on without this member, or refused."""


class GroupMembership:
    """Of `group.id`, subscribed to `topics`."""

    def __init__(
        self, client: ClusterClient, config: ConsumerConfig, topics: Iterable[str], owner: IOwner
    ) -> None:
        self.group_id = config.text("group.id")
        self.generation = -1
        self.member_id = ""
        self.rebalances = 0
        self._client = client
        self._config = config
        self._topics = sorted(topics)
        self._owner = owner
        self._instance_id = config.text("group.instance.id") or None
        self._session_ms = config.integer("session.timeout.ms")
        self._rebalance_ms = config.integer("rebalance.timeout.ms")
        self._backoff_ms = config.integer("retry.backoff.ms")
        self._connection: ClientConnection | None = None
        self._running: Deferred[None] | None = None
        self._owns = self._is_joining = self._is_releasing = self._is_stopping = False
        self._starting: list[TopicPartition] | None = None  # assigned, but not begun
        self._commits = DeferredLock()
        self._counts: dict[str, int] | None = None  # of the leader: partitions of all topics
        self._heard_ms = 0
        self._is_unreachable = False

    # its life
    def start(self) -> None:
        self._running = ensureDeferred(self._run())

    async def stop(self) -> None:
        """Releases what it owns, and leaves the group."""
        self._is_stopping = True
        running, self._running = self._running, None
        if running is not None and self._is_releasing:
            await self._released(running)
        is_joining = self._is_joining
        if running is not None:
            running.cancel()
        if is_joining:
            # Its answer waits for other members, and what is sent over this connection for it.
            self._drop_coordinator()
        await self._release(0)
        if self.member_id and self._instance_id is None:
            await self._leave()
        self._drop_coordinator()

    async def _released(self, running: Deferred[None]) -> None:
        """Invariant 4: without its commit what was handed out would come again to others."""
        until_ms = self._heard_ms + min(self._rebalance_ms, self._session_ms)
        left_ms = max(0, until_ms - self._now_ms())
        timer = self._client.runtime.clock.callLater(left_ms / 1000, running.cancel)
        await running
        if timer.active():
            timer.cancel()
        else:
            # What is sent over this connection waits for the answer that did not come.
            self._drop_coordinator()

    async def _leave(self) -> None:
        """Without it the others wait for the session's end."""
        request = groups.LeaveGroupRequest(group_id=self.group_id, member_id=self.member_id)
        for _ in range(_TRIES):
            try:
                code = error_of((await self._send(request, _LEAVE)).error_code)
                if code not in _COORDINATOR_ERRORS:
                    return
                reason: object = code.name
            except CancelledError:
                raise
            except Exception as error:
                reason = error
            self._drop_coordinator()
            await self._client.pause(self._backoff_ms)
        _logger.info(
            "{group}: leaving was not answered ({reason}); the group notices it after {ms} ms",
            group=self.group_id,
            reason=reason,
            ms=self._session_ms,
        )

    async def _run(self) -> None:
        with suppress(CancelledError):  # wherever it waits
            await self._take_part()

    async def _take_part(self) -> None:
        """Until it is cancelled or stopped, or the group refuses this consumer."""
        while not self._is_stopping:
            try:
                # A coordinator that was lost between two heartbeats: the generation may be current.
                if not self._owns:
                    self._is_joining = True
                    try:
                        self._starting = await self._join()
                    finally:
                        self._is_joining = False
                    self._owns = True
                if self._starting is not None:
                    await self._owner.assigned(self._starting)
                    self._starting = None
                await self._heartbeats()
                # The group waits for this member meanwhile, and its session goes on.
                await self._release(min(self._rebalance_ms, self._session_ms) // 2)
            except CancelledError:
                raise
            except Exception as error:
                fatal = await self._after(error)
                if fatal is not None:
                    self._lose()
                    self._owner.failed(fatal)
                    return
                await self._client.pause(self._backoff_ms)

    async def _after(self, error: Exception) -> ConsumerError | None:
        """What follows from an error; not None: the end."""
        if isinstance(error, BrokerError):
            if error.code in _COORDINATOR_ERRORS:
                self._drop_coordinator()
            elif error.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
                self._lose()
                if error.code is ErrorCode.UNKNOWN_MEMBER_ID:
                    self.member_id = ""
            elif error.code not in _REBALANCE_ERRORS and not error.code.retriable:
                way_on = _WAYS_ON.get(error.code, error.code.sentence)
                return ConsumerError(
                    f"the group {self.group_id} refuses this consumer: {error.code.name}; {way_on}"
                )
        elif isinstance(error, ConsumerError) and not isinstance(error, BrokersUnreachable):
            return error
        else:
            if not self._is_unreachable:
                self._is_unreachable = True
                _logger.warn(
                    "{group}: its coordinator cannot be reached, retrying: {error}",
                    group=self.group_id,
                    error=error,
                )
            self._drop_coordinator()
        if self._owns and self._now_ms() - self._heard_ms > self._session_ms:
            _logger.warn(
                "{group}: nothing was heard of the coordinator for {ms} ms; its partitions may be "
                "another's",
                group=self.group_id,
                ms=self._session_ms,
            )
            self._lose()
        return None

    async def _release(self, patience_ms: int) -> None:
        """Invariant 1."""
        if self._owns:
            self._owns = False
            self._is_releasing = True
            try:
                await self._owner.revoked(patience_ms)
            finally:
                self._is_releasing = False

    def _lose(self) -> None:
        """Invariant 2."""
        self.generation = -1
        if self._owns:
            self._owns = False
            self._owner.lost()

    # joining
    async def _join(self) -> list[TopicPartition]:
        """What the new generation assigns."""
        joined = await self._send_join()
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = joined.member_id
            joined = await self._send_join()
        if joined.error_code:
            raise BrokerError(error_of(joined.error_code))
        self.member_id, self.generation = joined.member_id, joined.generation_id
        assignments: list[groups.SyncGroupRequestAssignment] = []
        self._counts = None
        if joined.leader == joined.member_id and not joined.skip_assignment:
            assignments = await self._assign(joined)
        request = groups.SyncGroupRequest(
            group_id=self.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self._instance_id,
            protocol_type=_PROTOCOL_TYPE,
            protocol_name=joined.protocol_name,
            assignments=assignments,
        )
        synced = await self._send(request, _SYNC, self._rebalance_ms + _ANSWER_MS)
        if synced.error_code:
            raise BrokerError(error_of(synced.error_code))
        partitions = assigned_partitions(bytes(synced.assignment))
        self._heard_ms = self._now_ms()
        self.rebalances += 1
        _logger.info(
            "{group}: generation {generation} assigns {count} partitions to {member}",
            group=self.group_id,
            generation=self.generation,
            count=len(partitions),
            member=self.member_id,
        )
        return partitions

    async def _send_join(self) -> Any:
        metadata = subscription_bytes(self._topics)
        request = groups.JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=self._session_ms,
            rebalance_timeout_ms=self._rebalance_ms,
            member_id=self.member_id,
            group_instance_id=self._instance_id,
            protocol_type=_PROTOCOL_TYPE,
            protocols=[
                groups.JoinGroupRequestProtocol(name=name, metadata=metadata)
                for name in self._config.strategies
            ],
        )
        return await self._send(request, _JOIN, self._rebalance_ms + _ANSWER_MS)

    async def _assign(self, joined: Any) -> list[groups.SyncGroupRequestAssignment]:
        """As the leader of the group: for all members."""
        subscriptions = {
            each.member_id: subscribed_topics(bytes(each.metadata)) for each in joined.members
        }
        self._counts = await self._partition_counts(
            {topic for topics in subscriptions.values() for topic in topics}
        )
        assigned = ASSIGNORS[joined.protocol_name](
            subscriptions, {topic: range(count) for topic, count in self._counts.items()}
        )
        return [
            groups.SyncGroupRequestAssignment(
                member_id=member, assignment=assignment_bytes(partitions)
            )
            for member, partitions in assigned.items()
        ]

    async def _partition_counts(self, topics: Iterable[str]) -> dict[str, int]:
        found = (await self._client.metadata(sorted(topics))).topics
        return {topic: len(found[topic].partitions) if topic in found else 0 for topic in topics}

    # while it is a member
    async def _heartbeats(self) -> None:
        """Returns when it is to join again."""
        looked_ms = self._now_ms()
        while True:
            await self._client.pause(self._config.integer("heartbeat.interval.ms"))
            if await self._is_rebalancing():
                return
            age_ms = self._now_ms() - looked_ms
            if self._counts is not None and age_ms >= self._config.integer("metadata.max.age.ms"):
                looked_ms = self._now_ms()
                if await self._partition_counts(self._counts) != self._counts:
                    return

    async def _is_rebalancing(self) -> bool:
        """A heartbeat. Raises `BrokerError`."""
        request = groups.HeartbeatRequest(
            group_id=self.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self._instance_id,
        )
        code = error_of((await self._send(request, _HEARTBEAT)).error_code)
        if code not in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            raise BrokerError(code)
        self._heard_ms = self._now_ms()
        if self._is_unreachable:
            self._is_unreachable = False
            _logger.info("{group}: its coordinator is reached again", group=self.group_id)
        return code is ErrorCode.REBALANCE_IN_PROGRESS

    # offsets
    async def commit(
        self, positions: Mapping[TopicPartition, tuple[int, int]], patience_ms: int = 0
    ) -> None:
        """Commits (offset, leader epoch or -1), one commit after another. A coordinator that cannot
        be reached is tried `_TRIES` times, and for `patience_ms`. Raises `CommitFailed`.
        """
        # Of now: by the time of a later try this member may have joined another generation, where
        # others own these partitions, and have committed more of them.
        generation = self.generation
        member_id = self.member_id if generation >= 0 else ""
        await self._commits.acquire()
        try:
            until_ms, tries = self._now_ms() + patience_ms, 0
            while True:
                tries += 1
                try:
                    await commit_offsets(
                        await self._coordinator(),
                        self.group_id,
                        positions,
                        generation,
                        member_id,
                        self._instance_id,
                    )
                    return
                except CancelledError:
                    raise
                except Exception as error:
                    refused = isinstance(error, BrokerError) and (
                        error.code not in _COORDINATOR_ERRORS
                    )
                    if refused or (tries >= _TRIES and self._now_ms() >= until_ms):
                        reason = error.code.name if isinstance(error, BrokerError) else error
                        raise CommitFailed(
                            f"offsets of the group {self.group_id} were not committed: {reason}; "
                            "what was handed out since the last commit may come again"
                        ) from None
                self._drop_coordinator()
                await self._client.pause(self._backoff_ms)
        finally:
            self._commits.release()

    async def committed(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, int]]:
        """(offset, leader epoch) that the group committed, (-1, -1) where there is none."""
        return await committed_offsets(
            await self._coordinator(), self.group_id, partitions, self._config.reads_committed
        )

    # the coordinator
    async def _send(self, request: Any, ours: int, timeout_ms: int | None = None) -> Any:
        connection = await self._coordinator()
        return await connection.send(request, ours, timeout_ms)

    async def _coordinator(self) -> ClientConnection:
        if self._connection is None:
            request = offsets.FindCoordinatorRequest(key=self.group_id, key_type=0)
            found = await self._client.send_to_any(request, _FIND)
            if found.error_code:
                raise BrokerError(error_of(found.error_code))
            endpoint = BrokerEndPoint(found.node_id, found.host, found.port)
            # One of its own: a JoinGroup waits for others, and answers come in order.
            if self._connection is None:
                self._connection = self._client.connect(endpoint, self._client.client_id)
        return self._connection

    def _drop_coordinator(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _now_ms(self) -> int:
        return self._client.runtime.now_ms()
