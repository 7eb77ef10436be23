"""Which offsets of a topic are taken by control batches (end markers of transactions): no consumer
is given those.

1. For a gap in what a consumer got, the leader's own batches are read, from the gap's first offset
   on; it is no gap when control batches cover all of it. Other offsets without a record (lost, or
   removed by a cleaner) stay a gap.
2. Gaps are read in order. One answer (about `FETCH_BYTES`) serves all gaps in its range, so at
   worst a topic is read twice.
3. When the leader moves, the new one is looked up for `PATIENCE_SECONDS`; then it is one
   PipelineError.

Source: KIP-98. Not here: what a marker says.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from replog_pipeline.decoder import last_offsets, scan
from replog_pipeline.errors import PipelineError
from replog_pipeline.kafka_cluster import KafkaCluster
from replog_pipeline.replay.cluster import Cluster, check
from twisted_broker.wire.errors import WireError
from twisted_broker.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from twisted_broker.wire.records import CONTROL_FLAG

FETCH_BYTES = 1 << 20
PATIENCE_SECONDS = 60.0
PAUSE_SECONDS = 0.2
Ints = NDArray[np.int64]
Fetch = Callable[[str, int, int], bytes]
"""(topic, partition, offset) -> batches from the one that holds the offset, or comes after it,
on; the last may be truncated.
"""


@dataclass(frozen=True)
class Window:
    """What is known of the offsets from `start` to before `end`: control batches from `first` to
    `last`.
    """

    start: int = 0
    end: int = 0
    first: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    last: Ints = field(default_factory=lambda: np.empty(0, np.int64))

    def taken(self, first: int, last: int) -> int:
        """How many of these offsets are control batches'."""
        near = slice(
            np.searchsorted(self.last, first), np.searchsorted(self.first, last, side="right")
        )
        shared = np.minimum(self.last[near], last) - np.maximum(self.first[near], first) + 1
        return int(shared.sum())


class Markers:
    """Asks the brokers at `address`, or `fetch`."""

    def __init__(self, address: KafkaCluster, fetch: Fetch | None = None) -> None:
        self.address = address
        self.fetch = fetch or self._fetch
        self.clusters: dict[str, Cluster] = {}
        self.windows: dict[tuple[str, int], Window] = {}

    def close(self) -> None:
        for cluster in self.clusters.values():
            cluster.forget()

    def are_all(self, topic: str, partition: int, first: Ints, last: Ints) -> NDArray[np.bool_]:
        """For each range of offsets, ascending, whether control batches take all of it."""
        found = (
            self._is_all(topic, partition, int(a), int(b)) for a, b in zip(first, last, strict=True)
        )
        return np.fromiter(found, np.bool_, len(first))

    def _is_all(self, topic: str, partition: int, first: int, last: int) -> bool:
        while first <= last:
            window = self.windows.get((topic, partition), Window())
            if not window.start <= first < window.end:
                window = self.windows[topic, partition] = self._window(topic, partition, first)
            upto = min(last, window.end - 1)
            if upto < first or window.taken(first, upto) < upto - first + 1:
                return False
            first = upto + 1
        return True

    def _window(self, topic: str, partition: int, offset: int) -> Window:
        table = scan(memoryview(self.fetch(topic, partition, offset))).headers
        if not len(table):
            return Window()
        lasts = last_offsets(table)
        control = table["attributes"] & CONTROL_FLAG != 0
        return Window(offset, int(lasts[-1]) + 1, table["baseOffset"][control], lasts[control])

    def _fetch(self, topic: str, partition: int, offset: int) -> bytes:
        cluster = self.clusters.setdefault(topic, Cluster(self.address, topic))
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return fetched(cluster, partition, offset)
            except (OSError, WireError) as error:
                cluster.forget()
                if time.monotonic() > until:
                    raise PipelineError(
                        f"{topic}-{partition}: offset {offset} could not be read for end "
                        f"markers of transactions ({error}): "
                        "are its brokers up, and do they listen in plaintext?"
                    ) from error
                time.sleep(PAUSE_SECONDS)


def fetched(cluster: Cluster, partition: int, offset: int) -> bytes:
    """Batches as the leader has them.

    OSError when it cannot be asked now, PipelineError for a refusal.
    """
    asked = FetchPartition(
        partition=partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES
    )
    topic = FetchTopic(topic=cluster.topic, partitions=[asked])
    request = FetchRequest(max_wait_ms=1000, min_bytes=1, max_bytes=FETCH_BYTES, topics=[topic])
    told = cluster.leader(partition).call(request, FetchResponse).responses[0].partitions[0]
    check(told.error_code, f"{cluster.topic}-{partition}")
    return bytes(told.records or b"")
