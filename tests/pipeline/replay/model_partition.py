"""One partition of a broker in memory, as far as a replay sees it, with the troubles of a network
on command.

It keeps the broker's rule for sequences (five remembered batches; known producers must follow on;
unknown ones may begin anywhere). Requests are the real bytes' content: batches are parsed back with
`wire`. A request may be appended with its answer lost, be lost itself, or stay behind on the way
and arrive after the connection that sent it is gone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from replog_pipeline.replay.cluster import Topic
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from twisted_broker.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from twisted_broker.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from twisted_broker.wire.records import BatchView, Record, set_offsets_and_epoch

FINE, ANSWER_LOST, REQUEST_LOST, LATE, REFUSED = (
    "fine",
    "answer lost",
    "request lost",
    "late",
    "refused",
)
TROUBLES = (FINE, ANSWER_LOST, REQUEST_LOST, LATE, REFUSED)


class ModelPartition:
    """`troubles`: what happens to one Produce after another; all is fine after the last.

    `late`: requests that are still on their way.
    """

    def __init__(self, troubles: list[str] | None = None) -> None:
        self.troubles = deque(troubles or [])
        self.batches: list[bytes] = []
        self.remembered: dict[int, deque[tuple[int, int, int]]] = {}
        self.start = self.end = 0
        self.late: deque[bytes] = deque()

    def records(self) -> list[Record]:
        return [record for batch in self.batches for record in BatchView(batch).records()]

    def append(self, data: bytes) -> tuple[int, int]:
        """(error code, base offset)."""
        batch = BatchView(data)
        known = self.remembered.setdefault(batch.producer_id, deque(maxlen=5))
        for first, last, offset in known:
            if (first, last) == (batch.base_sequence, batch.last_sequence):
                return 0, offset
        if batch.producer_id >= 0 and known and batch.base_sequence != known[-1][1] + 1:
            return int(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), -1
        stored = bytearray(data)
        set_offsets_and_epoch(stored, self.end, 0)
        self.batches.append(bytes(stored))
        offset, self.end = self.end, self.end + batch.records_count
        known.append((batch.base_sequence, batch.last_sequence, offset))
        return 0, offset

    def arrive(self) -> None:
        """What was on its way gets there."""
        while self.late:
            self.append(self.late.popleft())


class ModelConnection:
    """Answers in order; broken from the first trouble on."""

    def __init__(self, partition: ModelPartition) -> None:
        self.partition = partition
        self.answers: deque[ProduceResponse] = deque()
        self.is_broken = False

    def send(self, request: ProduceRequest) -> None:
        data = bytes(request.topic_data[0].partition_data[0].records)
        trouble = self.partition.troubles.popleft() if self.partition.troubles else FINE
        if self.is_broken:
            trouble = REQUEST_LOST
        if trouble == LATE:
            self.partition.late.append(data)
        elif trouble == REFUSED:
            self.answer(int(ErrorCode.NOT_LEADER_OR_FOLLOWER), -1)
        elif trouble in (FINE, ANSWER_LOST):
            self.answer(*self.partition.append(data))
        self.is_broken = self.is_broken or trouble in (ANSWER_LOST, REQUEST_LOST, LATE)
        if trouble == ANSWER_LOST:
            self.answers.pop()

    def answer(self, error: int, offset: int) -> None:
        told = PartitionProduceResponse(index=0, error_code=error, base_offset=offset)
        self.answers.append(
            ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=[told])])
        )

    def receive(self, kind: type[ProduceResponse]) -> ProduceResponse:
        if not self.answers:
            raise ConnectionError("closed")
        return self.answers.popleft()

    def call(
        self, request: ListOffsetsRequest | FetchRequest, kind: type
    ) -> ListOffsetsResponse | FetchResponse:
        if isinstance(request, ListOffsetsRequest):
            earliest = request.topics[0].partitions[0].timestamp == -2
            told = ListOffsetsPartitionResponse(
                partition_index=0, offset=self.partition.start if earliest else self.partition.end
            )
            return ListOffsetsResponse(
                topics=[ListOffsetsTopicResponse(name="t", partitions=[told])]
            )
        offset = request.topics[0].partitions[0].fetch_offset
        found = next(
            batch for batch in self.partition.batches if BatchView(batch).last_offset >= offset
        )
        return FetchResponse(
            responses=[
                FetchableTopicResponse(
                    topic="t", partitions=[PartitionData(partition_index=0, records=found)]
                )
            ]
        )


class ModelCluster:
    """As `cluster.Cluster`.

    Whatever was late arrives when a connection is opened again: at the worst moment, after the
    position may be asked.
    """

    topic = "t"
    topic_id = bytes(range(16))

    def __init__(self, partition: ModelPartition, arrivals: Iterator[bool]) -> None:
        self.partition, self.arrivals = partition, arrivals
        self.connection: ModelConnection | None = None

    def __enter__(self) -> ModelCluster:
        return self

    def __exit__(self, *exc: object) -> None:
        self.forget()

    def described(self) -> Topic:
        return Topic(self.topic_id, {0: 0}, {})

    def forget(self) -> None:
        self.connection = None

    def leader(self, partition: int) -> ModelConnection:
        if next(self.arrivals, True):
            self.partition.arrive()
        self.connection = self.connection or ModelConnection(self.partition)
        return self.connection
