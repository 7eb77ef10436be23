"""What holds the last stable offset, as `replog explain` and the page say it."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from tests.log.batches import NOW_MS, batch
from tests.log.manual_worker import ManualWorker
from tests.log.test_idempotence import closed_and_opened, new_log
from tests.replication.fixtures import (
    WALL_MS,
    Fixture,
    PartitionFixture,
    at,
    consumer,
    registration,
)
from twisted_broker.cli.explain_text import _replica_lines
from twisted_broker.log import producer_rebuild
from twisted_broker.log.append_info import EndMarker
from twisted_broker.log.log import Log
from twisted_broker.log.verification import NOT_REQUIRED
from twisted_broker.replication.explain.explanation import explain
from twisted_broker.replication.explain.reasons import Moment
from twisted_broker.replication.explain.stable_offset import (
    LATE_MS,
    LastStableWait,
    last_stable_wait,
)
from twisted_broker.replication.partition.fetch_data import TXN_COMMITTED

LONGEST = 2**62


def write(log: Log, producer: int, sequence: int = 0, at_ms: int = NOW_MS) -> None:
    data = batch(
        b"v",
        timestamp=at_ms,
        producer_id=producer,
        producer_epoch=3,
        base_sequence=sequence,
        is_transactional=True,
    )
    log.append_as_leader(data, 0, NOW_MS, guard=NOT_REQUIRED)


def end(log: Log, producer: int) -> None:
    log.append_end_marker(EndMarker(producer, 3, 1, True), 0, NOW_MS)


def waits(log: Log, later_ms: int = 0) -> LastStableWait:
    """As if all were committed, `later_ms` after the first record."""
    log.set_high_watermark(log.log_end_offset)
    found = last_stable_wait(log, Moment(1, NOW_MS + later_ms))
    assert found is not None
    return found


def test_the_oldest_producer_is_named_and_since_when() -> None:
    """Behind it others are a number."""
    log = new_log()
    for producer in (7, 8, 9):
        write(log, producer)
    write(log, 7, 1, NOW_MS + 60_000)
    found = waits(log, 90_000)
    assert (found.rule, found.producer_id, found.producer_epoch) == ("open", 7, 3)
    assert (found.first_offset, found.since_ms, found.for_ms) == (0, NOW_MS, 90_000)
    assert (found.last_write_ms, found.late, found.open) == (NOW_MS + 60_000, False, 3)
    assert found.why == (
        "producer 7 (epoch 3) has a transaction open from offset 0 since "
        "2023-11-14 22:13:20 UTC (90.0 s); its newest record is of 2023-11-14 22:14:20 UTC; "
        "2 more are open behind it"
    )
    end(log, 7)
    assert waits(log).producer_id == 8 and waits(log).why.endswith("1 more is open behind it")


def test_one_that_no_coordinator_would_leave_open_may_be_hanging() -> None:
    """By its newest record; the tools that find and end it are named."""
    log = new_log()
    write(log, 7)
    assert not waits(log, LATE_MS).late
    found = waits(log, LATE_MS + 1)
    assert found.late and "`kafka-transactions.sh find-hanging`" in found.why


def test_nothing_waits_where_all_is_stable() -> None:
    """Also beside a transaction above the high watermark: nobody sees it anyway."""
    log = new_log()
    assert last_stable_wait(log, Moment(1, NOW_MS)) is None
    write(log, 7)
    assert last_stable_wait(log, Moment(1, NOW_MS)) is None


def test_a_marker_that_is_not_committed_is_the_reason() -> None:
    """The transaction is decided, its marker not on enough replicas."""
    log = new_log()
    write(log, 7)
    end(log, 7)
    log.set_high_watermark(1)
    found = last_stable_wait(log, Moment(1, NOW_MS))
    assert found is not None and (found.rule, found.first_offset, found.marker_offset) == (
        "marker",
        0,
        1,
    )
    assert "the marker at offset 1" in found.why


def test_a_rebuild_of_the_producers_is_the_reason() -> None:
    """Until it is done nothing behind it is known to be decided."""
    log = new_log()
    write(log, 7)
    end(log, 7)
    log.set_high_watermark(2)
    log.producers.begin_rebuild().map_end_offset = 0
    log.producers.rebuilt.reset(1)
    log.watermarks.update_first_unstable()
    found = last_stable_wait(log, Moment(1, NOW_MS))
    assert found is not None and found.rule == "rebuild" and "reached offset 1" in found.why


def test_after_a_restart_the_start_of_an_open_one_is_not_known() -> None:
    """No snapshot has its time; and times that no calendar has are numbers."""
    log = new_log(message_timestamp_after_max_ms=2**63 - 1)
    write(log, 7, at_ms=LONGEST)
    assert f"since {LONGEST} ms" in waits(log).why
    log = closed_and_opened(log)
    found = waits(log)
    assert (found.since_ms, found.for_ms) == (0, 0) and "since before it started" in found.why


def test_it_is_in_the_explanation_and_in_its_text() -> None:
    """The field is JSON; brokers that do not have it yet are read, too."""
    fixture = PartitionFixture(replicas=(1,))
    write(fixture.log, 7)
    waits(fixture.log)
    told = explain(fixture.partition, Moment(fixture.now_ms, NOW_MS))
    state = asdict(told)
    assert state["last_stable_waits"]["producer_id"] == 7
    text = "\n".join(_replica_lines("h:1", state))
    assert "  the last stable offset waits: producer 7 (epoch 3) has a transaction" in text
    del state["last_stable_waits"]
    assert "waits: producer" not in "\n".join(_replica_lines("h:1", state))


def test_readers_are_woken_when_the_producers_are_found_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Behind a truncation nothing is known to be stable; the last slice of the rebuild says what
    is, and no append may come that would.
    """
    monkeypatch.setattr(producer_rebuild, "AT_ONCE_BYTES", -1)
    fixture = Fixture()
    fixture.topic(states={0: registration(leader=2, replicas=(1, 2), isr=(2,))})
    partition = fixture.partition()
    log, worker = partition.log, ManualWorker()
    log.attach(worker, None, on_producers_found=fixture.log_manager.producers_found)
    for sequence in range(3):
        write(log, 7, sequence)
    end(log, 7)
    write(log, 7, 3)
    partition.truncate_to(4, WALL_MS)
    fixture.topic(states={0: registration(replicas=(1,), leader_epoch=1, partition_epoch=1)})
    assert log.high_watermark == 4 and log.last_stable_offset == 0 and worker.jobs
    reader = consumer(isolation=TXN_COMMITTED)
    fetched: list = []
    replicas = fixture.replicas
    replicas.delayed_fetch(reader, replicas.fetch(reader, [at(0)])).addCallback(fetched.extend)
    while worker.jobs:
        assert not fetched
        worker.run_one()
    fixture.clock.advance(0)
    (result,) = fetched
    assert result.last_stable_offset == 4 and result.size
    result.release()
