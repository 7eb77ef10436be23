"""A follower's long answer is appended in portions, each in a turn of its own, as if the leader had
sent them one after the other.
"""

from __future__ import annotations

import os

import pytest
from twisted.internet.defer import Deferred, ensureDeferred

from tests.replication.fixtures import TP, WALL_MS, batch
from tests.replication.pair import Node, nodes
from twisted_broker.log import log as log_module
from twisted_broker.log import write_ahead
from twisted_broker.log.append_info import AppendOrigin
from twisted_broker.log.memory import MemoryFile
from twisted_broker.replication.fetcher import fetcher as fetcher_module

PIECE = 1000


@pytest.fixture(autouse=True)
def _short_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (log_module, fetcher_module):
        monkeypatch.setattr(module, "LONG_BYTES", 3 * PIECE)
    monkeypatch.setattr(write_ahead, "PIECE_BYTES", PIECE)


def pair(sizes: list[int]) -> tuple[Node, Node]:
    """A follower, and its leader with batches of these sizes."""
    a, b = nodes()
    b.lead(1, isr=(1, 2))
    for size in sizes:
        records = batch(1, value=os.urandom(size))
        b.held.append_as_leader(records, 1, WALL_MS, b.now_ms(), AppendOrigin.CLIENT)
    a.follow(b, 1)
    return a, b


def begin(node: Node) -> Deferred[bool]:
    return ensureDeferred(node.fetcher.do_work())


def turn(node: Node) -> None:
    """`Clock.advance` runs what is called later for now as well, so one turn is taken by hand."""
    clock = node.clock
    for call in [each for each in clock.calls if each.getTime() <= clock.seconds()]:
        clock.calls.remove(call)
        call.called = 1
        call.func(*call.args, **call.kw)


def test_no_turn_writes_more_than_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short batches before and behind a long one: all in one round of the fetcher."""
    a, b = pair([200] * 9 + [5 * PIECE] + [200] * 9)
    written: list[int] = []
    write_at = MemoryFile.write_at

    def counted(file: MemoryFile, position: int, buffers: list[bytes]) -> None:
        written.append(sum(map(len, buffers)))
        write_at(file, position, buffers)

    monkeypatch.setattr(MemoryFile, "write_at", counted)
    done, turns = begin(a), 0
    while not done.called:
        written.clear()
        turn(a)
        turns += 1
        assert sum(written) <= PIECE + 100, turns
    assert turns > 9 and a.log.log_end_offset == 19 and a.state.fetch_offset == 19
    assert a.content() == b.content()
    a.round()
    assert b.log.high_watermark == 19


@pytest.mark.parametrize("turns", [1, 2, 3, 4, 6, 8, 9])
@pytest.mark.parametrize("what", ["truncated", "removed", "another epoch", "stopped"])
def test_what_changes_meanwhile_ends_it(turns: int, what: str) -> None:
    """The rest of the answer is of another history: nothing of it is in the log, nor behind it."""
    a, b = pair([600] * 3 + [5 * PIECE] + [600] * 3)
    log = a.log
    done = begin(a)
    for _ in range(turns):
        turn(a)
    end = log.log_end_offset
    assert not done.called
    if what == "truncated" and end:
        end -= 1
        a.held.truncate_to(end, WALL_MS)
    elif what == "removed":
        a.fetcher.remove([TP])
    elif what == "another epoch":
        a.follow(b, 2)
    else:
        a.fetcher.shutdown()
    for _ in range(20):
        turn(a)
    assert log.log_end_offset == end or (what == "truncated" and not end)
    assert log.segments.active.log.open().size() == log.segments.active.size
