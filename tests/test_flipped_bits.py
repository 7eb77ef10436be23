"""One bit flipped in each kind of file of a broker that is down, after a clean stop and after a
kill: what its next start does, and what a consumer reads then.

The oracle: the node refuses to start with one line that names the file, or it starts; a consumer
then gets every acknowledged record as it was, or an error, or a batch whose checksum it refuses,
or the log has said which file was damaged. What is acknowledged is never missing in silence but in
the places of `SILENT`, where Kafka's is. Beside transaction indexes the consumer reads committed
records; aborted ones come in silence where `replog verify` finds the damage. Metadata snapshots
have `test_metadata_check.py`.
`python -m tests.test_flipped_bits` prints what came of each kind.
"""

from __future__ import annotations

import copy
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from twisted.logger import LogLevel, capturedLogs, formatEvent

from tests.memory_broker import MemoryBroker
from twisted_broker.cli.verify import verify_directory
from twisted_broker.consumer.record_iterator import records_of
from twisted_broker.log.memory import MemoryFileSystem
from twisted_broker.server.kafka_server import STARTING_ERRORS
from twisted_broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from twisted_broker.wire.messages.offsets import FindCoordinatorRequest
from twisted_broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from twisted_broker.wire.messages.producer_ids import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from twisted_broker.wire.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from twisted_broker.wire.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
)
from twisted_broker.wire.records import BatchBuilder, iterate_batches

BATCHES, SEGMENT_BYTES = 30, 1 << 20
IDS, PER_TRANSACTION = ("kept", "aborted"), 3
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
    "transaction index": (LOG, 0, ".txnindex"),
    "last transaction index": (LOG, -1, ".txnindex"),
}
TRANSACTIONAL = {"transaction index", "last transaction index"}
STEPS = 17
SILENT = {"log starts", "leader epochs"}


def value(number: int) -> bytes:
    return b"%d " % number + bytes(100_000)


@cache
def stopped(is_clean: bool, is_transactional: bool) -> MemoryFileSystem:
    """The files of a node with one topic of some segments, written by a producer with an id, or by
    two with transactions, of which every other one is aborted.
    """
    broker = MemoryBroker(transaction_state_log_num_partitions="1").start()
    topic = CreatableTopic(
        name="t",
        num_partitions=1,
        replication_factor=1,
        configs=[CreatableTopicConfig(name="segment.bytes", value=str(SEGMENT_BYTES))],
    )
    broker.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 7)
    broker.pass_time(1)
    if is_transactional:
        write_transactions(broker)
    else:
        for number in range(BATCHES):
            produce(
                broker, number, BatchBuilder(producer_id=5, producer_epoch=0, base_sequence=number)
            )
    broker.pass_time(61)  # the checkpoints are written
    killed = copied(broker.files)
    broker.stop()
    return copied(broker.files) if is_clean else killed


def produce(
    broker: MemoryBroker, number: int, builder: BatchBuilder, id: str | None = None
) -> None:
    builder.append(broker.runtime.wall_ms(), None, value(number))
    data = TopicProduceData(
        name="t", partition_data=[PartitionProduceData(index=0, records=builder.build())]
    )
    request = ProduceRequest(transactional_id=id, acks=-1, timeout_ms=1000, topic_data=[data])
    answer = broker.ask(request, 7)
    assert not answer.responses[0].partition_responses[0].error_code


def write_transactions(broker: MemoryBroker) -> None:
    """Of two producers with `PER_TRANSACTION` records each, in turn; those of the second are
    aborted.
    """
    producers = list[InitProducerIdResponse]()
    for id in IDS:
        broker.ask(FindCoordinatorRequest(coordinator_keys=[id], key_type=1), 4)
        broker.pass_time(1)
        init = InitProducerIdRequest(transactional_id=id, transaction_timeout_ms=60_000)
        producers.append(broker.ask(init, 4))
        assert not producers[-1].error_code
    written = [0 for _ in IDS]
    for start in range(0, BATCHES, len(IDS) * PER_TRANSACTION):
        for id, begun in zip(IDS, producers, strict=True):
            add = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=id,
                v3_and_below_producer_id=begun.producer_id,
                v3_and_below_producer_epoch=begun.producer_epoch,
                v3_and_below_topics=[AddPartitionsToTxnTopic(name="t", partitions=[0])],
            )
            (topic,) = broker.ask(add, 3).results_by_topic_v3_and_below
            assert not topic.results_by_partition[0].partition_error_code
        for number in range(start, start + len(IDS) * PER_TRANSACTION):
            which = number % len(IDS)
            builder = BatchBuilder(
                producer_id=producers[which].producer_id,
                producer_epoch=producers[which].producer_epoch,
                base_sequence=written[which],
                is_transactional=True,
            )
            produce(broker, number, builder, IDS[which])
            written[which] += 1
        for which, begun in enumerate(producers):
            end = EndTxnRequest(
                transactional_id=IDS[which],
                producer_id=begun.producer_id,
                producer_epoch=begun.producer_epoch,
                committed=not which,
            )
            assert not broker.ask(end, 3).error_code
        broker.pass_time(1)  # the markers are written


