"""Limits of the production code that a minute of simulated load does not reach, made small.

Owns `KNOBS` and `STEPS`, and `turned`, a context in which some have other values, in this process
only.

1. A knob is a limit above which the same is done in another way: any value is a right one.
2. A step is how much one turn of the reactor does of something long. With small ones what comes
   between two turns comes there in the simulation, too.

Source: FoundationDB's knobs. Not here: settings (`simulation/workload.py`), which seeds have them
(`simulation/options.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import NamedTuple

from twisted_broker import turns
from twisted_broker.api import context, fetch, groups, log_dirs, offsets, producers
from twisted_broker.cluster import (
    alter_partition_decision,
    cluster_view,
    controller,
    metadata_check,
    metadata_loader,
    metadata_log,
    metadata_store,
    records,
    snapshots,
)
from twisted_broker.coordinator import (
    consumer_group_runner,
    coordinator_loader,
    coordinator_runtime,
    coordinator_shard,
    group_offsets,
    group_runner,
    offset_cleanup,
    offset_metadata_manager,
)
from twisted_broker.coordinator.consumer import heartbeat
from twisted_broker.coordinator.transaction import (
    transaction_coordinator,
    transaction_state_manager,
)
from twisted_broker.image import metadata_delta, metadata_image
from twisted_broker.log import (
    clean_stop,
    index,
    log_upkeep,
    producer_batch_recovery,
    producer_rebuild,
    producer_snapshot_reader,
    producer_snapshot_writer,
    producer_state,
    txn_index,
)
from twisted_broker.log.cleaner import log_cleaner, selection
from twisted_broker.replication import fetch_session, replica_manager
from twisted_broker.replication.fetcher import fetcher


class Knob(NamedTuple):
    """`modules`: all that have the limit under `name`. All are loaded here, for one that is loaded
    while the limit is turned would keep that value. `values`: to draw from.
    """

    name: str
    modules: tuple[ModuleType, ...]
    values: tuple[int, ...] = (1, 3)


KNOBS: dict[str, Knob] = {
    knob.name: knob
    for knob in (
        Knob("AT_ONCE_BYTES", (producer_rebuild,), (0, 300)),
        Knob("READ_BYTES", (metadata_store,), (1, 2000)),
        Knob("RECORDS_PER_BATCH", (metadata_log,), (2, 5)),
    )
}
"""The name of a limit -> the limit."""


def _named(*knobs: Knob) -> dict[str, Knob]:
    """Several modules have a step of the same name."""
    found = {f"{knob.modules[0].__name__.rpartition('.')[2]}.{knob.name}": knob for knob in knobs}
    assert len(found) == len(knobs)
    return found


STEPS: dict[str, Knob] = _named(
    Knob("PIECES_PER_TURN", (turns,)),
    Knob("LOOK_ELEMENTS", (context, fetch)),
    Knob("SLICE_ELEMENTS", (context, fetch, groups, log_dirs, offsets)),
    Knob(
        "SLICE_PRODUCERS",
        (
            producer_snapshot_writer,
            producer_snapshot_reader,
            producer_state,
            producer_batch_recovery,
        ),
    ),
    Knob("SLICE_HEADERS", (producer_rebuild,)),
    Knob("RETENTION_PER_STEP", (log_upkeep,)),
    Knob("SEGMENTS_PER_STEP", (log_upkeep,)),
    Knob("PRODUCERS_PER_STEP", (log_upkeep,)),
    Knob("LOGS_PER_STEP", (log_cleaner,)),
    Knob("PRODUCERS_PER_STEP", (selection,)),
    Knob("PROPOSED_PER_TURN", (replica_manager,)),
    Knob("FAILED_PER_STEP", (replica_manager,)),
    Knob("FINISHED_PER_STEP", (fetch_session,)),
    Knob("PARTITIONS_PER_STEP", (metadata_delta,)),
    Knob(
        "RECORDS_PER_STEP",
        (metadata_image, controller, metadata_loader, metadata_store, records, snapshots),
    ),
    Knob("LOOKED_AT_PER_STEP", (cluster_view,)),
    Knob("PARTITIONS_PER_STEP", (cluster_view, alter_partition_decision, controller)),
    Knob("BATCHES_PER_STEP", (metadata_check,)),
    Knob("SLICE_BYTES", (coordinator_loader,), (1, 300)),
    Knob("RECORDS_PER_STEP", (coordinator_loader,)),
    Knob("VALUES_PER_STEP", (coordinator_loader,)),
    Knob("GROUPS_PER_STEP", (coordinator_loader,)),
    Knob("FORGOTTEN_PER_STEP", (coordinator_loader,)),
    Knob("SESSIONS_PER_STEP", (coordinator_runtime,)),
    Knob("UNLOADED_PER_STEP", (coordinator_shard,)),
    Knob("AT_ONCE", (coordinator_shard,)),
    Knob("RUN_PER_STEP", (coordinator_shard,)),
    Knob("OFFSETS_PER_STEP", (group_offsets, offset_metadata_manager)),
    Knob("GROUPS_PER_STEP", (offset_metadata_manager,)),
    Knob("RECORDS_PER_STEP", (offset_metadata_manager,)),
    Knob("CHECKED_PER_STEP", (offset_cleanup,)),
    Knob("WRITES_AT_ONCE", (offset_cleanup,)),
    Knob("CHECKED_PER_STEP", (transaction_state_manager,)),
    Knob("RESUMED_PER_STEP", (transaction_state_manager,)),
    Knob("ABORTED_PER_STEP", (transaction_coordinator,)),
    Knob("FINISHED_PER_STEP", (clean_stop,)),
    Knob("PRODUCERS_PER_STEP", (producers,)),
    # Last: what is drawn before it stays.
    Knob("ANSWERS_PER_TURN", (fetcher,)),
    # A larger index is read where it lies.
    Knob("LOADED_BYTES", (index,), (0, 40)),
    Knob("MOST_KEPT", (txn_index,), (0, 2)),
    Knob("RECORDS_PER_STEP", (group_runner, consumer_group_runner)),
    Knob("TARGETS_PER_STEP", (heartbeat,)),
    Knob("TOLD_PER_STEP", (coordinator_shard,)),
)
"""Module and name of a step -> the step."""


@contextmanager
def turned(values: Mapping[str, int]) -> Iterator[None]:
    """Within it these knobs and steps have these values."""
    knobs = [((KNOBS.get(name) or STEPS[name]), value) for name, value in values.items()]
    before = [(knob, getattr(knob.modules[0], knob.name)) for knob, _ in knobs]
    try:
        _set(knobs)
        yield
    finally:
        _set(before)


def _set(values: list[tuple[Knob, int]]) -> None:
    for knob, value in values:
        for module in knob.modules:
            setattr(module, knob.name, value)
