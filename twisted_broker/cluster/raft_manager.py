"""A voter's messages to the others, and its timers.

Owns one connection for each node, and the translation of the core's requests into the wire's form
and of answers back.

1. It decides nothing. One request is under way for each node, as the core wants it; a connection
   that failed is made anew, and its name resolved again.
2. What cannot be understood of an answer is no answer: the core hears that the connection failed.
3. A pre-vote is never sent in a version that would make it a vote.

Source: Kafka's `KafkaRaftManager`, `KafkaNetworkChannel`; QU 0.5, 2.4 to 2.18, 2.34. Not here: when
and what (`raft`), the disk (`metadata_log.py`), requests of others (`raft_requests.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.logger import Logger

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.cluster.features import KRAFT_VERSION
from twisted_broker.cluster.metadata_log import MetadataLog, Quorum
from twisted_broker.cluster.unexpected_errors import UnexpectedErrors
from twisted_broker.image.metadata_image import MetadataImage
from twisted_broker.interfaces import IDelayedCall, IRandom, Runtime
from twisted_broker.net.client import BrokerConnection
from twisted_broker.net.connector import PLAIN, Connector
from twisted_broker.net.listeners import plan_listeners
from twisted_broker.raft import messages
from twisted_broker.raft.consequences import Leader, Send
from twisted_broker.raft.control_records import control_records
from twisted_broker.raft.log_view import Batch, Diverging, OffsetAndEpoch
from twisted_broker.raft.messages import Answer, Fetched, SnapshotPiece
from twisted_broker.raft.quorum_state import LocalNode, QuorumConfig
from twisted_broker.raft.replica_key import Address, Endpoint, ReplicaKey
from twisted_broker.raft.states import NEVER
from twisted_broker.raft.voter_set import VoterNode, VoterSet
from twisted_broker.topic_names import METADATA_TOPIC, METADATA_TOPIC_ID
from twisted_broker.wire.errors import ErrorCode, error_of
from twisted_broker.wire.messages import fetch as fetch_messages
from twisted_broker.wire.messages import quorum
from twisted_broker.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from twisted_broker.wire.records import CorruptRecordError, iterate_batches

_logger = Logger()
_LATEST = {1: 18, 18: 4, 52: 2, 53: 1, 54: 1, 59: 1, 80: 1, 81: 0, 82: 0}
_ACK_SINCE = 1  # of AddRaftVoter: it is answered before the commit, where that is wanted
_PRE_VOTES_SINCE = 2  # of Vote
_FIRST_FETCH = 17  # brings the leader's address
_RECONNECT_MS, _MOST_RECONNECT_MS = 50, 500
_LOCAL = ("localhost", "127.0.0.1", "::1")
_ANY = ("", "0.0.0.0", "::")  # noqa: S104 - read, not bound


def quorum_of(
    config: BrokerConfig, directory_id: bytes, random: IRandom, has_led: bool = False
) -> Quorum:
    """Who votes where the log does not say it: `controller.quorum.voters`; without it this node
    alone, unless `controller.quorum.bootstrap.servers` names others and it never led (`has_led`).
    """
    own, name = ReplicaKey(config.node_id, directory_id), listener_name(config)
    named = config.names("controller.quorum.voters")
    servers = other_controllers(config)
    voters = [VoterNode(ReplicaKey(own.id))]
    if len(named) > 1:
        voters = []
        for entry in named:
            node_id, _, address = entry.partition("@")
            endpoint = Endpoint(name, *_address(address))
            voters.append(VoterNode(ReplicaKey(int(node_id)), (endpoint,)))
    elif servers and not named and not has_led:
        voters = []
    if not servers:
        servers = tuple(
            each.endpoints[0].address for each in voters if each.id != own.id and each.endpoints
        )
    prefix = "controller.quorum"
    return Quorum(
        LocalNode(own),
        VoterSet(voters),
        QuorumConfig(
            config.integer(f"{prefix}.election.timeout.ms"),
            config.integer(f"{prefix}.fetch.timeout.ms"),
            config.integer(f"{prefix}.election.backoff.max.ms"),
            config.integer(f"{prefix}.request.timeout.ms"),
            config.integer(f"{prefix}.retry.backoff.ms"),
            config.integer(f"{prefix}.fetch.max.bytes"),
            config.integer(f"{prefix}.fetch.snapshot.max.bytes"),
            auto_join=config.boolean(f"{prefix}.auto.join.enable"),
        ),
        random.randrange,
        servers,
        name,
        config.integer("metadata.max.retention.bytes"),
        config.integer("metadata.max.retention.ms"),
    )


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return Address(host.strip("[]"), int(port))


def other_controllers(config: BrokerConfig) -> tuple[Address, ...]:
    """`controller.quorum.bootstrap.servers` but for this node's own listeners."""
    own = set[Address]()
    plan = plan_listeners(config)
    for each in plan.controller:
        other = plan.advertised[each.name]
        own |= {Address(each.host, each.port), Address(other.host, other.port)}
        if each.host in (*_LOCAL, *_ANY):
            own |= {Address(host, each.port) for host in _LOCAL}
    found = map(_address, config.names("controller.quorum.bootstrap.servers"))
    return tuple(each for each in found if each not in own)


