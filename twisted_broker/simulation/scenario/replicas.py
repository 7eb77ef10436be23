"""The facts of one replica: what may follow `2:` in a scenario.

Owns how each fact is read from the production objects of a broker. Values of records are shown
without the dots that pad them.

Source: RL 1, 2, 6. Not here: comparing (`facts`).
"""

from __future__ import annotations

from typing import Any

from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.partition.partition import Partition
from twisted_broker.simulation.scenario.language import Facts, joined
from twisted_broker.simulation.scenario.world import ScenarioWorld
from twisted_broker.wire.control_batch import COMMIT, control_record_type
from twisted_broker.wire.record_walk import Record
from twisted_broker.wire.records import CONTROL_FLAG, iterate_batches

_READ_BYTES = 1 << 20


def of_replica(word: str, world: ScenarioWorld, number: int, name: TopicPartition) -> str:
    """The fact that begins with `word`, as it is found on broker `number`.

    Raises `ScenarioError` for a word that is no fact.
    """
    broker = world.node(number).broker
    replicas = None if broker is None else broker.parts.replica_manager
    partition = None if replicas is None else replicas.partitions.get(name)
    if replicas is not None and word in _MANAGER.values:
        return _MANAGER.describe(word, (replicas, name))
    _REPLICA.check(word)
    if partition is None or partition.offline or partition.log is None:
        return "absent" if partition is None else "offline"
    return _REPLICA.describe(word, partition)


def _role(partition: Partition) -> str:
    if partition.is_leader:
        return "leads"
    return f"follows {partition.leader_id}" if partition.leader_id >= 0 else "follows nobody"


def _isr(partition: Partition) -> str:
    state = partition.isr_state
    pending = f" pending {joined(state.proposed)}" if state.in_flight else ""  # type: ignore[union-attr]
    return f"{joined(state.isr)}{pending}"


def values_of(records: Any, start: int = 0) -> list[str]:
    """The values of records from offset `start` on; padding is left out. With a key: `key=value`. A
    transaction's marker is COMMIT or ABORT.
    """
    found = []
    for batch in iterate_batches(records or b"", partial_tail=True):
        if batch.attributes & CONTROL_FLAG:
            found += [
                "COMMIT" if control_record_type(record.key) == COMMIT else "ABORT"
                for record in batch.records(_READ_BYTES)
                if record.offset >= start
            ]
            continue
        found += [
            text_of(record) for record in batch.records(_READ_BYTES) if record.offset >= start
        ]
    return found


def text_of(record: Record) -> str:
    """Of a tombstone `key=`."""
    value = bytes(record.value or b"").rstrip(b".").decode()
    return value if record.key is None else f"{bytes(record.key).decode()}={value}"


def content_of(text: str) -> tuple[bytes | None, bytes | None]:
    """Key and value of what a scenario writes; `a:500` is a value of 500 bytes."""
    text, _, size = text.partition(":")
    key, sign, value = text.partition("=")
    if not sign:
        key, value = "", text
    content = value.encode().ljust(int(size or 0), b".")
    return (key.encode(), content or None) if sign else (None, content)


def _records(partition: Partition) -> str:
    log = partition.log
    assert log is not None
    found: list[str] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, _READ_BYTES)
        if data.slice is None:
            break  # a cleaner left nothing behind it
        content = data.slice.read()
        data.slice.release()
        found += values_of(content, offset)
        offset = max(batch.last_offset for batch in iterate_batches(content)) + 1
    return " ".join(found) or "none"


def _epochs(partition: Partition) -> str:
    assert partition.log is not None
    return " ".join(f"{epoch}@{start}" for epoch, start in partition.log.leader_epochs.entries())


def _fetcher(asked: Any) -> str:
    replicas, name = asked
    if replicas.fetchers is None or name in replicas.fetchers.failed:
        return "failed"
    states = [fetcher.state.partitions.get(name) for fetcher in replicas.fetchers.fetchers.values()]
    state = next((state for state in states if state is not None), None)
    return "none" if state is None else state.phase.value


def _delayed(asked: Any) -> str:
    replicas, _ = asked
    purgatories = (
        replicas.produce_purgatory,
        replicas.fetch_purgatory,
        replicas.delete_records_purgatory,
    )
    return " ".join(str(purgatory.waiting) for purgatory in purgatories)


_REPLICA = Facts(
    values={
        "isr": _isr,
        "epoch": lambda partition: partition.leader_epoch,
        "end": lambda partition: partition.log.log_end_offset,
        "hw": lambda partition: partition.log.high_watermark,
        "stable": lambda partition: partition.log.last_stable_offset,
        "start": lambda partition: partition.log.log_start_offset,
        "segments": lambda partition: len(list(partition.log.segments)),
        "flushed": lambda partition: partition.log.durability.recovery_point,
        "records": _records,
        "epochs": _epochs,
    },
    states=dict.fromkeys(("leads", "follows", "offline", "absent"), _role),
)
_MANAGER = Facts(values={"fetcher": _fetcher, "delayed": _delayed}, states={})