def copied(files: MemoryFileSystem) -> MemoryFileSystem:
    """As another process finds them: without locks."""
    found = MemoryFileSystem()
    found.nodes, found.directories = copy.deepcopy(files.nodes), set(files.directories)
    return found


def path_of(files: MemoryFileSystem, kind: str) -> str | None:
    directory, row, ending = KINDS[kind]
    names = sorted(name for name in files.listdir(directory) if name.endswith(ending))
    return f"{directory}/{names[row]}" if names else None


def consumed(broker: MemoryBroker, isolation: int) -> tuple[list[bytes], bool]:
    """Values from the log's start on, and whether something told the consumer of damage."""
    found: list[bytes] = []
    offset = 0
    for _ in range(2 * BATCHES):
        asked = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=0,
            max_bytes=1 << 20,
            isolation_level=isolation,
            topics=[FetchTopic(topic="t", partitions=[asked])],
        )
        (answer,) = broker.ask(request, 11).responses[0].partitions
        if answer.error_code:
            return found, True
        aborted = [
            (each.producer_id, each.first_offset) for each in answer.aborted_transactions or ()
        ]
        begin = offset
        for batch in iterate_batches(answer.records or b""):
            if not batch.is_valid_crc():
                return found, True
            offset = batch.next_offset
        found += [record.value or b"" for record in records_of(answer.records, begin, aborted)]
        if not answer.records:
            break
    return found, False


def flipped(kind: str, at: float, is_clean: bool) -> tuple[MemoryFileSystem, str] | None:
    """The node's files with a bit flipped there, and the path; None where there is no such file."""
    files = copied(stopped(is_clean, kind in TRANSACTIONAL))
    path = path_of(files, kind)
    if path is None or not files.size(path):
        return None
    content = files.nodes[path].data
    content[int((len(content) - 1) * at)] ^= 4
    return files, path


def outcome(kind: str, at: float, is_clean: bool) -> str:
    """What a bit flipped there does: `refused`, `whole`, `told`, `said` (in the log), `lost`, or
    `aborted read`; `` where there is no such file.
    """
    damaged = flipped(kind, at, is_clean)
    if damaged is None:
        return ""
    files, path = damaged
    is_transactional = kind in TRANSACTIONAL
    with capturedLogs() as events:
        try:
            broker = MemoryBroker(files).start()
            broker.pass_time(5)
        except STARTING_ERRORS as error:
            fatal = str(error)
        else:
            fatal = "".join(broker.fatal)
        if fatal:
            assert "\n" not in fatal and "/data" in fatal, fatal
            return "refused"
        values, is_told = consumed(broker, isolation=int(is_transactional))
    broker.stop()
    wanted = [value(number) for number in range(0, BATCHES, len(IDS) if is_transactional else 1)]
    if values == wanted:
        return "whole"
    if is_told:
        return "told"
    warned = [formatEvent(each) for each in events if each["log_level"] >= LogLevel.warn]
    name = path.rpartition("/")[2]
    if any(name in line or "t-0" in line for line in warned):
        return "said"
    return "lost" if set(wanted) - set(values) else "aborted read"


@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_in_the_middle(kind: str, is_clean: bool) -> None:
    assert outcome(kind, 0.5, is_clean) not in ("lost", "aborted read")


@pytest.mark.long
@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_anywhere(kind: str, is_clean: bool) -> None:
    found = [outcome(kind, at / (STEPS - 1), is_clean) for at in range(STEPS)]
    assert kind in SILENT or "lost" not in found, found
    assert kind in TRANSACTIONAL or "aborted read" not in found, found


@pytest.mark.parametrize("kind", sorted(TRANSACTIONAL))
def test_verify_finds_what_a_reader_of_committed_records_does_not_see(
    kind: str, tmp_path: Path
) -> None:
    """In each field of an entry: the version, the producer, the offsets."""
    whole = stopped(True, True)
    path = path_of(whole, kind)
    assert path is not None
    copy, seen = tmp_path / "t-0", set[str]()
    copy.mkdir()
    for byte in (0, 9, 17, 25, 33):
        place = (byte + 0.5) / (whole.size(path) - 1)
        damaged = flipped(kind, place, is_clean=True)
        assert damaged is not None
        for name in damaged[0].listdir(LOG):
            (copy / name).write_bytes(damaged[0].nodes[f"{LOG}/{name}"].data)
        found = outcome(kind, place, is_clean=True)
        seen.add(found)
        findings = [Path(each.path).name for each in verify_directory(copy).findings]
        assert found == "whole" or path.rpartition("/")[2] in findings, (byte, found)
    assert seen == {"whole", "aborted read"}


if __name__ == "__main__":
    for kind in KINDS:
        for is_clean in (True, False):
            found = Counter(outcome(kind, at / (STEPS - 1), is_clean) for at in range(STEPS))
            print(f"{kind:20} {'clean' if is_clean else 'killed':7} {dict(found)}", flush=True)