def advertised_listener(config: BrokerConfig) -> Endpoint:
    """Where other controllers find this one. Raises ConfigError."""
    plan, name = plan_listeners(config), listener_name(config)
    found = plan.advertised.get(name)
    host, port = ("", 0) if found is None else (found.host, found.port)
    return Endpoint(name, "localhost" if host in _ANY else host, port)


def listener_name(config: BrokerConfig) -> str:
    """By which the controllers find each other."""
    return next(iter(config.names("controller.listener.names")), "CONTROLLER").upper()


class RaftManager:
    """`on_leader`, `on_snapshot`: another leader is known; a snapshot took the log's place.
    `on_end`: the hand-over is done.
    """

    def __init__(
        self,
        runtime: Runtime,
        node_id: int,
        cluster_id: str,
        request_timeout_ms: int,
        on_leader: Callable[[Leader], None],
        on_snapshot: Callable[[MetadataImage], None],
        on_end: Callable[[], None],
        connector: Connector = PLAIN,
    ) -> None:
        self.now_ms = runtime.now_ms
        self.leader_changed, self.snapshot_loaded, self.may_end = on_leader, on_snapshot, on_end
        self._runtime, self._node_id, self._cluster_id = runtime, node_id, cluster_id
        self._timeout_ms, self._connector = request_timeout_ms, connector
        self._connections: dict[int, BrokerConnection] = {}
        self._unexpected = UnexpectedErrors("requests to other controllers")
        self._under_way: set[Deferred[None]] = set()
        self._failures: dict[int, int] = {}  # in a row, by node
        self._resting: set[IDelayedCall] = set()
        self._timer: IDelayedCall | None = None
        self._wake_at_ms = NEVER
        self._is_closed = False

    def say(self, line: str, is_warning: bool) -> None:
        (_logger.warn if is_warning else _logger.info)("quorum: {line}", line=line)

    # timers

    def stepped(self, log: MetadataLog) -> None:
        """Calls for the next tick, where that is another time than before."""
        wake_at_ms = NEVER if log.is_over or self._is_closed else log.wake_at_ms
        if wake_at_ms == self._wake_at_ms and (wake_at_ms == NEVER or self._timer is not None):
            return
        self._wake_at_ms = wake_at_ms
        self._cancel_timer()
        if wake_at_ms != NEVER:
            delay = max(0.0, wake_at_ms - self.now_ms()) / 1000
            self._timer = self._runtime.clock.callLater(delay, self._ring, log)

    def _ring(self, log: MetadataLog) -> None:
        self._timer = None
        log.tick()

    def _cancel_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None and timer.active():
            timer.cancel()

    def close(self) -> None:
        """Nothing is sent any more."""
        self._is_closed = True
        self._cancel_timer()
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.close()
        for sending in list(self._under_way):
            sending.cancel()
        for rest in self._resting:
            if rest.active():
                rest.cancel()
        self._resting.clear()

    # requests

    def send(self, log: MetadataLog, request: Send) -> None:
        if self._is_closed:
            return
        sending = ensureDeferred(self._sent(log, request))
        self._under_way.add(sending)

        def ended(result: Any) -> None:
            self._under_way.discard(sending)
            if self._is_closed:
                return
            if isinstance(result, Answer):
                self._failures.pop(request.node, None)
                log.answered(request.correlation, result)
            else:
                self._rest(log, request)

        sending.addBoth(ended)

    async def _sent(self, log: MetadataLog, request: Send) -> Any:
        connection = self._connection(request.node, request.address)
        try:
            if not connection.api_versions:
                await connection.negotiate(timeout_ms=self._timeout_ms)
            return await self._exchange(log, connection, request.request)
        except Exception as error:
            self._unexpected.failed(error)
            # Whatever it was: the core tries again, and an answer that comes late is not expected.
            connection.close()
            if self._connections.get(request.node) is connection:
                del self._connections[request.node]
            raise

    def _rest(self, log: MetadataLog, request: Send) -> None:
        """A node that cannot be reached is tried again after a pause, a longer one each time."""
        failures = self._failures.get(request.node, 0)
        self._failures[request.node] = failures + 1
        pause_ms = min(_MOST_RECONNECT_MS, _RECONNECT_MS << min(failures, 4))

        def rested() -> None:
            self._resting.discard(rest)
            log.answered(request.correlation, None)

        rest = self._runtime.clock.callLater(pause_ms / 1000, rested)
        self._resting.add(rest)

    def _connection(self, node: int, address: Address) -> BrokerConnection:
        known = self._connections.get(node)
        if known is not None and (known.host, known.port) == address:
            return known
        if known is not None:
            known.close()
        made = self._connections[node] = BrokerConnection(
            self._runtime,
            address.host,
            address.port,
            f"raft-client-{self._node_id}",
            request_timeout_ms=self._timeout_ms,
            connect_timeout_ms=self._timeout_ms,
            connector=self._connector,
        )
        return made

    async def _exchange(
        self, log: MetadataLog, connection: BrokerConnection, request: messages.Request
    ) -> Answer:
        match request:
            case messages.Vote():
                version = connection.highest_version(52, _LATEST[52])
                if request.pre_vote and version < _PRE_VOTES_SINCE:
                    return Answer(top_level=ErrorCode.UNSUPPORTED_VERSION)
                return _election_answer(await connection.send(self._vote(request), version))
            case messages.BeginQuorumEpoch():
                version = connection.highest_version(53, _LATEST[53])
                return _election_answer(await connection.send(self._begin(request), version))
            case messages.EndQuorumEpoch():
                version = connection.highest_version(54, _LATEST[54])
                return _election_answer(await connection.send(self._end(request), version))
            case messages.Fetch():
                version = connection.highest_version(1, _LATEST[1])
                if version < _FIRST_FETCH:
                    return Answer(top_level=ErrorCode.UNSUPPORTED_VERSION)
                answer = await connection.send(self._fetch(request), version)
                return _fetch_answer(answer, log.quorum.listener)
            case messages.FetchSnapshot():
                version = connection.highest_version(59, _LATEST[59])
                return _snapshot_answer(await connection.send(self._snapshot(request), version))
            case messages.UpdateRaftVoter():
                version = connection.highest_version(82, _LATEST[82])
                return _update_answer(await connection.send(self._update(request), version))
            case messages.AddRaftVoter():
                version = connection.highest_version(80, _LATEST[80])
                if version < _ACK_SINCE and not request.ack_when_committed:
                    return Answer(top_level=ErrorCode.UNSUPPORTED_VERSION)
                added = await connection.send(self._add(request), version)
                return Answer(error_of(added.error_code), message=added.error_message or "")
            case messages.RemoveRaftVoter():
                version = connection.highest_version(81, _LATEST[81])
                removed = await connection.send(self._remove(request), version)
                return Answer(error_of(removed.error_code), message=removed.error_message or "")
            case messages.ApiVersions():
                version = connection.highest_version(18, _LATEST[18])
                asked = ApiVersionsRequest(
                    client_software_name="twisted-broker", client_software_version="0"
                )
                return _versions_answer(await connection.send(asked, version))

    def _vote(self, request: messages.Vote) -> quorum.VoteRequest:
        voter = request.voter
        assert voter is not None
        partition = quorum.VoteRequestPartitionData(
            replica_epoch=request.epoch,
            replica_id=request.replica.id,
            replica_directory_id=request.replica.directory_id,
            voter_directory_id=voter.directory_id,
            last_offset_epoch=request.end.epoch,
            last_offset=request.end.offset,
            pre_vote=request.pre_vote,
        )
        topic = quorum.VoteRequestTopicData(topic_name=METADATA_TOPIC, partitions=[partition])
        return quorum.VoteRequest(cluster_id=self._cluster_id, voter_id=voter.id, topics=[topic])

    def _begin(self, request: messages.BeginQuorumEpoch) -> quorum.BeginQuorumEpochRequest:
        voter = request.voter
        assert voter is not None
        partition = quorum.BeginQuorumEpochRequestPartitionData(
            voter_directory_id=voter.directory_id,
            leader_id=request.leader_id,
            leader_epoch=request.epoch,
        )
        topic = quorum.BeginQuorumEpochRequestTopicData(
            topic_name=METADATA_TOPIC, partitions=[partition]
        )
        endpoints = [
            quorum.QuorumEndpoint(name=each.name, host=each.host, port=each.port)
            for each in request.endpoints
        ]
        return quorum.BeginQuorumEpochRequest(
            cluster_id=self._cluster_id,
            voter_id=voter.id,
            topics=[topic],
            leader_endpoints=endpoints,
        )

    def _end(self, request: messages.EndQuorumEpoch) -> quorum.EndQuorumEpochRequest:
        partition = quorum.EndQuorumEpochRequestPartitionData(
            leader_id=request.leader_id,
            leader_epoch=request.epoch,
            preferred_successors=[each.id for each in request.successors],
            preferred_candidates=[
                quorum.EndQuorumEpochReplicaInfo(
                    candidate_id=each.id, candidate_directory_id=each.directory_id
                )
                for each in request.successors
            ],
        )
        topic = quorum.EndQuorumEpochRequestTopicData(
            topic_name=METADATA_TOPIC, partitions=[partition]
        )
        return quorum.EndQuorumEpochRequest(cluster_id=self._cluster_id, topics=[topic])

    def _fetch(self, request: messages.Fetch) -> fetch_messages.FetchRequest:
        partition = fetch_messages.FetchPartition(
            partition=0,
            current_leader_epoch=request.epoch,
            fetch_offset=request.end.offset,
            last_fetched_epoch=request.end.epoch,
            replica_directory_id=request.replica.directory_id,
            high_watermark=request.high_watermark,
        )
        topic = fetch_messages.FetchTopic(topic_id=METADATA_TOPIC_ID, partitions=[partition])
        return fetch_messages.FetchRequest(
            cluster_id=self._cluster_id,
            replica_state=fetch_messages.ReplicaState(replica_id=request.replica.id),
            max_wait_ms=request.max_wait_ms,
            min_bytes=0,
            max_bytes=request.max_bytes,
            topics=[topic],
        )

    def _update(self, request: messages.UpdateRaftVoter) -> quorum.UpdateRaftVoterRequest:
        voter = request.voter
        return quorum.UpdateRaftVoterRequest(
            cluster_id=self._cluster_id,
            current_leader_epoch=request.epoch,
            voter_id=voter.id,
            voter_directory_id=voter.key.directory_id,
            listeners=_listeners(voter),
            k_raft_version_feature=quorum.KRaftVersionFeature(
                min_supported_version=voter.min_version, max_supported_version=voter.max_version
            ),
        )

    def _add(self, request: messages.AddRaftVoter) -> quorum.AddRaftVoterRequest:
        voter = request.voter
        return quorum.AddRaftVoterRequest(
            cluster_id=self._cluster_id,
            timeout_ms=self._timeout_ms,
            voter_id=voter.id,
            voter_directory_id=voter.key.directory_id,
            listeners=_listeners(voter),
            ack_when_committed=request.ack_when_committed,
        )

    def _remove(self, request: messages.RemoveRaftVoter) -> quorum.RemoveRaftVoterRequest:
        return quorum.RemoveRaftVoterRequest(
            cluster_id=self._cluster_id,
            voter_id=request.key.id,
            voter_directory_id=request.key.directory_id,
        )

    def _snapshot(self, request: messages.FetchSnapshot) -> quorum.FetchSnapshotRequest:
        partition = quorum.FetchSnapshotRequestPartitionSnapshot(
            partition=0,
            current_leader_epoch=request.epoch,
            snapshot_id=quorum.FetchSnapshotRequestSnapshotId(
                end_offset=request.id.offset, epoch=request.id.epoch
            ),
            position=request.position,
            replica_directory_id=request.replica.directory_id,
        )
        topic = quorum.FetchSnapshotRequestTopicSnapshot(
            name=METADATA_TOPIC, partitions=[partition]
        )
        return quorum.FetchSnapshotRequest(
            cluster_id=self._cluster_id,
            replica_id=request.replica.id,
            max_bytes=request.max_bytes,
            topics=[topic],
        )


