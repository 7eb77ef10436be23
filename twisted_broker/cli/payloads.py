"""The payloads of internal topics' records and control batches, as text.

1. A record that cannot be decoded is shown as its bytes with the reason; it is damage only where
   the format is ours to know: control records and the metadata log.
2. A record type of a later version is no damage: its bytes are shown.

Source: Kafka's ControlRecordType, ApiMessageType of the metadata records, GroupMetadataManager.
Not here: batches (`batches`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from twisted_broker.cli.batches import FileBatch
from twisted_broker.cli.rows import Damage, Row, time_text
from twisted_broker.config import is_secret
from twisted_broker.image.metadata_image import BROKER_RESOURCE
from twisted_broker.topic_names import (
    METADATA_DIRECTORY,
    OFFSETS_TOPIC,
    SHARE_STATE_TOPIC,
    TRANSACTIONS_TOPIC,
)
from twisted_broker.wire import control_batch
from twisted_broker.wire import schema as messages
from twisted_broker.wire.errors import BrokerError, WireError
from twisted_broker.wire.messages import (
    control_records,
    group_records,
    metadata_records,
    share_state_records,
    transaction_records,
)
from twisted_broker.wire.primitives import read_uvarint, uuid_text
from twisted_broker.wire.records import BatchView, Record

BAD_BYTES = (WireError, BrokerError, ValueError, IndexError, struct.error)
Payload = Callable[[Record], Row]


def by_type(module: ModuleType, suffix: str = "") -> dict[int, type[messages.Record]]:
    """The record classes of a module of messages whose names end with `suffix`, by their
    `record_type`.
    """
    classes = [
        value
        for name, value in vars(module).items()
        if name.endswith(suffix) and isinstance(value, type) and value is not messages.Record
    ]
    return {cls.record_type: cls for cls in classes if issubclass(cls, messages.Record)}


METADATA = by_type(metadata_records)
HIDDEN = "[hidden]"


def _of_keys(module: ModuleType) -> dict[int, tuple[type[messages.Record], type[messages.Record]]]:
    values = by_type(module, "Value")
    return {number: (key, values[number]) for number, key in by_type(module, "Key").items()}


OFFSETS, TRANSACTIONS = _of_keys(group_records), _of_keys(transaction_records)
SHARE_STATES = _of_keys(share_state_records)
CONTROL: dict[int, type[messages.Record]] = {
    control_batch.LEADER_CHANGE: control_records.LeaderChangeMessage,
    control_batch.SNAPSHOT_HEADER: control_records.SnapshotHeaderRecord,
    control_batch.SNAPSHOT_FOOTER: control_records.SnapshotFooterRecord,
    control_batch.KRAFT_VERSION: control_records.KRaftVersionRecord,
    control_batch.KRAFT_VOTERS: control_records.VotersRecord,
}


def plain(record: Record) -> Row:
    """Keys and values as they are."""
    return {"key": record.key, "value": record.value}


def fields_of(message: messages.Struct) -> Row:
    """A decoded message as plain data; ids as text."""
    return {
        field.name: field_value(getattr(message, field.name), field) for field in message.FIELDS
    }


def field_value(value: Any, field: messages.Field) -> Any:
    if isinstance(value, list):
        return [field_value(item, field) for item in value]
    if isinstance(value, messages.Struct):
        return fields_of(value)
    if value is not None and "uuid" in (field.kind, field.element):
        return uuid_text(value)
    return value


def control(record: Record) -> Row:
    """Markers of transactions and the quorum's own control records."""
    kind = control_batch.control_record_type(record.key)
    if kind in (control_batch.ABORT, control_batch.COMMIT):
        name = "abort" if kind == control_batch.ABORT else "commit"
        return {
            "marker": name,
            "coordinator_epoch": control_batch.end_marker_coordinator_epoch(record.value),
        }
    cls = CONTROL.get(kind)
    if cls is None:
        return {"control_type": kind, **plain(record)}
    value = record.value or b""
    version = struct.unpack_from(">h", value)[0]
    return {"control": cls.__name__, **fields_of(messages.decode(cls, value, version))}


def metadata(record: Record) -> Row:
    """A record of `__cluster_metadata`: frame version, type, version, body; secrets hidden."""
    value = record.value or b""
    _, at = read_uvarint(value, 0)
    kind, at = read_uvarint(value, at)
    version, at = read_uvarint(value, at)
    cls = METADATA.get(kind)
    if cls is None:
        return {"record_type": kind, "version": version, "value": value[at:]}
    fields = fields_of(messages.decode(cls, value, version, at))
    if cls is metadata_records.UserScramCredentialRecord:
        fields |= dict.fromkeys(("salt", "stored_key", "server_key"), HIDDEN)
    elif (
        cls is metadata_records.ConfigRecord
        and fields["resource_type"] == BROKER_RESOURCE
        and fields["value"]
        and is_secret(fields["name"])
    ):
        fields["value"] = HIDDEN
    return {"record": cls.__name__, "version": version, **fields}


def keyed(classes: dict[int, tuple[type[messages.Record], type[messages.Record]]]) -> Payload:
    """For the topics of coordinators: the number in front of the key says
    what it is about.
    """

    def decode_record(record: Record) -> Row:
        if record.key is None:
            return plain(record)
        kind = struct.unpack_from(">h", record.key)[0]
        if kind not in classes:
            return {"record_type": kind, **plain(record)}
        key_class, value_class = classes[kind]
        row: Row = {
            "record": value_class.__name__.removesuffix("Value"),
            **fields_of(messages.decode(key_class, record.key, 0, 2)),
        }
        if record.value is None:
            return {**row, "deleted": True}
        version = struct.unpack_from(">h", record.value)[0]
        return {
            **row,
            "version": version,
            **fields_of(messages.decode(value_class, record.value, version, 2)),
        }

    return decode_record


offsets, transactions, share_states = keyed(OFFSETS), keyed(TRANSACTIONS), keyed(SHARE_STATES)


def payload_of(path: Path) -> Payload:
    """How to read the records of the file at `path`."""
    directory = path.resolve().parent.name
    if path.suffix == ".checkpoint" or directory == METADATA_DIRECTORY:
        return metadata
    return {
        OFFSETS_TOPIC: offsets,
        TRANSACTIONS_TOPIC: transactions,
        SHARE_STATE_TOPIC: share_states,
    }.get(directory.rpartition("-")[0], plain)


def record_rows(path: Path, found: FileBatch, payload: Payload) -> Iterator[Row | Damage]:
    """The records of one batch or message."""
    view = found.view
    decode_one = control if isinstance(view, BatchView) and view.is_control else payload
    try:
        for record in found.records():
            yield record_row(record, decode_one)
    except BAD_BYTES as error:
        yield Damage(str(path), found.position, f"a record of this batch cannot be read: {error}")


def record_row(record: Record, decode_one: Payload) -> Row:
    row: Row = {
        "kind": "record",
        "offset": record.offset,
        "timestamp": record.timestamp,
        "time": time_text(record.timestamp),
    }
    try:
        row.update(decode_one(record))
    except BAD_BYTES as error:
        if decode_one in (control, metadata):
            raise
        row.update({**plain(record), "not_decoded": str(error)})
    if record.headers:
        row["headers"] = [[key, value] for key, value in record.headers]
    return row
