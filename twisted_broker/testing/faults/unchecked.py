"""Bits that flip where no checksum shows them, and the operator who looks before the next start.

Owns `flip_unchecked` (`faults/base.py` says what a fault is) and `PLACES`.

What is promised then is less than else, here as in Kafka, which trusts all of these files:

1. It strikes while every partition of the machine has another member in its ISR, and the process
   dies: its replicas leave their ISRs, and what was acknowledged is on the others.
2. Before the next start an operator runs `replog verify` on the machine: a replica in which it
   finds something new is made anew from its leader. What it does not find breaks no rule: nothing
   acknowledged is lost, and no consumer is given anything else.

Not here: what a checksum or a format shows to the broker itself (`faults/storage.py`); a flip in
the checkpoint of log starts, or in the first row of a leader-epoch checkpoint, which makes a log
begin later: Kafka, this broker and `replog verify` take it for a deletion.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from twisted_broker.cli.verify import verify_directory
from twisted_broker.log.checkpoints import HIGH_WATERMARK, LEADER_EPOCH, RECOVERY_POINT
from twisted_broker.testing.faults.base import FaultInjector
from twisted_broker.testing.sim.node import SimNode

_CONTROLLER = "n1"
_LOOK_SECONDS, _LOOKS = 0.05, 60
_HEAD_BYTES = 16  # base offset, length, leader epoch: outside a batch's checksum


def _is_replicas(path: str) -> bool:
    directory = posixpath.basename(posixpath.dirname(path))
    return "-" in directory and "." not in directory and not directory.startswith("__cluster")


PLACES: dict[str, Callable[[str], bool]] = {
    "batch head": lambda path: _is_replicas(path) and path.endswith(".log"),
    "older segment": lambda path: _is_replicas(path) and path.endswith(".log"),
    "leader epochs": lambda path: _is_replicas(path) and path.endswith(f"/{LEADER_EPOCH}"),
    "high watermarks": lambda path: path.count("/") == 2 and path.endswith(f"/{HIGH_WATERMARK}"),
    "recovery points": lambda path: path.count("/") == 2 and path.endswith(f"/{RECOVERY_POINT}"),
    "topic id": lambda path: _is_replicas(path) and path.endswith("/partition.metadata"),
}
"""Where -> which files."""


def flip_unchecked(injector: FaultInjector, node: SimNode) -> None:
    """A process dies, and until it is back a bit has changed that no checksum covers."""
    _strike_when_held_elsewhere(injector, node, _LOOKS)


def _strike_when_held_elsewhere(injector: FaultInjector, node: SimNode, looks: int) -> None:
    if injector.ended or injector.held or not node.is_up:
        return
    if _is_held_elsewhere(injector, node):
        node.kill()
        _flip(injector, node)
        injector.schedule(lambda: injector.restart(node))
    elif looks:
        injector.clock.callLater(
            _LOOK_SECONDS, _strike_when_held_elsewhere, injector, node, looks - 1
        )


def _is_held_elsewhere(injector: FaultInjector, node: SimNode) -> bool:
    """Whether every partition of the machine has another member in its ISR that runs."""
    nodes = injector.cluster.nodes
    broker = nodes[_CONTROLLER].broker
    controller = None if broker is None else broker.parts.controller
    if controller is None or controller.epoch < 0 or node.stopping:
        return False
    held = [
        partition
        for topic in controller.committed.topics_by_id.values()
        for partition in topic.partitions.values()
        if node.node_id in partition.replicas
    ]
    return bool(held) and all(
        any(other != node.node_id and nodes[f"n{other}"].healthy for other in partition.isr)
        for partition in held
    )


def _flip(injector: FaultInjector, node: SimNode) -> None:
    kind = injector.random.choice(list(PLACES))
    disk = node.at_rest()
    paths = [path for path in sorted(disk.nodes) if PLACES[kind](path) and disk.nodes[path].data]
    if kind == "older segment":
        paths = [path for path in paths if not _is_newest(path, paths)]
    if not paths:
        return
    path = injector.random.choice(paths)
    data = disk.nodes[path].data
    position = injector.random.randrange(len(data))
    if kind == "batch head":
        heads = batch_positions(data)
        position = injector.random.choice(heads) + injector.random.randrange(_HEAD_BYTES)
    if kind == "leader epochs":
        position = injector.random.choice(_outside_first_row(data))
    node.has_flipped_marks = node.has_flipped_marks or kind == "high watermarks"
    before, bit = _findings(node), injector.random.randrange(8)
    first_epoch = bytes(data).splitlines()[2:3]
    disk.flip_bit(path, position, bit)
    if kind == "leader epochs" and bytes(data).splitlines()[2:3] != first_epoch:
        disk.flip_bit(path, position, bit)
        return
    found = _findings(node) - before
    injector.note(f"a bit of {path} at byte {position} on {node.name} flips: {sorted(found)}")
    injector.struck(f"unchecked: {kind}")
    damaged = {posixpath.dirname(each) for each, _ in found if _is_replicas(each)}
    for directory in sorted(damaged):
        injector.by_hand("replica made anew after verify")
        disk.lose(directory)


def _is_newest(path: str, paths: list[str]) -> bool:
    return path == max(each for each in paths if posixpath.dirname(each) == posixpath.dirname(path))


def batch_positions(data: bytearray) -> list[int]:
    """Where batches begin in a segment."""
    found, position = [], 0
    while position + 61 <= len(data):
        length = int.from_bytes(data[position + 8 : position + 12], "big")
        if length <= 0:
            break
        found.append(position)
        position += 12 + length
    return found or [0]


def _outside_first_row(data: bytearray) -> list[int]:
    """Bytes of a checkpoint that are not of its first row."""
    lines = [len(line) for line in bytes(data).splitlines(keepends=True)]
    start, end = sum(lines[:2]), sum(lines[:3])
    return [*range(start), *range(end, len(data))]


def _findings(node: SimNode) -> set[tuple[str, str]]:
    """What `replog verify` finds: (file, problem)."""
    found = set()
    for log_directory in node.settings["log.dirs"].split(","):
        with TemporaryDirectory() as name:
            root = Path(name)
            for path in node.disk.nodes:
                if path.startswith(f"{log_directory}/"):
                    copy = root / path.removeprefix(f"{log_directory}/")
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    copy.write_bytes(node.disk.content(path))
            found |= {
                (
                    posixpath.join(log_directory, str(Path(each.path).relative_to(root))),
                    each.problem.replace(name, ""),
                )
                for each in verify_directory(root, with_records=True).findings
            }
    return found
