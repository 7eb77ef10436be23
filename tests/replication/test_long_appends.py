"""What `replication/long_appends.py` promises."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred, ensureDeferred

from tests.log.batches import NOW_MS, batch, config, open_log
from twisted_broker.interfaces import TopicPartition
from twisted_broker.log import log as log_module
from twisted_broker.log.memory import MemoryFileSystem
from twisted_broker.replication.long_appends import LongAppends, write_ahead

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def test_appends_to_a_held_partition_wait_in_their_order() -> None:
    """All partitions of a request at once; one that is cancelled is passed over."""
    held = LongAppends()
    began: list[str] = []

    def begin(name: str, *partitions: TopicPartition) -> Deferred[None]:
        waiting = ensureDeferred(held.begin(partitions))
        waiting.addCallback(lambda _: began.append(name))
        return waiting

    begin("first", A)
    begin("both", A, B)
    gone = begin("gone", A)
    begin("last", A)
    begin("other", B)
    assert began == ["first", "other"]
    gone.addErrback(lambda failure: failure.trap(CancelledError))
    gone.cancel()
    held.end([A])
    assert began == ["first", "other", "last"], "one that still waits for another holds none"
    held.end([B])
    held.end([A])
    assert began[-1] == "both" and set(held.held) == {A, B}
    held.end([A, B])
    assert not held.held


class Silent:
    """A worker that never answers."""

    def submit(self, job: Any, done: Any) -> None:
        pass


def test_a_client_that_leaves_meanwhile_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """While its batch is checked, and while it is written: the next long append begins."""
    monkeypatch.setattr(log_module, "LONG_BYTES", 100)
    files = MemoryFileSystem()
    files.make_directories("/data")
    log = open_log(files, settings=config())
    records = batch(bytes(500))
    for worker in (Silent(), None):
        log.pool.reader = worker  # type: ignore[assignment]
        waiting = ensureDeferred(write_ahead(log, records, NOW_MS, Deferred, is_clients=True))
        assert log.begin_ahead(records) is None
        waiting.addErrback(lambda failure: failure.trap(CancelledError))
        waiting.cancel()
        ahead = log.begin_ahead(records)
        assert ahead is not None and log.segments.active.log.open().size() == 0
        log.end_ahead(ahead)