def _listeners(voter: VoterNode) -> list[quorum.RaftVoterListener]:
    return [
        quorum.RaftVoterListener(name=each.name, host=each.host, port=each.port)
        for each in voter.endpoints
    ]


def _versions_answer(answer: ApiVersionsResponse) -> Answer:
    if answer.error_code:
        return Answer(top_level=error_of(answer.error_code))
    served = {each.name: each for each in answer.supported_features}.get(KRAFT_VERSION)
    return Answer(versions=(0, 0) if served is None else (served.min_version, served.max_version))


def _update_answer(answer: quorum.UpdateRaftVoterResponse) -> Answer:
    leader = answer.current_leader
    address = Address(leader.host, leader.port) if leader.host else None
    return Answer(error_of(answer.error_code), leader.leader_id, leader.leader_epoch, address)


def _address_of(endpoints: Any, leader_id: int) -> Address | None:
    return next(
        (Address(each.host, each.port) for each in endpoints if each.node_id == leader_id), None
    )


def _election_answer(answer: Any) -> Answer:
    """Of Vote, BeginQuorumEpoch and EndQuorumEpoch."""
    if answer.error_code:
        return Answer(top_level=error_of(answer.error_code))
    found = answer.topics[0].partitions[0]
    return Answer(
        error_of(found.error_code),
        found.leader_id,
        found.leader_epoch,
        _address_of(answer.node_endpoints, found.leader_id),
        granted=getattr(found, "vote_granted", False),
    )


