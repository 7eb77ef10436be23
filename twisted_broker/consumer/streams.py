"""Streams of records, and the consumer that has them.

Owns `MessageAndMetadata` (one record), `ConsumerStream` (records of one queue, in order) and
`ConsumerConnector` (a member of a group, its fetchers and its streams).

1. One thread id is one queue and one stream. A partition belongs to one stream at a time.
2. The consumed offset moves when a record is handed out, and over what follows a chunk's last
   record when the next is asked for. What is committed are consumed offsets.
3. When partitions are released, nothing of them is handed out any more; then their consumed offsets
   are committed (with `auto.commit.enable`). A lock holds this against a stream that is read in
   another thread.
4. Both offsets begin at the committed one, or where `auto.offset.reset` says.
5. A stream that is read without a pause gives way to the reactor after `SLICE_SECONDS`.
6. What a reader cannot mend by waiting is raised from its stream, once; the stream can be read on,
   and other partitions are not concerned.

Source: RL 7.4, 7.5; Kafka 0.8's `ConsumerIterator`, `ZookeeperConsumerConnector`, with the group
coordinator in ZooKeeper's place. Not here: membership (`group_membership`), fetching
(`consumer_fetcher_manager`). A restart goes on at the committed offsets; between two commits a
crash hands records out again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from threading import Lock
from typing import Any, Final

from twisted.internet.defer import CancelledError, Deferred, ensureDeferred
from twisted.internet.threads import blockingCallFromThread
from twisted.logger import Logger
from twisted.python.threadable import isInIOThread

from twisted_broker.consumer.cluster_client import ClusterClient
from twisted_broker.consumer.consumer_config import ConsumerConfig
from twisted_broker.consumer.consumer_fetcher_manager import ConsumerFetcherManager
from twisted_broker.consumer.errors import (
    ConsumerError,
    ConsumerTimeout,
    InvalidSetting,
)
from twisted_broker.consumer.group_membership import CommitFailed, GroupMembership
from twisted_broker.consumer.partition_topic_info import (
    ChunkQueue,
    FetchedDataChunk,
    PartitionTopicInfo,
)
from twisted_broker.consumer.rebalance import ASSIGNORS
from twisted_broker.consumer.record_iterator import records_of
from twisted_broker.interfaces import Runtime, TopicPartition
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.record_walk import Headers, Record

_logger = Logger()
SLICE_SECONDS: Final = 0.01
_LOOK_RECORDS: Final = 32
Decoder = Callable[[bytes | None], Any]


def as_bytes(content: bytes | None) -> bytes | None:
    """The decoder that leaves keys and values as they are."""
    return content


class MessageAndMetadata:
    """One record: `timestamp` in ms, key and value decoded."""

    __slots__ = ("headers", "key", "offset", "partition", "timestamp", "topic", "value")

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp: int,
        key: Any,
        value: Any,
        headers: Headers,
    ) -> None:
        self.topic, self.partition, self.offset = topic, partition, offset
        self.timestamp, self.key, self.value, self.headers = timestamp, key, value, headers

    def __repr__(self) -> str:
        return f"{self.topic}-{self.partition}@{self.offset}: {self.key!r}={self.value!r}"


class DecoderFailed(ConsumerError):
    """A decoder raised; the record counts as consumed, and the stream goes on behind it."""


class ConsumerStream:
    """`async for` in the reactor's thread, `for` in another one: not both at once. Ends when its
    consumer is shut down.
    """

    def __init__(
        self,
        thread_id: str,
        topic: str,
        queue: ChunkQueue,
        runtime: Runtime,
        timeout_ms: int,
        key_decoder: Decoder,
        value_decoder: Decoder,
    ) -> None:
        self.thread_id, self.topic = thread_id, topic
        self.queue = queue
        self._runtime = runtime
        self._timeout_ms = timeout_ms
        self._key_decoder, self._value_decoder = key_decoder, value_decoder
        self._lock = Lock()
        self._chunk: FetchedDataChunk | None = None
        self._records: Iterator[Record] = iter(())
        self._error: Exception | None = None
        self._handed_out = 0
        self._slice_began = 0.0

    # in the reactor's thread
    def __aiter__(self) -> ConsumerStream:
        return self

    async def __anext__(self) -> MessageAndMetadata:
        """Raises `ConsumerTimeout`, and what is wrong with a partition."""
        self._handed_out += 1
        if self._handed_out % _LOOK_RECORDS == 0:
            await self._give_way()
        while True:
            found = self._next_record()
            if found is not None:
                return found
            if not await self._take():
                raise StopAsyncIteration

    async def _give_way(self) -> None:
        now = self._runtime.clock.seconds()
        if now - self._slice_began >= SLICE_SECONDS:
            turn: Deferred[None] = Deferred()
            self._runtime.clock.callLater(0, turn.callback, None)
            await turn
            self._slice_began = self._runtime.clock.seconds()

    async def _take(self) -> bool:
        """The next chunk becomes the current one; False: the stream has ended."""
        while (chunk := self.queue.poll()) is None:
            if self.queue.closed:
                error, self._error = self._error, None
                if error is not None:
                    raise error
                return False
            await self._wait()
        with self._lock:
            if chunk.error is not None:
                raise chunk.error
            # Another offset than the consumed one only after a reset.
            chunk.info.consumed_offset = chunk.fetch_offset
            self._chunk = chunk
            self._records = records_of(chunk.records, chunk.fetch_offset, chunk.aborted)
        return True

    async def _wait(self) -> None:
        """Until something is in the queue. Raises `ConsumerTimeout`."""
        waiter = self.queue.wait()
        if self._timeout_ms < 0:
            await waiter
        else:
            over: list[bool] = []

            def expire() -> None:
                over.append(True)
                waiter.cancel()

            timer = self._runtime.clock.callLater(self._timeout_ms / 1000, expire)
            try:
                await waiter
            except CancelledError:
                if not over:
                    raise
                raise ConsumerTimeout(
                    f"{self.thread_id}: no record within consumer.timeout.ms={self._timeout_ms}"
                ) from None
            finally:
                if timer.active():
                    timer.cancel()
        self._slice_began = self._runtime.clock.seconds()

    # in another thread
    def __iter__(self) -> ConsumerStream:
        return self

    def __next__(self) -> MessageAndMetadata:
        """Blocks until there is a record. Raises what `__anext__` raises."""
        if isInIOThread():
            raise ConsumerError("this would block the reactor: use `async for` in its thread")
        while True:
            found = self._next_record()
            if found is not None:
                return found
            reactor: Any = self._runtime.clock
            is_more: bool = blockingCallFromThread(reactor, self._begin_take)
            if not is_more:
                raise StopIteration

    def _begin_take(self) -> Any:
        return ensureDeferred(self._take())

    # in either
    def _next_record(self) -> MessageAndMetadata | None:
        """Of the current chunk; None when there is none left."""
        with self._lock:
            chunk = self._chunk
            if chunk is None:
                return None
            info = chunk.info
            if info.released:
                self._chunk = None
                return None
            try:
                record = next(self._records, None)
            except Exception as error:
                # Past the whole chunk: its CRC is right, so every reader meets this.
                self._chunk = None
                info.consumed_offset = chunk.next_offset
                raise ConsumerError(
                    f"{info.topic_partition}: a batch from offset {chunk.fetch_offset} to "
                    f"{chunk.next_offset - 1} cannot be read ({error}); reading goes on at "
                    f"{chunk.next_offset}"
                ) from error
            if record is None:
                self._chunk = None
                info.consumed_offset = chunk.next_offset
                return None
            info.consumed_offset = record.offset + 1
        return self._decoded(info.topic_partition, record)

    def _decoded(self, name: TopicPartition, record: Record) -> MessageAndMetadata:
        try:
            key, value = self._key_decoder(record.key), self._value_decoder(record.value)
        except Exception as error:
            raise DecoderFailed(
                f"{name}: the decoder failed at offset {record.offset}: {error!r}"
            ) from error
        return MessageAndMetadata(
            name.topic, name.partition, record.offset, record.timestamp, key, value, record.headers
        )

    # by its consumer
    def release(self, partitions: list[PartitionTopicInfo]) -> None:
        """Invariant 3: on return nothing of these is handed out."""
        with self._lock:
            self.queue.release(partitions)

    def end(self, error: Exception | None = None) -> None:
        """Its reader gets the end, or `error`."""
        self._error = error
        with self._lock:
            self._chunk = None
            self.queue.close()


class ConsumerConnector:
    """`settings` by their Kafka names (`bootstrap.servers` and `group.id` must be there). Raises
    `InvalidSetting`. `runtime` None: the program's reactor. `oauth_token()`: with OAUTHBEARER, a
    token that is valid now; it is called for each connection, and must not block.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        runtime: Runtime | None = None,
        oauth_token: Callable[[], str] | None = None,
    ) -> None:
        self._config = ConsumerConfig(settings, oauth_token)
        if not self._config.text("group.id"):
            raise InvalidSetting("group.id: must be set; consumers of one group share its topics")
        if runtime is None:
            from twisted_broker.consumer.reactor_runtime import reactor_runtime

            runtime = reactor_runtime()
        self._runtime = runtime
        self._client = ClusterClient(runtime, self._config)
        self._name = f"{self._config.text('group.id')}-{self._config.text('client.id')}"
        self.fetchers = ConsumerFetcherManager(
            self._client, self._config, self._config.text("client.id")
        )
        self.membership: GroupMembership | None = None
        self.streams: dict[str, list[ConsumerStream]] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._committing: Deferred[None] | None = None
        self._is_failing = False  # to commit
        self._stopped = False

    async def create_message_streams(
        self,
        topics: Mapping[str, int],
        key_decoder: Decoder = as_bytes,
        value_decoder: Decoder = as_bytes,
    ) -> dict[str, list[ConsumerStream]]:
        """So many streams of each topic; joins the group. Once for a consumer.

        Raises `ConsumerError`: no broker answers, or there is no such topic.
        """
        if self.membership is not None or self._stopped:
            raise ConsumerError("streams are created once; make another ConsumerConnector")
        await self._check(topics)
        chunks = self._config.integer("queued.max.message.chunks")
        for topic, count in topics.items():
            self.streams[topic] = [
                ConsumerStream(
                    f"{self._name}-{topic}-{number}",
                    topic,
                    ChunkQueue(chunks, self.fetchers.resume),
                    self._runtime,
                    self._config.integer("consumer.timeout.ms"),
                    key_decoder,
                    value_decoder,
                )
                for number in range(count)
            ]
        self.membership = GroupMembership(self._client, self._config, topics, self)
        self.membership.start()
        if self._config.boolean("auto.commit.enable"):
            self._committing = ensureDeferred(self._commit_at_intervals())
        return self.streams

    async def _check(self, topics: Mapping[str, int]) -> None:
        few = [topic for topic, count in topics.items() if count < 1]
        if not topics or few:
            raise ConsumerError("streams: name at least one topic, with one stream or more of each")
        found = (await self._client.metadata(topics)).topics
        for topic in topics:
            code = found[topic].error if topic in found else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                servers = self._config.text("bootstrap.servers")
                raise ConsumerError(f"there is no topic {topic} at {servers}; create it first")
            if code and not code.retriable:
                raise ConsumerError(f"topic {topic}: {code.name}: {code.sentence}")

    async def commit_offsets(self) -> None:
        """Commits the consumed offsets of all that it owns, the record just handed out included.

        Raises `CommitFailed`.
        """
        if self.membership is None:
            raise ConsumerError("there are no streams yet, and nothing to commit")
        await self._commit(self._infos())

    async def shutdown(self) -> None:
        """Stops fetching, commits (with `auto.commit.enable`), leaves the group; streams end."""
        if self._stopped:
            return
        self._stopped = True
        if self._committing is not None:
            self._committing.cancel()
        if self.membership is not None:
            await self.membership.stop()
        self._end(None)

    def _end(self, error: ConsumerError | None) -> None:
        self.fetchers.shutdown()
        for stream in self._all_streams():
            stream.end(error)
        self._client.close()

    # what the group assigns
    async def assigned(self, partitions: list[TopicPartition]) -> None:
        """RL 7.5: both offsets begin at the committed one."""
        assert self.membership is not None
        mine = [each for each in partitions if each.topic in self.streams]
        committed = await self.membership.committed(mine) if mine else {}
        if self._stopped:
            return
        self._committed = {name: offset for name, (offset, _) in committed.items()}
        assign = ASSIGNORS[self._config.strategies[0]]
        for topic, streams in self.streams.items():
            numbers = sorted(each.partition for each in mine if each.topic == topic)
            threads = {f"{number:06}": [topic] for number in range(len(streams))}
            for stream, names in zip(
                streams, assign(threads, {topic: numbers}).values(), strict=True
            ):
                infos = [
                    PartitionTopicInfo(name, stream.queue, self._committed.get(name, -1))
                    for name in names
                ]
                self.fetchers.consume(infos)

    async def revoked(self, patience_ms: int) -> None:
        """RL 7.5: fetchers stop, nothing more is handed out, then offsets are committed."""
        infos = self._release()
        if self._config.boolean("auto.commit.enable"):
            await self._commit_logged(infos, patience_ms)

    def lost(self) -> None:
        self._release()

    def failed(self, error: ConsumerError) -> None:
        _logger.error("{error}", error=error)
        if self._committing is not None:
            self._committing.cancel()
        self._end(error)

    def _infos(self) -> list[PartitionTopicInfo]:
        return list(self.fetchers.partitions.values())

    def _release(self) -> list[PartitionTopicInfo]:
        infos = self._infos()
        self.fetchers.remove([info.topic_partition for info in infos])
        for stream in self._all_streams():
            stream.release(infos)
        self.fetchers.shutdown_idle()
        return infos

    def _all_streams(self) -> list[ConsumerStream]:
        return [stream for streams in self.streams.values() for stream in streams]

    # offsets
    async def _commit_at_intervals(self) -> None:
        try:
            while True:
                await self._client.pause(self._config.integer("auto.commit.interval.ms"))
                await self._commit_logged(self._infos())
        except CancelledError:
            return

    async def _commit_logged(self, infos: list[PartitionTopicInfo], patience_ms: int = 0) -> None:
        """What fails is logged once, until a commit succeeds."""
        try:
            await self._commit(infos, patience_ms)
            self._is_failing = False
        except CommitFailed as error:
            if not self._is_failing:
                _logger.warn("{error}", error=error)
            self._is_failing = True

    async def _commit(self, infos: list[PartitionTopicInfo], patience_ms: int = 0) -> None:
        """What moved since the last commit."""
        assert self.membership is not None
        positions = {
            info.topic_partition: (info.consumed_offset, -1)
            for info in infos
            if info.consumed_offset >= 0
            and info.consumed_offset != self._committed.get(info.topic_partition)
        }
        if positions:
            await self.membership.commit(positions, patience_ms)
            self._committed.update((name, offset) for name, (offset, _) in positions.items())
