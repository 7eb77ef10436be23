"""Writes one partition of the target: a few batches in flight, each answer checked, and one
recovery for every temporary failure.

1. An acknowledged batch is at the offset it was made for; any other offset means records of another
   producer, and is fatal.
2. Every temporary failure (a broken connection, a new leader, a sequence that does not
   follow) has the same recovery: close the connections, take the proven position, drop what is
   written, send the rest again. A request without an answer may have been written or not.
3. A position below what was acknowledged means that the cluster lost it: fatal. So is no progress
   for `PATIENCE_SECONDS`.
4. At most five batches are in flight, as many as a broker remembers of a producer: it recognises
   each that is sent twice. The first is alone until it is answered: from an unknown producer a
   broker accepts any sequence, so the second could be accepted where the first was refused.
5. A broker forgets a producer whose last timestamp is a day old, looking every ten minutes. What 4
   keeps away could then slip in between; it would be seen by 1, and refused for ever after by the
   proof of the position.

Source: KIP-98; Kafka's Sender. Not here: acks other than all.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from replog_pipeline.errors import PipelineError
from replog_pipeline.replay import identity, target
from replog_pipeline.replay.batches import Batch
from replog_pipeline.replay.cluster import ERRORS, Cluster, NotNowError, check
from twisted_broker.wire.errors import ErrorCode, WireError
from twisted_broker.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

IN_FLIGHT = 5
PATIENCE_SECONDS = 180.0
PAUSE_SECONDS = 0.2
ACKS_TIMEOUT_MS = 30_000
NOT_IN_SEQUENCE = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
REMEDIES: dict[int, str] = {
    ErrorCode.MESSAGE_TOO_LARGE: "set max.message.bytes of the topic higher",
    ErrorCode.INVALID_TIMESTAMP: (
        "set message.timestamp.after.max.ms and message.timestamp.before.max.ms of the topic higher"
    ),
    ErrorCode.INVALID_RECORD: (
        "a compacted topic takes no records without a key; replay into "
        "a topic with cleanup.policy=delete"
    ),
}


T = TypeVar("T")


class PartitionWriter:
    """`written` is the offset of the next record that is not acknowledged; `last` is the record
    before it at the start, None at 0.
    """

    def __init__(self, cluster: Cluster, partition: int, codec: int) -> None:
        self.cluster, self.partition, self.codec = cluster, partition, codec
        self.name = f"{cluster.topic}-{partition}"
        self.window: deque[Batch] = deque()
        self.sent = self.written = 0
        self.is_astray = self.is_known = False
        self.progress_at = time.monotonic()
        start = self.patiently(lambda: target.position(cluster, partition))
        self.written, self.last = start.offset, start.last
        self.producer_id = identity.producer_id(cluster.described().id)

    def write(self, batch: Batch) -> None:
        """Returns when at most four batches are unanswered; an error may be that of an earlier
        one.
        """
        if batch.rows:
            self.window.append(batch)
            self.patiently(lambda: self.exchange(IN_FLIGHT - 1))

    def flush(self) -> None:
        """Returns when everything is acknowledged."""
        self.patiently(lambda: self.exchange(0))

    def exchange(self, allowed: int) -> None:
        """Send what was not sent, and take answers until at most `allowed` are open."""
        while self.sent < len(self.window) or len(self.window) > allowed:
            if self.sent < len(self.window) and (self.is_known or not self.sent):
                self.send(self.window[self.sent])
                self.sent += 1
            else:
                answer = self.cluster.leader(self.partition).receive(ProduceResponse)
                self.accept(answer.responses[0].partition_responses[0])

    def send(self, batch: Batch) -> None:
        data = PartitionProduceData(
            index=self.partition, records=batch.encoded(self.producer_id, self.codec)
        )
        topic = TopicProduceData(name=self.cluster.topic, partition_data=[data])
        self.cluster.leader(self.partition).send(
            ProduceRequest(acks=-1, timeout_ms=ACKS_TIMEOUT_MS, topic_data=[topic])
        )

    def accept(self, told: PartitionProduceResponse) -> None:
        """The answer to the oldest batch."""
        if told.error_code in NOT_IN_SEQUENCE:
            raise NotNowError(f"{self.name}: {ERRORS[told.error_code].name}")
        if told.error_code in REMEDIES:
            raise PipelineError(
                f"{self.name}: {ERRORS[told.error_code].sentence} {REMEDIES[told.error_code]}"
            )
        check(told.error_code, self.name)
        batch = self.window.popleft()
        self.sent, self.is_known = self.sent - 1, True
        if told.base_offset != batch.first:
            found = f"what belongs to offset {batch.first} was written at {told.base_offset}"
            raise PipelineError(
                f"{self.name}: {found}: somebody else produces to it; {target.ANOTHER}"
            )
        self.moved_to(batch.after)

    def moved_to(self, offset: int) -> None:
        self.written, self.progress_at = offset, time.monotonic()

    def patiently(self, act: Callable[[], T]) -> T:
        """`act`, as often as it takes while it makes progress; after a failure the position is
        found again first.
        """
        self.progress_at = time.monotonic()
        while True:
            try:
                if self.is_astray:
                    self.go_on()
                return act()
            except (OSError, WireError) as error:
                self.cluster.forget()
                self.is_astray = True
                if time.monotonic() - self.progress_at > PATIENCE_SECONDS:
                    raise PipelineError(
                        f"{self.name}: no progress for {PATIENCE_SECONDS:.0f} s ({error}): "
                        "are its brokers up?"
                    ) from error
                time.sleep(PAUSE_SECONDS)

    def go_on(self) -> None:
        """After a failure: what is written is dropped, the rest counts as not sent."""
        found = target.position(self.cluster, self.partition).offset
        if found < self.written:
            lost = f"ends at {found}, but {self.written} records were acknowledged"
            raise PipelineError(f"{self.name} {lost}: the cluster lost them; {target.ANOTHER}")
        if found > self.written:
            self.moved_to(found)
        self.window = deque(
            rest for batch in self.window if (rest := batch.from_offset(found)).rows
        )
        self.sent, self.is_astray, self.is_known = 0, False, False
