"""Slices whose bytes are not in memory: somebody else reads them first, and nobody waits who does
not want them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.task import Clock

from tests.memory_broker import MemoryBroker
from twisted_broker.log.filesystem import OsFileSystem
from twisted_broker.log.segment_file import FileSlice, OpenFiles, SegmentFile
from twisted_broker.net.network import copy_slice
from twisted_broker.net.send_queue import STRETCH_BYTES, SendQueue
from twisted_broker.simulation.disk import SimDisk
from twisted_broker.simulation.disk_faults import Fault
from twisted_broker.simulation.stalling_worker import StallingWorker
from twisted_broker.wire.messages.api_versions import ApiVersionsRequest
from twisted_broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from twisted_broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from twisted_broker.wire.messages.topics import CreatableTopic, CreateTopicsRequest
from twisted_broker.wire.record_builder import BatchBuilder

LENGTH = 2 * STRETCH_BYTES + 1000


class Sending:
    """A queue over a transport that takes everything, and a file on a simulated disk."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.worker = StallingWorker(self.clock)
        self.disk = SimDisk()
        self.disk.is_in_worker = lambda: self.worker.in_job
        self.disk.make_directories("/d")
        self.content = bytes(range(250)) * (LENGTH // 250 + 1)
        self.disk.open("/d/log", create=True).write_at(0, (self.content,))
        self.disk.sync_all()
        self.pool = OpenFiles(self.disk, reader=self.worker)
        self.file = SegmentFile(self.pool, "/d/log")
        self.sent = bytearray()
        self.failures: list[Exception] = []
        network: Any = SimpleNamespace(send_slice=copy_slice)
        runtime: Any = SimpleNamespace(network=network, clock=self.clock)
        transport: Any = SimpleNamespace(write=self.sent.extend)
        self.queue = SendQueue(transport, runtime, self)

    def resumeProducing(self) -> None:
        self.queue.resume()

    def broken(self, reason: Exception) -> None:
        self.failures.append(reason)

    def send(self) -> None:
        self.queue.send([b"head", FileSlice(self.file, 0, LENGTH), b"tail"])

    def run(self) -> None:
        while self.clock.getDelayedCalls():
            self.clock.advance(0)

    @property
    def whole(self) -> bytes:
        return b"head" + self.content[:LENGTH] + b"tail"


def test_what_is_in_memory_is_sent_at_once() -> None:
    sending = Sending()
    sending.send()
    assert sending.sent == sending.whole and sending.worker.waiting == 0
    assert sending.file.references == 0


def test_what_is_not_is_read_by_the_worker_and_then_sent() -> None:
    """Stretch by stretch; the reactor never waits for the disk."""
    sending = Sending()
    sending.disk.evict()
    sending.send()
    assert sending.sent == b"head" and sending.queue.full and sending.worker.waiting == 1
    sending.run()
    assert sending.sent == sending.whole and not sending.queue.full
    assert sending.disk.blocked == [] and sending.file.references == 0


def test_the_transport_may_resume_while_it_is_read() -> None:
    """Nothing is sent, and nothing is read twice."""
    sending = Sending()
    sending.disk.evict()
    sending.worker.stalled = True
    sending.send()
    for _ in range(3):
        sending.queue.pause()
        sending.queue.resume()
    assert sending.sent == b"head" and sending.queue.full and sending.worker.waiting == 1
    sending.worker.resume()
    sending.run()
    assert sending.sent == sending.whole and sending.disk.blocked == []


def test_a_connection_that_ends_meanwhile_gives_the_file_back() -> None:
    sending = Sending()
    sending.disk.evict()
    sending.send()
    sending.queue.close()
    assert sending.file.references == 1  # the worker's
    sending.run()
    assert sending.file.references == 0 and sending.sent == b"head"


def test_a_read_that_fails_ends_the_connection() -> None:
    sending = Sending()
    sending.disk.evict()
    sending.send()
    sending.disk.faults.append(Fault(errno.EIO, "read"))
    sending.run()
    assert [type(each) for each in sending.failures] == [OSError] and sending.sent == b"head"


def test_what_is_dropped_again_at_once_is_sent_all_the_same() -> None:
    """Else it would be read for ever."""
    sending = Sending()
    sending.disk.evict()
    read = sending.disk.read
    sending.disk.read = lambda *where: (read(*where), sending.disk.evict())[0]
    sending.send()
    sending.run()
    assert sending.sent == sending.whole


def _until(holds: Callable[[], bool], again: Callable[[], None]) -> None:
    """A system that needs its memory may drop what was there a moment ago."""
    for _ in range(1000):
        again()
        if holds():
            return
    raise AssertionError("never in memory")


def test_a_real_disk_says_what_is_in_memory(tmp_path: Path) -> None:
    """Where system and file system can."""
    files = OsFileSystem()
    file = files.open(str(tmp_path / "f"), create=True)
    content = os.urandom(1 << 20)

    def write() -> None:
        file.write_at(0, (content,))

    def are_known() -> bool:
        known = file.read_resident(70_000, 9000)
        assert known in (None, content[70_000:79_000])
        return known is not None and file.is_resident(0, 1 << 20)

    _until(are_known, write)
    file.sync()
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if file.is_resident(0, 1 << 20):
        pytest.skip("this file system does not say, or does not drop")
    # The question itself starts a read-ahead in Linux, which a fast disk may have ended by now.
    assert file.read_resident(0, 1 << 20) in (None, content)
    pool = OpenFiles(files, reader=StallingWorker(Clock()))
    segment = SegmentFile(pool, str(tmp_path / "f"))
    done: list[object] = []

    def load() -> None:
        done.clear()
        segment.load(0, 1 << 20, done.append)
        pool.reader._clock.advance(0)
        assert done == [None]

    _until(lambda: file.is_resident(0, 1 << 20) and file.read_resident(5, 7) == content[5:12], load)
    assert file.read_resident((1 << 20) - 5, 10) is None  # beyond the end: no more is known
    file.close()


@pytest.mark.parametrize("size", [9000, 300_000])
def test_others_are_served_while_a_disk_stalls(size: int) -> None:
    """A consumer far behind reads a segment that is in memory no longer, small slice or large; the
    disk does not answer for ten seconds. Everybody else is answered at once.
    """
    disk = SimDisk()
    workers: list[StallingWorker] = []

    def worker(directory: str) -> StallingWorker:
        workers.append(StallingWorker(owner.clock))
        return workers[-1]

    owner: Any = SimpleNamespace(clock=Clock())
    world = MemoryBroker.__new__(MemoryBroker)
    world.clock = owner.clock
    from twisted_broker.simulation.memory_network import MemoryNetwork

    world.network = MemoryNetwork(owner.clock)
    broker = MemoryBroker(disk, world=world, disk=worker).start()
    disk.is_in_worker = lambda: any(each.in_job for each in workers)
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    broker.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 7)
    builder = BatchBuilder()
    builder.append(1_700_000_000_000, None, bytes(size))
    data = PartitionProduceData(index=0, records=builder.build())
    broker.ask(
        ProduceRequest(
            acks=1, timeout_ms=1, topic_data=[TopicProduceData(name="t", partition_data=[data])]
        ),
        7,
    )
    broker.pass_time(1)
    fetch = FetchRequest(
        max_wait_ms=0,
        max_bytes=1 << 20,
        topics=[
            FetchTopic(
                topic="t",
                partitions=[FetchPartition(partition=0, partition_max_bytes=1 << 20)],
            )
        ],
    )
    assert broker.ask(fetch, 11).responses[0].partitions[0].records
    disk.sync_all()
    disk.evict(".log")
    # The header of the first batch is looked at where the request is served; what follows is not.
    disk.read("/x", disk.nodes["/data/t-0/00000000000000000000.log"], 0, 1)
    for each in workers:
        each.stalled = True
    disk.blocked.clear()
    behind, other = broker.connection(), broker.connection()
    answers: list[Any] = []
    behind.send(fetch, 11).addBoth(answers.append)
    for _ in range(100):
        asked = other.send(
            ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3
        )
        assert not broker.run(asked).error_code
        broker.pass_time(0.1)
    assert not answers and disk.blocked == []
    for each in workers:
        each.resume()
    broker.pass_time(1)
    assert len(answers[0].responses[0].partitions[0].records) > size
    behind.close()
    other.close()
    broker.stop()
