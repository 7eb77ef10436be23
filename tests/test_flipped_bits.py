"""One bit flipped in each kind of file of a broker that is down, after a clean stop and after a
kill: what its next start does, and what a consumer reads then.

The oracle: the node refuses to start with one line that names the file, or it starts; a consumer
then gets every acknowledged record as it was, or an error, or a batch whose checksum it refuses,
or the log has said which file was damaged. What is acknowledged is never missing in silence but in
the places of `SILENT`, where Kafka's is. Metadata snapshots have `test_metadata_check.py`.
`python -m tests.test_flipped_bits` prints what came of each kind.
"""

from __future__ import annotations

import copy
from collections import Counter
from functools import cache

import pytest
from twisted.logger import LogLevel, capturedLogs, formatEvent

from tests.memory_broker import MemoryBroker
from twisted_broker.broker import STARTING_ERRORS
from twisted_broker.log.memory import MemoryFileSystem
from twisted_broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from twisted_broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from twisted_broker.wire.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from twisted_broker.wire.records import BatchBuilder, iterate_batches

BATCHES, SEGMENT_BYTES = 30, 1 << 20
LOG, METADATA = "/data/t-0", "/data/__cluster_metadata-0"
KINDS = {
    "old segment": (LOG, 0, ".log"),
    "last segment": (LOG, -1, ".log"),
    "index": (LOG, 0, ".index"),
    "last index": (LOG, -1, ".index"),
    "time index": (LOG, 0, ".timeindex"),
    "producer snapshot": (LOG, -1, ".snapshot"),
    "leader epochs": (LOG, 0, "leader-epoch-checkpoint"),
    "topic id": (LOG, 0, "partition.metadata"),
    "recovery points": ("/data", 0, "recovery-point-offset-checkpoint"),
    "high watermarks": ("/data", 0, "replication-offset-checkpoint"),
    "log starts": ("/data", 0, "log-start-offset-checkpoint"),
    "meta.properties": ("/data", 0, "meta.properties"),
    "clean shutdown": ("/data", 0, ".kafka_cleanshutdown"),
    "metadata log": (METADATA, 0, ".log"),
    "quorum state": (METADATA, 0, "quorum-state"),
}
STEPS = 17
SILENT = {"log starts", "leader epochs"}


def value(number: int) -> bytes:
    return b"%d " % number + bytes(100_000)


@cache
def stopped(is_clean: bool) -> MemoryFileSystem:
    """The files of a node with one topic of some segments, written by a producer with an id."""
    house = MemoryBroker().start()
    topic = CreatableTopic(
        name="t",
        num_partitions=1,
        replication_factor=1,
        configs=[CreatableTopicConfig(name="segment.bytes", value=str(SEGMENT_BYTES))],
    )
    house.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 7)
    house.pass_time(1)
    for number in range(BATCHES):
        builder = BatchBuilder(producer_id=5, producer_epoch=0, base_sequence=number)
        builder.append(house.runtime.wall_ms(), None, value(number))
        data = TopicProduceData(
            name="t", partition_data=[PartitionProduceData(index=0, records=builder.build())]
        )
        answer = house.ask(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[data]), 7)
        assert not answer.responses[0].partition_responses[0].error_code
    house.pass_time(61)  # the checkpoints are written
    killed = copied(house.files)
    house.stop()
    return copied(house.files) if is_clean else killed


def copied(files: MemoryFileSystem) -> MemoryFileSystem:
    """As another process finds them: without locks."""
    found = MemoryFileSystem()
    found.nodes, found.directories = copy.deepcopy(files.nodes), set(files.directories)
    return found


def path_of(files: MemoryFileSystem, kind: str) -> str | None:
    directory, row, ending = KINDS[kind]
    names = sorted(name for name in files.listdir(directory) if name.endswith(ending))
    return f"{directory}/{names[row]}" if names else None


def consumed(house: MemoryBroker) -> tuple[list[bytes], bool]:
    """Values from the log's start on, and whether something told the consumer of damage."""
    found: list[bytes] = []
    offset = 0
    for _ in range(BATCHES + 1):
        asked = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=0, max_bytes=1 << 20, topics=[FetchTopic(topic="t", partitions=[asked])]
        )
        (answer,) = house.ask(request, 11).responses[0].partitions
        if answer.error_code:
            return found, True
        for batch in iterate_batches(answer.records or b""):
            if not batch.is_valid_crc():
                return found, True
            found += [record.value or b"" for record in batch.records(1 << 20)]
            offset = batch.next_offset
        if not answer.records:
            break
    return found, False


def outcome(kind: str, at: float, is_clean: bool) -> str:
    """What a bit flipped there does: `refused`, `whole`, `told`, `said` (in the log) or `lost`; ``
    where there is no such file.
    """
    files = copied(stopped(is_clean))
    path = path_of(files, kind)
    if path is None or not files.size(path):
        return ""
    content = files.nodes[path].data
    content[int((len(content) - 1) * at)] ^= 4
    with capturedLogs() as events:
        try:
            house = MemoryBroker(files).start()
            house.pass_time(5)
        except STARTING_ERRORS as error:
            fatal = str(error)
        else:
            fatal = "".join(house.fatal)
        if fatal:
            assert "\n" not in fatal and "/data" in fatal, fatal
            return "refused"
        values, is_told = consumed(house)
    house.stop()
    if values == [value(number) for number in range(BATCHES)]:
        return "whole"
    if is_told:
        return "told"
    warned = [formatEvent(each) for each in events if each["log_level"] >= LogLevel.warn]
    name = path.rpartition("/")[2]
    return "said" if any(name in line or "t-0" in line for line in warned) else "lost"


@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_in_the_middle(kind: str, is_clean: bool) -> None:
    assert outcome(kind, 0.5, is_clean) != "lost"


@pytest.mark.long
@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_anywhere(kind: str, is_clean: bool) -> None:
    found = [outcome(kind, at / (STEPS - 1), is_clean) for at in range(STEPS)]
    assert kind in SILENT or "lost" not in found, found


if __name__ == "__main__":
    for kind in KINDS:
        for is_clean in (True, False):
            found = Counter(outcome(kind, at / (STEPS - 1), is_clean) for at in range(STEPS))
            print(f"{kind:20} {'clean' if is_clean else 'killed':7} {dict(found)}", flush=True)