def _fetch_answer(answer: fetch_messages.FetchResponse, listener: str) -> Answer:
    if answer.error_code:
        return Answer(top_level=error_of(answer.error_code))
    found = answer.responses[0].partitions[0]
    leader = found.current_leader
    diverging, snapshot = found.diverging_epoch, found.snapshot_id
    fetched = Fetched(
        found.high_watermark,
        found.log_start_offset,
        batches=_batches(found.records, listener),
        diverging=Diverging(diverging.epoch, diverging.end_offset)
        if diverging.epoch >= 0
        else None,
        snapshot=OffsetAndEpoch(snapshot.end_offset, snapshot.epoch)
        if snapshot.end_offset >= 0
        else None,
    )
    return Answer(
        error_of(found.error_code),
        leader.leader_id,
        leader.leader_epoch,
        _address_of(answer.node_endpoints, leader.leader_id),
        fetched=fetched if not found.error_code else None,
    )


def _batches(records: Any, listener: str) -> tuple[Batch, ...]:
    """Up to the first that is damaged: the next fetch asks for the rest."""
    found: list[Batch] = []
    try:
        for batch in iterate_batches(records or b"", partial_tail=True, check_crc=True):
            data = memoryview(batch.buffer)[batch.offset : batch.offset + batch.size_in_bytes]
            epoch = batch.partition_leader_epoch
            control = control_records(batch, listener) if batch.is_control else ()
            found.append(Batch(batch.base_offset, batch.last_offset, epoch, control, bytes(data)))
    except CorruptRecordError as error:
        if not found:
            raise
        _logger.warn("the leader's metadata is damaged on its way: {error}", error=error)
    return tuple(found)


def _snapshot_answer(answer: quorum.FetchSnapshotResponse) -> Answer:
    if answer.error_code:
        return Answer(top_level=error_of(answer.error_code))
    found = answer.topics[0].partitions[0]
    snapshot, leader = found.snapshot_id, found.current_leader
    content = bytes(found.unaligned_records or b"")
    piece = SnapshotPiece(
        OffsetAndEpoch(snapshot.end_offset, snapshot.epoch),
        found.position,
        size=found.size,
        content=content,
    )
    return Answer(
        error_of(found.error_code),
        leader.leader_id,
        leader.leader_epoch,
        _address_of(answer.node_endpoints, leader.leader_id),
        piece=piece,
    )
