"""Log directories for tests: real batches in real files, as many replicas as wanted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from twisted_broker.wire.records import BatchBuilder, set_offsets_and_epoch


def batch(base: int, count: int = 10, epoch: int = 0, text: str = "value", **settings) -> bytes:
    """A batch of `count` records at offset `base` under a leader epoch; `settings` go to the
    `BatchBuilder`.
    """
    builder = BatchBuilder(**settings)
    for number in range(count):
        builder.append(
            1_700_000_000_000 + base + number,
            b"key %d" % (number % 3),
            f"{text} {base + number}".encode(),
        )
    made = bytearray(builder.build())
    set_offsets_and_epoch(made, base, epoch)
    return bytes(made)


def partition(directory: Path, name: str, segments: Mapping[int, Sequence[bytes]]) -> Path:
    """A partition's folder with these segments."""
    folder = directory / name
    folder.mkdir(parents=True)
    for base, batches in segments.items():
        (folder / f"{base:020d}.log").write_bytes(b"".join(batches))
    return folder


def checkpoint(directory: Path, name: str, offsets: Mapping[str, int]) -> None:
    """An offset checkpoint: partition folder's name -> offset."""
    lines = [
        f"{partition.rpartition('-')[0]} {partition.rpartition('-')[2]} {offset}"
        for partition, offset in offsets.items()
    ]
    (directory / name).write_text("\n".join(["0", str(len(lines)), *lines]) + "\n")


def high_watermarks(directory: Path, offsets: Mapping[str, int]) -> None:
    checkpoint(directory, "replication-offset-checkpoint", offsets)


def topic_id(folder: Path, text: str) -> None:
    (folder / "partition.metadata").write_text(f"version: 0\ntopic_id: {text}")
