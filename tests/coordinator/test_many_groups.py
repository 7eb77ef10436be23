"""Very many groups: nothing walks over all of them in one step, and an idle one is small."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.coordinator.broker_run import WALL_MS, BrokerRun, subscription
from tests.coordinator.memory_store import MemoryStore
from tests.coordinator.test_group_coordinator import now
from twisted_broker.coordinator import bucket_dict
from twisted_broker.coordinator.bucket_dict import BucketDict
from twisted_broker.coordinator.empty_dict import EMPTY_DICT
from twisted_broker.coordinator.group_records import (
    CommittedOffset,
    GroupMetadata,
    MemberSnapshot,
    batch_of,
    group_record,
    offset_record,
)
from twisted_broker.coordinator.offset_metadata_manager import OffsetToCommit
from twisted_broker.status.group_metrics import groups as group_metrics
from twisted_broker.status.local_state import Groups
from twisted_broker.status.metric_rates import Rates
from twisted_broker.status.metric_text import Exposition
from twisted_broker.wire.errors import ErrorCode as E

EACH, COUNT = 10, 300
INDEX = 0


class Watched(BucketDict[str, Any]):
    """Notes the largest part of its keys that anybody took at once."""

    largest = 0

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("somebody walks over all keys in one step")

    def parts(self) -> Iterator[list[str]]:
        for part in super().parts():
            Watched.largest = max(Watched.largest, len(part))
            yield part


def stored() -> MemoryStore:
    """Of three groups one has a member, one a record and an offset, one an offset alone."""
    store = MemoryStore(partitions=1)
    member = MemberSnapshot("m", None, "c", "/h", 60_000, 10_000, subscription("t"), b"")
    for start in range(0, COUNT, 100):
        records = []
        for number in range(start, start + 100):
            name, kind = f"g{number}", number % 3
            if kind == 0:
                metadata = GroupMetadata(name, "consumer", 1, "range", "m", WALL_MS, (member,))
            elif kind == 1:
                metadata = GroupMetadata(name, "consumer", 1, None, None, WALL_MS)
            if kind < 2:
                records.append(group_record(name, metadata))
            if kind > 0:
                records.append(
                    offset_record(name, "t", number, CommittedOffset(number, 1, "", WALL_MS))
                )
        store.put(INDEX, batch_of(records, WALL_MS))
    return store


def test_nobody_walks_over_all_groups_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load, start of sessions, ListGroups, metrics, the page of groups, removal of a topic, expiry,
    unload: each sees all groups, in small parts.
    """
    monkeypatch.setattr(bucket_dict, "EACH", EACH)
    for module in ("coordinator_loader", "coordinator_shard"):
        monkeypatch.setattr(f"twisted_broker.coordinator.{module}.BucketDict", Watched)
    Watched.largest = 0
    run = BrokerRun(stored(), offsets_retention_ms=60_000, retention_check_interval_ms=30_000)
    coordinator = run.coordinator
    listed = [each.group_id for each in run.listed()]
    assert sorted(listed) == sorted(f"g{n}" for n in range(COUNT))
    out, replicas = Exposition(), SimpleNamespace(partitions={})
    for _ in group_metrics(out, coordinator, replicas, Rates()):
        pass
    page = Groups("G1", 0, 20)
    for _ in page.gather(coordinator, replicas):
        pass
    named = sorted(name for name in listed if "g1" in name)
    assert page.total == COUNT and page.matching == len(named)
    assert [row.name for row in page.rows] == named[:20]
    run.pass_ms(11_000)
    assert {each.state for each in run.listed()} == {"Empty"}
    coordinator.cleanup.topics_deleted({"other": bytes(16)})
    run.pass_ms(100_000)
    assert run.listed() == []
    coordinator.runtime.unload(INDEX)
    run.settle()
    assert 0 < Watched.largest <= 6 * EACH


def test_an_idle_group_holds_no_dict_of_its_own_but_its_offsets() -> None:
    """As loaded, as made by a commit, and when its members have left: a million are nearly all
    idle, and an empty dict is 64 bytes.
    """
    run = BrokerRun(stored())
    coordinator = run.coordinator
    shard = coordinator.runtime.shards[INDEX]
    now(run.commit(OffsetToCommit("t", 0, 5), group="committed"))
    member_id = run.stable("left")
    assert now(coordinator.leave("left", [(member_id, None)]))[0].error is E.NONE
    run.settle()
    for name in ("g1", "g2", "committed", "left"):
        entry = shard.groups[name]
        held = [each for each in gc.get_referents(entry.group) if isinstance(each, dict)]
        assert len(held) == 5 and all(each is EMPTY_DICT for each in held), name
        held = [each for each in gc.get_referents(entry.offsets) if isinstance(each, dict)]
        assert [each for each in held if each is not EMPTY_DICT] == [entry.offsets.committed]
    run.stable("left")
    assert len(shard.groups["left"].group.members) == 1
    assert not EMPTY_DICT


def test_groups_share_the_names_of_what_they_committed() -> None:
    """A million groups of one service read the same few partitions."""
    store = MemoryStore(partitions=1)
    for name in ("a", "b"):
        store.put(INDEX, batch_of([offset_record(name, "t", 3, CommittedOffset(1))], WALL_MS))
    shard = BrokerRun(store).coordinator.runtime.shards[INDEX]
    (first,), (second,) = (shard.groups[name].offsets.committed for name in ("a", "b"))
    assert first is second


def test_the_dict_of_all_who_hold_nothing_takes_no_entry() -> None:
    """A forgotten own dict fails at once, instead of showing up in every group."""
    with pytest.raises(AssertionError):
        EMPTY_DICT["key"] = 1
    with pytest.raises(AssertionError):
        EMPTY_DICT.setdefault("key", 1)
    with pytest.raises(AssertionError):
        EMPTY_DICT.update(key=1)
    assert EMPTY_DICT.pop("key", None) is None
