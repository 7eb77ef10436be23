"""Sends what was fetched to the leaders of the target.

Owns `TargetWriter`: which partition is sent when, to whom, and what an answer means.

1. A request goes to one broker and names a partition once; at most `IN_FLIGHT` are on their way to
   a broker. One takes chunks until it has `REQUEST_BYTES`: the target appends one while the next
   is sent, which a larger one would not allow.
2. What the target may mend by itself (another leader, too few replicas in sync, a lost connection)
   is sent again after `_BACKOFF_MS`, as it was. Anything else ends the mirror with one line.
3. An answer says where the target's log ends: where that is less than was known (an unclean
   election there) the partition begins again from it.
4. A truncation is sent until the target's leader epoch is another one: then the partition is
   described anew.

Source: none, ours. Not here: what is sent (`mirrored_partition`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from twisted.internet.defer import CancelledError, Deferred, ensureDeferred
from twisted.python.failure import Failure

from twisted_broker.consumer.cluster_client import ClusterClient
from twisted_broker.interfaces import IDelayedCall, TopicPartition
from twisted_broker.mirror.clusters import not_ours
from twisted_broker.mirror.errors import MirrorError
from twisted_broker.mirror.mirrored_partition import MirroredPartition
from twisted_broker.replication.fetcher.leader_endpoint import BrokerEndPoint
from twisted_broker.wire.errors import BrokerError, ErrorCode, error_of
from twisted_broker.wire.messages.mirror import (
    AppendMirroredRequest,
    MirroredPartitionResponse,
    MirroredTopic,
)
from twisted_broker.wire.messages.mirror import MirroredPartition as RequestedPartition

IN_FLIGHT: Final = 3
REQUEST_BYTES: Final = 1 << 20
IF_IT_RUNS: Final = "; if that broker runs, look at its advertised.listeners"
_BACKOFF_MS, _TIMEOUT_MS = 200, 15_000
_SAID_AFTER_MS = 5_000
_AGAIN = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,  # not known to that broker yet, or deleted: the next look says
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
_ANEW = frozenset({ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.CORRUPT_MESSAGE})
_Sent = list[tuple[MirroredPartition, RequestedPartition]]


class TargetWriter:
    """`begin(partition)`: the target described it, fetching may start; `chunk_failed(partition)`:
    its next chunk is an error; `differs(partition, offset)`: the target has another batch there
    than its chunk; `fail(error)`: the mirror cannot go on; `say(line)`: for people.
    """

    def __init__(
        self,
        client: ClusterClient,
        begin: Callable[[MirroredPartition], None],
        chunk_failed: Callable[[MirroredPartition], None],
        differs: Callable[[MirroredPartition, int], None],
        fail: Callable[[Exception], None],
        say: Callable[[str], None],
    ) -> None:
        self.requests = 0
        self._client = client
        self._begin, self._chunk_failed, self._fail, self._print = begin, chunk_failed, fail, say
        self._differs = differs
        self._ready: dict[TopicPartition, MirroredPartition] = {}
        self._busy: dict[int, int] = {}
        self._sending: set[Deferred[None]] = set()
        self._finding: Deferred[None] | None = None
        self._call: IDelayedCall | None = None
        self._is_failing = False
        self._refused_since: dict[TopicPartition, int] = {}
        self._refusals_said: set[ErrorCode] = set()
        self._stopped = False

    def wake(self, partition: MirroredPartition) -> None:
        """It may have something to send."""
        self._ready[partition.name] = partition
        self._step_after(0)

    def remove(self, partition: MirroredPartition) -> None:
        """Nothing of it is sent any more."""
        if self._ready.get(partition.name) is partition:
            del self._ready[partition.name]
        self._taken(partition.name)

    def stop(self) -> None:
        self._stopped = True
        self._ready.clear()
        if self._call is not None:
            self._call.cancel()
            self._call = None
        for deferred in (*self._sending, self._finding):
            if deferred is not None:
                deferred.cancel()

    def _step_after(self, milliseconds: int) -> None:
        if self._call is None and not self._stopped:
            self._call = self._client.runtime.clock.callLater(milliseconds / 1000, self._step)

    def _step(self) -> None:
        self._call = None
        try:
            self._fill()
        except Exception as error:  # of the side file
            self._fail(error)

    def _fill(self) -> None:
        """Fills what may be on its way."""
        now_ms = self._client.runtime.now_ms()
        sent: dict[BrokerEndPoint, _Sent] = {}
        sizes: dict[BrokerEndPoint, int] = {}
        waits = False
        for name, partition in list(self._ready.items()):
            leader = partition.leader
            if partition.retry_at_ms > now_ms:
                waits = True
                continue
            if leader is None:
                self._find_leaders()
                continue
            if self._busy.get(leader.id, 0) >= IN_FLIGHT or sizes.get(leader, 0) >= REQUEST_BYTES:
                continue
            request = partition.next_request()
            if request is not None:
                # At the end of its turn: others come first in the next request.
                self._ready[name] = self._ready.pop(name)
                partition.sent = True
                sent.setdefault(leader, []).append((partition, request))
                sizes[leader] = sizes.get(leader, 0) + len(request.records or b"")
            elif partition.chunk is not None and not partition.sent:
                del self._ready[name]
                self._chunk_failed(partition)
            elif not partition.sent:
                del self._ready[name]
        for leader, parts in sent.items():
            self._busy[leader.id] = self._busy.get(leader.id, 0) + 1
            sending = ensureDeferred(self._send(leader, parts))
            self._sending.add(sending)
            sending.addBoth(self._sent, sending)
        if waits:
            self._step_after(_BACKOFF_MS)

    def _sent(self, result: object, sending: Deferred[None]) -> None:
        self._sending.discard(sending)
        if isinstance(result, Failure):
            assert isinstance(result.value, Exception)
            self._fail(result.value)

    async def _send(self, leader: BrokerEndPoint, parts: _Sent) -> None:
        topics: dict[bytes, MirroredTopic] = {}
        for partition, request in parts:
            topic = topics.setdefault(
                partition.topic_id, MirroredTopic(topic_id=partition.topic_id, partitions=[])
            )
            topic.partitions.append(request)
        asked = AppendMirroredRequest(timeout_ms=_TIMEOUT_MS, topics=list(topics.values()))
        self.requests += 1
        answers: dict[tuple[bytes, int], MirroredPartitionResponse] = {}
        try:
            answer = await self._client.connection(leader).send(asked, 0)
            answers = {
                (bytes(topic.topic_id), each.partition): each
                for topic in answer.topics
                for each in topic.partitions
            }
            self._is_failing = False
        except CancelledError:
            return
        except Exception as error:
            if isinstance(error, BrokerError) and error.code == ErrorCode.UNSUPPORTED_VERSION:
                self._fail(not_ours(f"{leader.host}:{leader.port}", leader))
            elif not self._is_failing:
                self._print(f"the target's {leader} does not answer, retrying: {error}{IF_IT_RUNS}")
            self._is_failing = True
        finally:
            self._busy[leader.id] -= 1
        for partition, _ in parts:
            if self._stopped:
                return
            if self._ready.get(partition.name) is partition:  # else it was removed
                partition.sent = False
                self._answered(
                    partition, answers.get((partition.topic_id, partition.name.partition))
                )
        self._step_after(0)

    def _answered(
        self, partition: MirroredPartition, answer: MirroredPartitionResponse | None
    ) -> None:
        code = ErrorCode.NETWORK_EXCEPTION if answer is None else error_of(answer.error_code)
        if answer is not None and code == ErrorCode.NONE:
            self._taken(partition.name)
            was_described, end_before = partition.is_described, partition.log_end
            if partition.truncate_to >= 0:
                partition.forget()
                was_described = False
            partition.described(answer)
            if not was_described:
                self._begin(partition)
            elif partition.log_end < end_before:
                self._anew(partition)
        elif code == ErrorCode.FENCED_LEADER_EPOCH and partition.truncate_to >= 0:
            self._anew(partition)
        elif answer is None or code in _AGAIN:
            partition.found_leader(None)
            partition.retry_at_ms = self._client.runtime.now_ms() + _BACKOFF_MS
            if answer is not None:
                self._refused(partition.name, code)
        elif code in _ANEW or (code == ErrorCode.INVALID_RECORD and partition.compacted):
            # Compacted meanwhile, a batch that is sent again is another than the one that is there.
            self._print(f"{partition.name}: the target refuses ({answer.error_message}); going on")
            self._anew(partition)
        elif code == ErrorCode.INVALID_RECORD:
            self._differs(partition, answer.differs_at)
        else:
            words = BrokerError(code, answer.error_message)
            self._fail(MirrorError(f"{partition.name}: the target refuses: {words}"))

    def _refused(self, name: TopicPartition, code: ErrorCode) -> None:
        """A leader that moves is no news; a disk that is full, or replicas that lack, are."""
        now_ms = self._client.runtime.now_ms()
        since_ms = self._refused_since.setdefault(name, now_ms)
        if now_ms - since_ms >= _SAID_AFTER_MS and code not in self._refusals_said:
            self._refusals_said.add(code)
            count = len(self._refused_since)
            more = f" and {count - 1} more" if count > 1 else ""
            self._print(f"the target answers {code.name}, retrying: {name}{more}")

    def _taken(self, name: TopicPartition) -> None:
        if self._refused_since.pop(name, None) is not None and not self._refused_since:
            self._refusals_said.clear()

    def _anew(self, partition: MirroredPartition) -> None:
        partition.forget()
        partition.retry_at_ms = self._client.runtime.now_ms() + _BACKOFF_MS

    # leaders of the target
    def _find_leaders(self) -> None:
        if self._finding is None and not self._stopped:
            self._finding = ensureDeferred(self._look())

    async def _look(self) -> None:
        try:
            while leaderless := [each for each in self._ready.values() if each.leader is None]:
                try:
                    found = await self._client.metadata({each.name.topic for each in leaderless})
                except CancelledError:
                    raise
                except Exception as error:
                    if not self._is_failing:
                        self._print(f"the target cannot be reached, retrying: {error}")
                    self._is_failing = True
                    await self._client.pause(_BACKOFF_MS)
                    continue
                for each in leaderless:
                    topic = found.topics.get(each.name.topic)
                    known = None if topic is None else topic.partitions.get(each.name.partition)
                    each.found_leader(None if known is None else known.leader)
                if not all(each.leader for each in leaderless):
                    await self._client.pause(_BACKOFF_MS)
                self._step_after(0)
        except CancelledError:
            return
        finally:
            self._finding = None
