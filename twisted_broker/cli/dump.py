"""`replog dump-log`: what a file is, by its name, and its rows.

1. A file is known by its name alone; a directory is walked in sorted order and unknown files are
   said to be unknown.
2. Reading continues behind damage where the next entry can be found.

Source: Kafka's DumpLogSegments and LogFileUtils. Not here: whether files agree with each other
(`verify`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from twisted_broker.cli import small_files
from twisted_broker.cli.batches import FileBatch, batch_row, checksum_damage, read_batches
from twisted_broker.cli.payloads import Payload, payload_of, record_rows
from twisted_broker.cli.rows import Damage, Row

OFFSET_CHECKPOINTS = (
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
    "cleaner-offset-checkpoint",
)
LEFT_OVER = re.compile(r"\.(deleted|cleaned|swap|part|tmp)$")
DUMPERS: dict[str, Callable[[Path], small_files.Items]] = {
    ".index": small_files.index_rows,
    ".timeindex": small_files.time_index_rows,
    ".txnindex": small_files.transaction_index_rows,
    ".snapshot": small_files.snapshot_rows,
    "leader-epoch-checkpoint": small_files.leader_epoch_rows,
    "partition.metadata": small_files.partition_metadata_rows,
    "meta.properties": small_files.meta_properties_rows,
    "quorum-state": small_files.quorum_state_rows,
    ".last-batch": small_files.last_batch_rows,
    ".kafka_cleanshutdown": small_files.clean_shutdown_rows,
    **dict.fromkeys(OFFSET_CHECKPOINTS, small_files.offset_checkpoint_rows),
}
BATCHES = (".log", ".checkpoint")


def kind_of(path: Path) -> str | None:
    """The key of `DUMPERS`, one of `BATCHES`, or None for a file that no broker writes."""
    name = LEFT_OVER.sub("", path.name)
    if name in DUMPERS or name == "bootstrap.checkpoint":
        return name if name in DUMPERS else ".checkpoint"
    suffix = "." + name.rpartition(".")[2]
    numbered = re.fullmatch(r"\d{20}(-\d{10})?", name.removesuffix(suffix)) is not None
    return suffix if numbered and (suffix in DUMPERS or suffix in BATCHES) else None


def file_rows(path: Path, with_records: bool) -> Iterator[Row | Damage]:
    """The rows of one file."""
    kind = kind_of(path)
    if kind is None:
        yield Damage(str(path), -1, "not a file that a broker writes")
    elif kind in BATCHES:
        yield from batch_file_rows(path, with_records)
    else:
        yield from DUMPERS[kind](path)


def batch_file_rows(path: Path, with_records: bool) -> Iterator[Row | Damage]:
    payload = payload_of(path)
    for item in read_batches(path):
        if isinstance(item, Damage):
            yield item
        else:
            yield from one_batch_rows(path, item, payload, with_records)


def one_batch_rows(
    path: Path, found: FileBatch, payload: Payload, with_records: bool
) -> Iterator[Row | Damage]:
    yield batch_row(found)
    damage = checksum_damage(path, found)
    if damage is not None:
        yield damage
    elif with_records:
        yield from record_rows(path, found, payload)


def files_below(path: Path) -> Iterator[Path]:
    """`path` itself, or the files of the directory tree, sorted; the empty `.lock` is left out."""
    if not path.is_dir():
        yield path
        return
    for entry in sorted(path.iterdir()):
        if entry.is_dir() and not entry.is_symlink():
            yield from files_below(entry)
        elif entry.is_file() and entry.name != ".lock":
            yield entry
