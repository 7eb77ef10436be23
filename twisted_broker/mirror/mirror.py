"""A running mirror: which topics, their partitions, and what ends it.

Owns `Mirror`, and `Progress` of one partition.

    look (each refresh): topics of both clusters -> plan -> create, grow, change settings
        -> MirroredPartition -> TargetWriter: describe -> ConsumerFetcherManager: fetch
        -> ChunkQueue -> TargetWriter: append -> the target's answer

1. It is a reader of the source, and no member of a group: nothing changes there.
2. What begins is decided by the target alone, so it may be killed at any moment; two mirrors of one
   topic do no harm.
3. A topic of the source that is deleted, or created again, ends it with one line, as does what the
   source lost; with `follow_loss` the target drops that, too, under a new leader epoch. What the
   source deleted by retention before it was mirrored is a gap, with one line.
4. Without a broker of one side it waits, with one line, and goes on.

Source: none, ours; docs/MIRROR.md; RL 7.1-7.3 for the reading side. Not here: options and output
(`cli/mirror.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, Final, NamedTuple

from twisted.internet.defer import CancelledError, Deferred, ensureDeferred

from twisted_broker.consumer.cluster_client import ClusterClient, ClusterMetadata
from twisted_broker.consumer.consumer_config import ConsumerConfig
from twisted_broker.consumer.consumer_fetcher_manager import ConsumerFetcherManager
from twisted_broker.consumer.errors import (
    BrokersUnreachable,
    InvalidSetting,
    LogTruncated,
    OffsetGone,
    TopicRecreated,
)
from twisted_broker.interfaces import IDelayedCall, Runtime, TopicPartition
from twisted_broker.mirror.clusters import apply_plan, check_target, topics_of
from twisted_broker.mirror.errors import MirrorError, SourceLost
from twisted_broker.mirror.mirrored_partition import MirroredPartition, NotifyingQueue
from twisted_broker.mirror.plan import TopicState, plan_for
from twisted_broker.mirror.source_epochs import SourceEpochs
from twisted_broker.mirror.target_writer import IF_IT_RUNS, TargetWriter
from twisted_broker.replication.fetcher.leader_endpoint import BrokerEndPoint
from twisted_broker.security.client_security import PLAINTEXT, ClientSecurity
from twisted_broker.wire.errors import BrokerError, ErrorCode

CLIENT_ID: Final = "replog-mirror"
FROM_CONFIG, TO_CONFIG = "--from-config", "--to-config"
# Of one answer of the source: with what stands before the records, what a pooled buffer holds. So
# each chunk is sent as it lies in the answer's buffer, and pins no more than that.
_ANSWER_BYTES: Final = (4 << 20) - (1 << 16)
_QUICK_MS = 500
_SILENT_SECONDS = 3.0
_NAMES_SAID = 5
_LOOKS_UNTIL_DELETED = 3
_LATER = frozenset({ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})


class Progress(NamedTuple):
    """Of one partition. `log_end`: the target's; `source_end`: the source's high watermark; both -1
    while not known. `lag`: the difference, None while not known. `bytes`: mirrored by this run.
    """

    name: TopicPartition
    log_start: int
    log_end: int
    source_end: int
    lag: int | None
    bytes: int


class MirrorOptions(NamedTuple):
    """`source`, `target`: HOST:PORT lists; `topics`: a regular expression that a whole name
    matches; `folder`: of the side files; `replication_factor` -1: the target's default;
    `follow_loss`: what the source lost is dropped in the target as well. `source_client`,
    `target_client`: TLS and SASL.
    """

    source: str
    target: str
    topics: str
    folder: str
    replication_factor: int = -1
    refresh_ms: int = 10_000
    chunk_bytes: int = 1 << 20
    queued_chunks: int = 2
    follow_loss: bool = False
    source_client: ClientSecurity = PLAINTEXT
    target_client: ClientSecurity = PLAINTEXT


class Mirror:
    """`say(line)`: for people. `ended` fires with None after `stop`, or with what ended it."""

    def __init__(
        self, runtime: Runtime, options: MirrorOptions, say: Callable[[str], None]
    ) -> None:
        self.ended: Deferred[None] = Deferred()
        self.partitions: dict[TopicPartition, MirroredPartition] = {}
        self._runtime, self._options, self._print = runtime, options, say
        try:
            self._pattern = re.compile(options.topics)
        except re.error as error:
            raise MirrorError(
                f"--topics {options.topics}: no regular expression: {error}"
            ) from None
        config = _config(
            "--from",
            {
                "bootstrap.servers": options.source,
                "client.id": CLIENT_ID,
                "auto.offset.reset": "none",
                "check.crcs": "false",  # the target checks them
                "fetch.message.max.bytes": options.chunk_bytes,
                "fetch.max.bytes": _ANSWER_BYTES,
                "queued.max.message.chunks": options.queued_chunks,
                **options.source_client.properties,
            },
        )
        self._source = ClusterClient(runtime, config, FROM_CONFIG, "--from ")
        to_target = {"bootstrap.servers": options.target, "client.id": CLIENT_ID}
        self._target = ClusterClient(
            runtime,
            _config("--to", to_target | options.target_client.properties),
            TO_CONFIG,
            "--to ",
        )
        self._fetchers = ConsumerFetcherManager(
            self._source, config, CLIENT_ID, self._source_unreachable
        )
        self._writer = TargetWriter(
            self._target, self._begin, self._chunk_failed, self._differs, self._fail, self._print
        )
        self._topics: dict[str, tuple[bytes, bytes]] = {}
        self._missing: dict[str, int] = {}
        self._said: set[str] = set()
        self._cluster_id = ""
        self._settled = False
        self._running: Deferred[None] | None = None
        self._silence: IDelayedCall | None = None
        self._stopped = False

    # for its user
    def start(self) -> None:
        self._running = ensureDeferred(self._run())
        self._silence = self._runtime.clock.callLater(_SILENT_SECONDS, self._print_silent_clusters)

    def stop(self) -> None:
        """Nothing is sent any more; `ended` fires."""
        self._end(None)

    def progress(self) -> list[Progress]:
        """Sorted."""
        return [
            Progress(name, each.log_start, each.log_end, each.source_end, each.lag, each.bytes)
            for name, each in sorted(self.partitions.items())
        ]

    @property
    def has_caught_up(self) -> bool:
        """Whether the target has all that each partition's source had when it answered last."""
        return self._settled and all(
            each.lag == 0 and each.chunk is None and each.truncate_to < 0
            for each in self.partitions.values()
        )

    # topics
    async def _run(self) -> None:
        is_first = True
        try:
            while not self._stopped:
                self._settled = await self._look(is_first)
                is_first = False
                await self._target.pause(self._options.refresh_ms if self._settled else _QUICK_MS)
        except CancelledError:
            return
        except Exception as error:
            self._fail(error)

    async def _look(self, is_first: bool) -> bool:
        """Makes the target's topics follow, and mirrors what is new. False: not all could be done
        yet.
        """
        try:
            if is_first:
                await check_target(self._target, self._options.target)
            return await self._follow_topics(is_first)
        except BrokersUnreachable as error:
            if is_first:
                raise MirrorError(str(error)) from None
            self._print_once(f"retrying: {error}")
        except BrokerError as error:
            if is_first and not error.code.retriable:
                raise MirrorError(str(error)) from None
            self._print_once(f"retrying: {error}")
        return False

    async def _follow_topics(self, is_first: bool) -> bool:
        there = await self._source.metadata(None)
        self._check_source(there.cluster_id or "")
        names = [
            name
            for name, topic in there.topics.items()
            if not topic.is_internal and self._pattern.fullmatch(name)
        ]
        if is_first and not names:
            raise MirrorError(
                f"--topics {self._options.topics}: no topic of {self._options.source} has such a "
                "name"
            )
        source = await topics_of(self._source, there, names)
        self._print_leaderless("source", there, names)
        self._check_deleted(there.topics)
        here = await self._target.metadata(source)
        self._print_leaderless("target", here, source)
        target = await topics_of(self._target, here, source)
        settled = True
        for name, topic in sorted(source.items()):
            settled = await self._follow_topic(name, topic, target.get(name)) and settled
        return settled

    def _print_leaderless(self, side: str, found: ClusterMetadata, names: Iterable[str]) -> None:
        without = [
            f"{name}-{number}"
            for name in sorted(names)
            if name in self._topics and name in found.topics
            for number, partition in sorted(found.topics[name].partitions.items())
            if partition.leader is None
        ]
        if without:
            more = len(without) - _NAMES_SAID
            shown = ", ".join(without[:_NAMES_SAID]) + (f" and {more} more" if more > 0 else "")
            self._print_once(f"waiting for a leader in the {side}: {shown}")

    def _check_source(self, cluster_id: str) -> None:
        if self._cluster_id and cluster_id != self._cluster_id:
            raise MirrorError(
                f"--from {self._options.source} is another cluster now: {cluster_id}, it was "
                f"{self._cluster_id}"
            )
        self._cluster_id = cluster_id

    def _check_deleted(self, there: Container[str]) -> None:
        for name in self._topics:
            # A broker that just started may not know of it yet.
            self._missing[name] = 0 if name in there else self._missing.get(name, 0) + 1
            if self._missing[name] >= _LOOKS_UNTIL_DELETED:
                raise MirrorError(
                    f"topic {name} was deleted in the source; its copy is left as it is. Leave it "
                    "out of --topics to go on with the others"
                )

    async def _follow_topic(self, name: str, source: TopicState, target: TopicState | None) -> bool:
        plan = plan_for(name, self._cluster_id, source, target)
        if plan.refusal:
            raise MirrorError(plan.refusal)
        if plan.unknown:
            self._print_once(
                f"topic {name}: settings that the target does not have are left out: "
                + ", ".join(plan.unknown)
            )
        if plan.create or plan.partitions or plan.settings:
            try:
                await apply_plan(self._target, name, plan, self._options.replication_factor)
            except BrokerError as error:
                if error.code in _LATER or error.code.retriable:
                    return False
                raise MirrorError(f"topic {name}: the target refuses: {error}") from None
            if plan.create or plan.partitions:
                return False  # looked at again once the target's brokers know of it
        if target is None:
            return False
        if self._topics.get(name) != (source.topic_id, target.topic_id):
            self._drop(each for each in list(self.partitions) if each.topic == name)
            self._topics[name] = (source.topic_id, target.topic_id)
        compacted = source.compacted or target.compacted
        for number in range(min(source.partitions, target.partitions)):
            self._add(TopicPartition(name, number), source, target, compacted)
        return True

    def _add(
        self, name: TopicPartition, source: TopicState, target: TopicState, compacted: bool
    ) -> None:
        known = self.partitions.get(name)
        if known is not None:
            known.compacted = compacted
            self._writer.wake(known)  # the source's log start may have moved
            return
        epochs = SourceEpochs(self._runtime.files, self._options.folder, name)
        made = MirroredPartition(name, target.topic_id, source.topic_id, epochs, compacted)
        self.partitions[name] = made
        self._writer.wake(made)

    def _drop(self, names: Iterable[TopicPartition]) -> None:
        for name in names:
            partition = self.partitions.pop(name)
            self._fetchers.remove([name])
            self._writer.remove(partition)
            partition.forget()

    # one partition
    def _queue(self, partition: MirroredPartition) -> NotifyingQueue:
        return NotifyingQueue(
            self._options.queued_chunks,
            self._fetchers.resume,
            lambda: self._writer.wake(partition),
        )

    def _begin(self, partition: MirroredPartition) -> None:
        """Where the target's log ends is known: the rest is fetched."""
        self._fetchers.remove([partition.name])
        self._fetchers.consume([partition.begin(self._queue(partition))])

    def _chunk_failed(self, partition: MirroredPartition) -> None:
        """Its source refuses to go on."""
        chunk = partition.chunk
        assert chunk is not None
        error, name = chunk.error, partition.name
        if isinstance(error, LogTruncated):
            agreed = partition.epochs.agreed_end(error.epoch, error.end_offset, partition.log_end)
            self._lost(partition, agreed)
        elif isinstance(error, OffsetGone) and error.offset > error.log_end:
            self._lost(partition, error.log_end)
        elif isinstance(error, OffsetGone):
            # For the last batch alone it went back by one.
            if partition.log_end < error.log_start and partition.log_end > partition.log_start:
                self._print(
                    f"{name}: the source deleted offsets {partition.log_end} to "
                    f"{error.log_start - 1} before they were mirrored; going on at "
                    f"{error.log_start}"
                )
            self._fetchers.remove([name])
            offset = max(error.log_start, partition.log_end)
            self._fetchers.consume([partition.begin_at(offset, self._queue(partition))])
        elif isinstance(error, TopicRecreated):
            self._fail(
                MirrorError(
                    f"topic {name.topic} was deleted and created again in the source; its copy is "
                    "left as it is. Delete it in the target to copy it anew"
                )
            )
        else:
            self._fail(MirrorError(f"{name}: the source cannot be read: {error}"))

    def _differs(self, partition: MirroredPartition, offset: int) -> None:
        """The target has another batch at `offset` than the source."""
        if not self._options.follow_loss:
            self._fail(SourceLost(partition.name, -1, partition.log_end))
            return
        again = partition.place_to_search(offset)
        if again < 0:
            self._lost(partition, offset)
            return
        self._fetchers.remove([partition.name])
        self._fetchers.consume([partition.begin_at(again, self._queue(partition))])

    def _lost(self, partition: MirroredPartition, offset: int) -> None:
        """The source has another history from `offset` on."""
        name, end = partition.name, partition.log_end
        if not self._options.follow_loss:
            self._fail(SourceLost(name, offset, end))
            return
        self._fetchers.remove([name])
        if offset < end:
            self._print(
                f"{name}: the source lost records that were mirrored: it differs from offset "
                f"{offset} on; dropping {offset} to {end - 1} in the target"
            )
            partition.truncate(max(0, offset))
        else:
            partition.forget()
        self._writer.wake(partition)

    def _source_unreachable(self, leader: BrokerEndPoint, error: Exception) -> None:
        self._print_once(f"the source's {leader} does not answer, retrying: {error}{IF_IT_RUNS}")

    # the end
    def _print_silent_clusters(self) -> None:
        """A broker may need its time; an address that is no broker's shall not look like one."""
        for words in (self._source.waits_for, self._target.waits_for):
            if words:
                self._print(f"waiting for {words}")

    def _print_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self._print(line)

    def _fail(self, error: Exception) -> None:
        self._end(error)

    def _end(self, error: Exception | None) -> None:
        if self._stopped:
            return
        self._stopped = True
        if self._silence is not None and self._silence.active():
            self._silence.cancel()
        self._writer.stop()
        self._fetchers.shutdown()
        self._source.close()
        self._target.close()
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
        if error is None:
            self.ended.callback(None)
        else:
            self.ended.errback(error)


def _config(option: str, settings: Mapping[str, Any]) -> ConsumerConfig:
    """Raises InvalidSetting; who reads the line knows the option, and there are two of them."""
    try:
        return ConsumerConfig(settings)
    except InvalidSetting as error:
        raise InvalidSetting(str(error).replace("bootstrap.servers=", f"{option} ")) from None
