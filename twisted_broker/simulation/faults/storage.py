"""Faults of what is stored, and of its room: bits flip, directories are lost, a disk stays full, no
file can be opened.

Owns those faults (`faults/base.py` says what a fault is), `CHECKED`, and `is_in_head`.

1. Bits flip, and directories go, while no process runs, after an unclean stop: the replicas of the
   machine leave their ISRs, so what others hold is not lost with them.
2. Bits flip only where a checksum, or the format, shows it: `CHECKED`. Kafka promises nothing for
   others: base offset and leader epoch of a batch, checkpoints of offsets and epochs, a segment
   below the recovery point. A flip there is found by `replog verify`, by no running broker.
3. What the controller needs is spared: its damage has a fault of its own (`faults/metadata.py`).

Source: RELIABILITY 6.2. Not here: errors of single operations (`faults/disk.py`).
"""

from __future__ import annotations

import posixpath
from errno import EMFILE

from twisted_broker.cluster import last_batch
from twisted_broker.cluster.metadata_check import known_end, read_applied
from twisted_broker.simulation.disk_faults import Fault
from twisted_broker.simulation.faults.base import FaultInjector
from twisted_broker.simulation.node import SimNode
from twisted_broker.topic_names import METADATA_DIRECTORY
from twisted_broker.wire.records import LOG_OVERHEAD

CHECKED = {
    "log": "the active segment: each batch has a checksum, and is checked after an unclean stop",
    "index": "an entry that does not fit is found, or the index is made anew with its segment",
    "timeindex": "the same",
    "snapshot": "producer snapshots have a checksum",
    "clean shutdown": "JSON that is not understood is no clean stop",
    "metadata": "what is in a broker's metadata log has checksums",
}
_CONTROLLER = "n1"
_HEAD_BYTES = 16  # base offset, length, leader epoch: outside a batch's checksum


def flip(injector: FaultInjector, node: SimNode) -> None:
    """A process dies, and until it is back a bit of one of its files has changed."""
    if node.is_up:
        node.kill()
    injector.clock.callLater(0.01, _flip, injector, node)
    injector.schedule(lambda: injector.restart(node))


def _flip(injector: FaultInjector, node: SimNode) -> None:
    if node.is_up:
        return
    kind = injector.random.choice(list(CHECKED))
    if kind != "clean shutdown" and any(
        path.endswith("/.kafka_cleanshutdown") for path in node.disk.nodes
    ):
        return  # what was closed in order is trusted
    paths = [
        path
        for path in sorted(node.disk.nodes)
        if _is_of(kind, path, node) and node.disk.nodes[path].data
    ]
    if paths:
        path = injector.random.choice(paths)
        data = node.disk.nodes[path].data
        position = injector.random.randrange(len(data))
        bit = injector.random.randrange(8)
        if kind == "log" and is_in_head(position, data):
            position += _HEAD_BYTES  # what the checksum covers, then
        node.disk.flip_bit(path, position, bit)
        injector.note(f"a bit of {path} on {node.name} flips")
        injector.struck(f"flip in {kind}")


def is_in_head(position: int, data: bytearray) -> bool:
    """Whether no checksum covers this byte of a segment."""
    begin = 0
    while begin + LOG_OVERHEAD <= len(data):
        if begin <= position < begin + _HEAD_BYTES:
            return True
        length = int.from_bytes(data[begin + 8 : begin + LOG_OVERHEAD], "big")
        if length <= 0:
            return False
        begin += LOG_OVERHEAD + length
    return False


def _is_of(kind: str, path: str, node: SimNode) -> bool:
    directory, name = posixpath.split(path)
    if kind == "clean shutdown":
        return name == ".kafka_cleanshutdown"
    is_metadata = directory.endswith(METADATA_DIRECTORY)
    if kind == "metadata":
        kinds = (".log", ".checkpoint", last_batch.SUFFIX)
        return is_metadata and not _is_controller(node) and name.endswith(kinds)
    if is_metadata or "." in posixpath.basename(directory) or not name.endswith(f".{kind}"):
        return False
    return kind != "log" or name == max(
        posixpath.basename(each)
        for each in node.disk.nodes
        if posixpath.dirname(each) == directory and each.endswith(".log")
    )


def _is_controller(node: SimNode) -> bool:
    return node.name == _CONTROLLER or "controller" in node.settings.get("process.roles", "")


def lose_directory(injector: FaultInjector, node: SimNode) -> None:
    """A process dies, and one of its log directories, or its metadata log, is gone."""
    directories = node.settings["log.dirs"].split(",")
    kept = [directories[0], *_witnesses(node)] if _is_controller(node) else []
    lost = [each for each in directories if each not in kept]
    if not _is_controller(node):
        lost.append(f"{directories[0]}/{METADATA_DIRECTORY}")
    if not lost:
        return
    if node.is_up:
        node.kill()
    path = injector.random.choice(lost)
    injector.note(f"{path} of {node.name} is lost")
    injector.struck("lost metadata" if path.endswith(METADATA_DIRECTORY) else "lost directory")
    node.disk.lose(path)
    injector.schedule(lambda: injector.restart(node))


def _witnesses(node: SimNode) -> list[str]:
    """The directory that alone tells the controller that its metadata are an older copy. Without it
    nobody on that machine can know (docs/RELIABILITY.md 2.7), and that is not simulated.
    """
    disk, directories = node.disk, node.settings["log.dirs"].split(",")
    try:
        end = known_end(disk, posixpath.join(directories[0], METADATA_DIRECTORY)).end_offset
        if read_applied(disk, directories).end_offset <= end:
            return []
        return [
            path
            for path in directories
            if read_applied(disk, [each for each in directories if each != path]).end_offset <= end
        ]
    except OSError:
        return []  # nothing is there, or it cannot be read: no older copy


def fill_up(injector: FaultInjector, node: SimNode) -> None:
    """The disk takes a little more, and then nothing for a while."""
    disk = node.disk
    if not node.is_up or disk.capacity_bytes is not None:
        return
    used = sum(len(each.data) for each in disk.nodes.values())
    disk.capacity_bytes = used + injector.random.randrange(600)
    injector.note(f"disk of {node.name} is full")
    injector.clock.callLater(3 + injector.random.random() * 10, _make_room, injector, node)


def _make_room(injector: FaultInjector, node: SimNode) -> None:
    """Room again, and a process that lost a directory is replaced."""
    node.disk.capacity_bytes = None
    if (
        node.broker is not None
        and not node.clock.paused
        and not node.stopping
        and node.broker.log_manager.directories.offline()
    ):
        node.kill()
    injector.restart(node)


def no_descriptors(injector: FaultInjector, node: SimNode) -> None:
    """For a while no file can be opened."""
    if not node.is_up:
        return
    disk, fault = node.disk, Fault(EMFILE, "open")
    injector.note(f"{node.name} is out of file descriptors")
    disk.faults.append(fault)
    injector.schedule(lambda: disk.faults.remove(fault) if fault in disk.faults else None, 5.0)
