"""A broker follows the metadata log.

Owns the fetch loop, which node leads, and the publishing of images.

1. The image only moves forward; subscribers get every delta, in order, each before the next image
   is published.
2. The leader is learnt from answers: errors carry its id, epoch and address. Without a leader the
   bootstrap addresses are tried in turn. No heartbeat is sent meanwhile, so a silent one must not
   use a session up: see `_first_answer_ms`.
3. A subscriber that raises is logged; the others still get the delta.
4. Another cluster's id, or a record that is not understood, ends it (`on_fatal`): going on would
   be guessing. An answer that is not Kafka's protocol comes from no controller (another program has
   its port now), and is tried again like silence.
5. A leader whose metadata contradicts what was applied ends it as well, and nothing of it is
   published. Where its log shows that, at once. Where it leads an older epoch, or its log ends
   before what is known, only after it has said so for `_CONTRADICTED_MS`, or when that log grows
   meanwhile. An older epoch counts only from a quorum of one: a voter that is isolated from the
   others may lead an old epoch, or name its leader.
6. Committed records go to the broker's own log (`own_log`) before they are published; after a start
   the broker follows on from the end of that log.

Source: Kafka's `KafkaRaftClient` (observer), `MetadataLoader`; KRAFT 3.2; `RL 8.2`. Not here: what
is done with an image, that log itself (`observer_log.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

from twisted.internet.defer import CancelledError, Deferred, ensureDeferred, succeed
from twisted.internet.error import ConnectionLost, ConnectionRefusedError
from twisted.internet.task import deferLater
from twisted.logger import Logger

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.cluster.controller_channel import Address, check_answer
from twisted_broker.cluster.denials import Denials
from twisted_broker.cluster.metadata_check import EMPTY_LOG, LogEnd
from twisted_broker.cluster.metadata_loader import MetadataLoader, MetadataRegression
from twisted_broker.cluster.observer_log import ObserverLog
from twisted_broker.cluster.snapshots import SnapshotId
from twisted_broker.image.metadata_image import EMPTY, MetadataDelta, MetadataImage, Removals
from twisted_broker.interfaces import Runtime
from twisted_broker.net.client import BrokerConnection
from twisted_broker.net.connector import PLAIN, Connector
from twisted_broker.topic_names import METADATA_TOPIC, METADATA_TOPIC_ID
from twisted_broker.wire.errors import BrokerError, ErrorCode, WireError
from twisted_broker.wire.messages import cluster as cluster_messages
from twisted_broker.wire.messages import fetch as fetch_messages
from twisted_broker.wire.messages import quorum
from twisted_broker.wire.primitives import NULL_UUID

T = TypeVar("T")
_logger = Logger()
_FETCH_BYTES = 8 << 20
_MAX_WAIT_MS = 500
# So long a leader may be behind what is known: it has just started, or does not know yet that
# another one leads.
_CONTRADICTED_MS = 10_000
_SILENCE_MS = 1_000  # between two answers more than this counts as this: nothing was heard
_FETCH, _DESCRIBE_QUORUM, _FETCH_SNAPSHOT = 1, 55, 59
Subscriber = Callable[[MetadataDelta], None]


class _Contradiction:
    """For how long a leader that is behind what is known has answered."""

    def __init__(self) -> None:
        self._heard_ms = 0
        self._last_ms: int | None = None
        self._end_offset = -1

    def is_final(self, now_ms: int, end_offset: int = -1) -> bool:
        """Counts one more such answer. True when the contradiction has lasted too long, or when
        `end_offset` (-1 not known) has grown: new records below what is known are another log.
        """
        if self._last_ms is not None:
            self._heard_ms += min(now_ms - self._last_ms, _SILENCE_MS)
        grew = 0 <= self._end_offset < end_offset
        self._last_ms, self._end_offset = now_ms, end_offset
        return grew or self._heard_ms >= _CONTRADICTED_MS


class MetadataObserver:
    """`bootstrap`: addresses of controllers. `on_fatal(error)` is called once, when following has
    ended for good.

    `own_log`: the broker's own log, with the image `base` that it gave.
    """

    def __init__(
        self,
        runtime: Runtime,
        config: BrokerConfig,
        cluster_id: str | None,
        bootstrap: Sequence[Address],
        directory_id: bytes = NULL_UUID,
        own_log: ObserverLog | None = None,
        base: MetadataImage = EMPTY,
        on_fatal: Callable[[BaseException], None] = lambda error: None,
        connector: Connector = PLAIN,
    ) -> None:
        self.cluster_id = cluster_id
        self.leader_id = -1
        self.leader_epoch = (
            base.epoch if own_log is None else max(base.epoch, own_log.known_end.epoch)
        )
        self.leader_address: Address | None = None
        self.leader_waiters: list[Deferred[None]] = []
        self._on_fatal, self._connector = on_fatal, connector
        self.unreachable = False
        self._runtime, self._node_id, self._directory_id = runtime, config.node_id, directory_id
        # Under its own id a fetch would be taken for its controller's, which syncs what it fetches.
        self._replica_id = -1 if "controller" in config.names("process.roles") else config.node_id
        self._timeout_ms = config.integer("controller.quorum.fetch.timeout.ms")
        self._session_ms = config.integer("broker.session.timeout.ms")
        self._backoff_ms = config.integer("controller.quorum.retry.backoff.ms")
        self._denials = Denials()
        self._bootstrap = list(bootstrap)
        self._requested = 0
        self._own_log = own_log
        self._snapshot_bytes = config.integer("metadata.log.max.record.bytes.between.snapshots")
        self._snapshot_ms = config.integer("metadata.log.max.snapshot.interval.ms")
        self._loader = (
            MetadataLoader(base)
            if own_log is None
            else MetadataLoader(
                base,
                own_log.transactions,
                own_log.last_batch,
                own_log.append,
                own_log.take_removals(),
                own_log.history,
            )
        )
        self._contradiction = _Contradiction()
        self._logged_error = ""
        self._subscribers: list[Subscriber] = []
        self._reaching: list[tuple[int, Deferred[None]]] = []
        # When the newest fetch was sent whose answer brought the image to the high watermark.
        self.caught_up_as_of = -1.0
        self._hurried = False
        self._connection: BrokerConnection | None = None
        self._traffic = (0, 0, 0, 0)  # over earlier connections
        self._running: Deferred[None] | None = None
        self._stopped = False
        self._refusals = self._refused_since_ms = 0
        self._unanswered = 0  # connections that failed, one after the other

    @property
    def image(self) -> MetadataImage:
        """The newest image."""
        return self._loader.image

    @property
    def kraft_version(self) -> int:
        return self._loader.history.kraft_version

    def take_removals(self) -> Removals | None:
        """What records removed since the beginning of the own log; no more is noted."""
        found, self._loader.removals = self._loader.removals, None
        return found

    def subscribe(self, subscriber: Subscriber) -> None:
        """`subscriber(delta)` is called after each change of the image; `delta.after` is the
        image.
        """
        self._subscribers.append(subscriber)

    def hurry(self) -> None:
        """The next fetch is answered at once, with or without news."""
        self._hurried = True

    def reaches(self, offset: int) -> Deferred[None]:
        """Fires when the image includes `offset`, after the subscribers were called."""
        if self.image.offset >= offset:
            return succeed(None)
        waiter: Deferred[None] = Deferred()
        self._reaching.append((offset, waiter))
        return waiter

    def start(self) -> None:
        self._running = ensureDeferred(self._follow())

    def stop(self) -> None:
        """Nothing is published any more."""
        self._stopped = True
        if self._connection is not None:
            self._connection.close()
        running, self._running = self._running, None
        if running is not None:
            running.cancel()

    # the loop

    async def _follow(self) -> None:
        while not self._stopped:
            pause_ms = self._backoff_ms
            try:
                settled = await self._round()
                self._refusals = self._unanswered = 0
                self._denials.succeeded()
            except CancelledError:
                return
            except (WireError, AssertionError, MetadataRegression) as error:
                self._end(error)
                return
            except BrokerError as error:
                if error.code is ErrorCode.INCONSISTENT_CLUSTER_ID:
                    self._end(error)
                    return
                if self._logged_error != str(error):
                    self._logged_error = str(error)
                    _logger.warn(
                        "fetching metadata from {address} failed, retrying: {error}",
                        address="{}:{}".format(*self._address()),
                        error=error,
                    )
                self._refusals = 0
                self._lost_leader()
                settled, pause_ms = False, self._denials.pause_ms(error, pause_ms)
            except Exception as error:
                self._log_unreachable(error)
                self._count_refusal(error)
                self._unanswered += 1
                self._lost_leader()
                settled, pause_ms = False, self._denials.pause_ms(error, pause_ms)
            if not settled:
                try:
                    await deferLater(self._runtime.clock, pause_ms / 1000, lambda: None)  # type: ignore[arg-type]
                except CancelledError:
                    return

    def _log_unreachable(self, error: Exception) -> None:
        """Once, until a controller answers again."""
        if not self.unreachable and not self._stopped:
            self.unreachable = True
            host, port = self._address()
            _logger.warn(
                "no controller answers, retrying; the last one tried was {host}:{port}: {error}",
                host=host,
                port=port,
                error=error,
            )

    def _count_refusal(self, error: Exception) -> None:
        if not isinstance(error, ConnectionRefusedError):
            self._refusals = 0
            return
        if not self._refusals:
            self._refused_since_ms = self._runtime.now_ms()
        self._refusals += 1

    @property
    def refused_ms(self) -> int | None:
        """For how long no process listens where a controller may be: every address was tried,
        and refused. None: somebody may be there.
        """
        return (
            None
            if self._refusals < len(self._bootstrap)
            else self._runtime.now_ms() - self._refused_since_ms
        )

    def _end(self, error: BaseException) -> None:
        if not self._stopped:
            self._stopped = True
            self._on_fatal(error)

    @property
    def address(self) -> Address:
        """The address of the controller that is, or will be next, fetched from."""
        return self._address()

    def _contradicts(self, found: LogEnd, reason: str, end_offset: int = -1) -> None:
        """Notes a contradiction that may pass. MetadataRegression when it did not pass."""
        if self._contradiction.is_final(self._runtime.now_ms(), end_offset):
            known_end = EMPTY_LOG if self._own_log is None else self._own_log.known_end
            applied = self._loader.applied
            raise MetadataRegression(
                LogEnd(max(applied.end_offset, known_end.end_offset), self.leader_epoch),
                found,
                reason,
            )

    async def _check_older_epoch(
        self, connection: BrokerConnection, leader: fetch_messages.LeaderIdAndEpoch
    ) -> None:
        """The node that answered names an older epoch than is known here: queries whether it is a
        quorum of one. MetadataRegression, ConnectionLost.
        """
        try:
            version = connection.highest_version(_DESCRIBE_QUORUM, 2)
            response = await _answered(connection.send(_quorum_request(), version))
            check_answer(response.error_code)
            quorum_now = response.topics[0].partitions[0]
            check_answer(quorum_now.error_code)  # of one that does not lead, as it knows
        except (BrokerError, IndexError):
            return
        epoch = quorum_now.leader_epoch
        voters = [each.replica_id for each in quorum_now.current_voters]
        if voters == [quorum_now.leader_id] == [leader.leader_id] and epoch < self.leader_epoch:
            found = LogEnd(max(0, quorum_now.high_watermark), epoch)
            self._contradicts(found, "is led under an older epoch")

    def _address(self) -> Address:
        return self.leader_address or self._bootstrap[self._requested % len(self._bootstrap)]

    def _lost_leader(self) -> None:
        """Nobody answers there: try the next bootstrap address.

        Channels have no address until an answer names the leader.
        """
        self._requested += 1
        self._disconnect()
        self.leader_address = None

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._traffic = self.traffic
            self._connection.close()
            self._connection = None

    @property
    def traffic(self) -> tuple[int, int, int, int]:
        """Requests to controllers, answers, bytes received and sent, since the start."""
        before, now = self._traffic, self._connection
        if now is None:
            return before
        requests, answers, bytes_in, bytes_out = before
        return (
            requests + now.requests,
            answers + now.answers,
            bytes_in + now.bytes_in,
            bytes_out + now.bytes_out,
        )

    @property
    def _first_answer_ms(self) -> int:
        """How long a controller may take to accept a connection, and again to answer which versions
        it serves. While others are to be tried a third of a session at first, and twice as long
        each time that all were tried: the way to them may be slow.
        """
        longest = self._timeout_ms + _MAX_WAIT_MS
        if len(self._bootstrap) == 1:
            return longest
        rounds = self._unanswered // len(self._bootstrap)
        return min(longest, max(self._session_ms // 3, 1) << min(rounds, 20))

    def _connect(self) -> BrokerConnection:
        address = self._address()
        if (
            self._connection is not None
            and (self._connection.host, self._connection.port) != address
        ):
            self._disconnect()
        if self._connection is None:
            client_id, wait_ms = f"raft-client-{self._node_id}", self._timeout_ms
            self._connection = BrokerConnection(
                self._runtime,
                *address,
                client_id,
                request_timeout_ms=wait_ms + _MAX_WAIT_MS,
                connect_timeout_ms=min(wait_ms, self._first_answer_ms),
                connector=self._connector,
            )
            self._loader.compare_last()
        return self._connection

    async def _round(self) -> bool:
        """One fetch and what follows; False when it brought nothing and a pause is due."""
        connection = self._connect()
        if not connection.api_versions:
            await _answered(connection.negotiate(timeout_ms=self._first_answer_ms))
        version = connection.highest_version(_FETCH, 18)
        sent = self._runtime.clock.seconds()
        response = await _answered(connection.send(self._request(version), version))
        check_answer(response.error_code)
        if not response.responses or not response.responses[0].partitions:
            return False
        answer = response.responses[0].partitions[0]
        new_leader = self._note_leader(answer, response.node_endpoints, connection)
        if answer.error_code:
            is_older = 0 <= answer.current_leader.leader_epoch < self.leader_epoch
            if is_older:
                await self._check_older_epoch(connection, answer.current_leader)
            knows_none = is_older or answer.current_leader.leader_id < 0
            if knows_none and len(self._bootstrap) > 1:
                self._lost_leader()  # another one may know the leader, or be it
            return new_leader
        if self.unreachable:
            self.unreachable = False
            _logger.info(
                "the controller at {host}:{port} answers again",
                host=connection.host,
                port=connection.port,
            )
        known_end = 0 if self._own_log is None else self._own_log.known_end.end_offset
        end_offset = answer.high_watermark  # -1: Kafka's leader has not committed in its epoch yet
        if 0 <= end_offset < known_end and self._loader.applied.end_offset < known_end:
            self._contradicts(
                LogEnd(end_offset, self.leader_epoch),
                "ends below what this broker's directories show",
                end_offset,
            )
            return False
        self._contradiction, self._logged_error = _Contradiction(), ""
        if answer.snapshot_id.end_offset >= 0:
            snapshot = SnapshotId(answer.snapshot_id.end_offset, answer.snapshot_id.epoch)
            if self._loader.wants(snapshot):
                self._loader.note_high_watermark(answer.high_watermark)
                await self._load_snapshot(connection, snapshot)
        elif answer.diverging_epoch.epoch >= 0 or answer.diverging_epoch.end_offset >= 0:
            self._loader.diverged(answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset)
        elif answer.records is not None and len(answer.records):
            work = self._loader.batches_in_steps(bytes(answer.records), answer.high_watermark)
            self._publish(await self._in_turns(work))
        else:
            self._publish(self._loader.advance(answer.high_watermark))
        if 0 <= answer.high_watermark <= self._loader.applied.end_offset:
            self.caught_up_as_of = sent
        return True

    async def _in_turns(self, work: Generator[None, None, T]) -> T:
        """What `work` returns; others are served where it pauses."""
        while True:
            try:
                next(work)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            await deferLater(self._runtime.clock, 0, lambda: None)  # type: ignore[arg-type]

    def _request(self, version: int) -> fetch_messages.FetchRequest:
        partition = fetch_messages.FetchPartition(
            partition=0,
            current_leader_epoch=max(self.leader_epoch, 0),
            fetch_offset=self._loader.fetch_offset,
            last_fetched_epoch=self._loader.last_epoch,
            log_start_offset=0,
            partition_max_bytes=_FETCH_BYTES,
            replica_directory_id=self._directory_id,
            high_watermark=self._loader.high_watermark,
        )
        wait_ms, self._hurried = 0 if self._hurried else _MAX_WAIT_MS, False
        request = fetch_messages.FetchRequest(
            cluster_id=self.cluster_id,
            max_wait_ms=wait_ms,
            min_bytes=0,
            max_bytes=_FETCH_BYTES,
            topics=[
                fetch_messages.FetchTopic(
                    topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[partition]
                )
            ],
        )
        if version < 15:
            request.replica_id = self._replica_id
        else:
            request.replica_state = fetch_messages.ReplicaState(replica_id=self._replica_id)
        return request

    def _note_leader(
        self,
        answer: fetch_messages.PartitionData,
        endpoints: Sequence[fetch_messages.NodeEndpoint],
        connection: BrokerConnection,
    ) -> bool:
        """Learns who leads; True when that is news."""
        leader, epoch = answer.current_leader.leader_id, answer.current_leader.leader_epoch
        address = next(((e.host, e.port) for e in endpoints if e.node_id == leader), None)
        if epoch < self.leader_epoch or epoch < 0:
            return False
        if address is None and not answer.error_code:
            address = (connection.host, connection.port)
        before = (self.leader_id, self.leader_epoch, self.leader_address)
        self.leader_id, self.leader_epoch = leader, epoch
        if leader >= 0 and address is not None:
            self.leader_address = address
        if (self.leader_id, self.leader_epoch, self.leader_address) == before:
            return False
        waiters, self.leader_waiters = self.leader_waiters, []
        for waiter in waiters:
            if not waiter.called:
                waiter.callback(None)
        return True

    async def _load_snapshot(self, connection: BrokerConnection, snapshot: SnapshotId) -> None:
        content = bytearray()
        version = connection.highest_version(_FETCH_SNAPSHOT, 1)
        while True:
            response = await _answered(
                connection.send(self._snapshot_request(snapshot, len(content)), version)
            )
            check_answer(response.error_code)
            answer = response.topics[0].partitions[0]
            check_answer(answer.error_code)
            piece = bytes(answer.unaligned_records or b"")
            content += piece
            if not piece or len(content) >= answer.size:
                break
        delta = await self._in_turns(self._loader.snapshot_in_steps(bytes(content), snapshot))
        if self._own_log is not None:
            self._own_log.install(bytes(content), snapshot)
        self._publish(delta)

    def _snapshot_request(self, snapshot: SnapshotId, position: int) -> quorum.FetchSnapshotRequest:
        partition = quorum.FetchSnapshotRequestPartitionSnapshot(
            partition=0,
            current_leader_epoch=self.leader_epoch,
            snapshot_id=quorum.FetchSnapshotRequestSnapshotId(
                end_offset=snapshot.end_offset, epoch=snapshot.epoch
            ),
            position=position,
            replica_directory_id=self._directory_id,
        )
        topic = quorum.FetchSnapshotRequestTopicSnapshot(
            name=METADATA_TOPIC, partitions=[partition]
        )
        return quorum.FetchSnapshotRequest(
            cluster_id=self.cluster_id,
            replica_id=self._replica_id,
            max_bytes=_FETCH_BYTES,
            topics=[topic],
        )

    # publishing

    def _publish(self, delta: MetadataDelta | None) -> None:
        if delta is None or self._stopped:
            return
        if delta:
            for subscriber in self._subscribers:
                self._publish_to(subscriber, delta)
        reached = [waiter for offset, waiter in self._reaching if offset <= self.image.offset]
        self._reaching = [entry for entry in self._reaching if entry[0] > self.image.offset]
        for waiter in reached:
            if not waiter.called:
                waiter.callback(None)
        if self._own_log is not None and not self._loader.in_transaction:
            self._own_log.consider_snapshot(
                self.image,
                self._loader.last_batch,
                self._runtime.now_ms(),
                self._snapshot_bytes,
                self._snapshot_ms,
            )

    def _publish_to(self, subscriber: Subscriber, delta: MetadataDelta) -> Any:
        try:
            subscriber(delta)
        except Exception:
            _logger.failure("applying the new metadata image failed")


def _quorum_request() -> cluster_messages.DescribeQuorumRequest:
    partition = cluster_messages.DescribeQuorumRequestPartitionData(partition_index=0)
    topic = cluster_messages.DescribeQuorumRequestTopicData(
        topic_name=METADATA_TOPIC, partitions=[partition]
    )
    return cluster_messages.DescribeQuorumRequest(topics=[topic])


async def _answered(answer: Deferred[Any]) -> Any:
    """The answer; bytes that are not Kafka's protocol fail like a lost connection."""
    try:
        return await answer
    except WireError as error:
        raise ConnectionLost(f"this is not a controller: {error}") from error
