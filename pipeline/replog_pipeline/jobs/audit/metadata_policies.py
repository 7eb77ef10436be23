"""Cleanup policies out of the metadata log, for log directories that have one (a broker that is a
controller, or has been an observer, on this disk).

1. The newest snapshot, then the log: a topic that is created again has no settings yet, a setting
   without a value is removed.
2. Unknown records are skipped, and so is everything behind damage: then less is known, and the
   audit names what it assumed.

Source: KRAFT.md, FILE_FORMATS 3 "record frame"; Kafka's ConfigRecord. Not here: the cluster's
default (`log.cleanup.policy` of its brokers).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from replog_pipeline.segments.chunks import chunks
from twisted_broker.wire.errors import WireError
from twisted_broker.wire.messages.metadata_records import ConfigRecord, TopicRecord
from twisted_broker.wire.records import CorruptRecordError, iterate_batches
from twisted_broker.wire.schema import decode

FOLDER: Final = "__cluster_metadata-0"
CLEANUP_POLICY: Final = "cleanup.policy"
_TOPIC_RESOURCE: Final = 2
_TOPIC_FRAME, _CONFIG_FRAME = (
    bytes((1, record.record_type, 0)) for record in (TopicRecord, ConfigRecord)
)
"""Frame version 1, the record's type, record version 0."""


def cleanup_policies(directory: str) -> dict[str, str]:
    """topic -> its `cleanup.policy`, of topics that have one of their own.

    Empty where there is no metadata log.
    """
    place = Path(directory) / FOLDER
    snapshots = sorted(place.glob("*-*.checkpoint"))
    found: dict[str, str] = {}
    for path in [*snapshots[-1:], *sorted(place.glob("*.log"))]:
        try:
            for value in values(path):
                note(value, found)
        except (CorruptRecordError, WireError, OSError):
            continue
    return found


def note(value: bytes, found: dict[str, str]) -> None:
    """What one metadata record says of a topic's policy."""
    if value.startswith(_TOPIC_FRAME):
        found.pop(decode(TopicRecord, value, 0, len(_TOPIC_FRAME)).name, None)
    elif value.startswith(_CONFIG_FRAME):
        config = decode(ConfigRecord, value, 0, len(_CONFIG_FRAME))
        if config.resource_type != _TOPIC_RESOURCE or config.name != CLEANUP_POLICY:
            return
        if config.value is None:
            found.pop(config.resource_name, None)
        else:
            found[config.resource_name] = config.value


def values(path: Path) -> Iterator[bytes]:
    """The values of the records in a segment or a snapshot, without control records."""
    for chunk in chunks(path):
        for batch in iterate_batches(chunk.data):
            if not batch.is_control:
                yield from (
                    bytes(record.value) for record in batch.records() if record.value is not None
                )
