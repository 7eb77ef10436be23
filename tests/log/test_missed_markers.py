"""Transactions whose end a follower came too late for (RL 6.7; seed 982703)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.log.batches import NOW_MS, batch, marker
from tests.log.manual_worker import ManualWorker
from tests.log.test_idempotence import closed_and_opened, new_log
from twisted_broker.log import producer_rebuild
from twisted_broker.log.cleaner.batch_filter import _emptied
from twisted_broker.log.log import Log
from twisted_broker.log.missed_markers import MarkersMissed, ProducersUnknown
from twisted_broker.wire.records import BatchView, set_offsets_and_epoch

RETENTION_MS = 40_000
IN_TIME_MS = RETENTION_MS // 4
P, Q = 7, 8


def at(offset: int, data: bytes) -> bytes:
    copied = bytearray(data)
    set_offsets_and_epoch(copied, offset, 0)
    return bytes(copied)


def opened(offset: int, producer: int = P) -> bytes:
    """A record of a transaction."""
    fields: dict[str, Any] = {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0}
    return at(offset, batch(b"v", key=b"k", is_transactional=True, **fields))


def plain(offset: int) -> bytes:
    return at(offset, batch(b"v", key=b"k"))


def emptied(offset: int, producer: int = P) -> bytes:
    """A marker that a cleaner has taken the record of."""
    return at(offset, bytes(_emptied(BatchView(at(offset, marker(producer, False))))))


def follower(*sent: bytes, delete_retention_ms: int = RETENTION_MS) -> Log:
    log = new_log(cleanup_policy=frozenset({"compact"}), delete_retention_ms=delete_retention_ms)
    if sent:
        log.append_as_follower(b"".join(sent), 0, NOW_MS, True)
    return log


def take(log: Log, *sent: bytes, wall_ms: int = NOW_MS) -> int:
    """What a follower that nobody may elect appends; the log's end then."""
    log.append_as_follower(b"".join(sent), 0, wall_ms, True)
    return log.log_end_offset


def missed(log: Log, *sent: bytes, wall_ms: int = NOW_MS) -> MarkersMissed:
    end = log.log_end_offset
    with pytest.raises(MarkersMissed) as refusal:
        take(log, *sent, wall_ms=wall_ms)
    assert log.log_end_offset == end
    return refusal.value


@pytest.mark.parametrize("hidden_by", [plain(3), emptied(2)])
def test_a_hidden_end_of_what_is_open_from_before(hidden_by: bytes) -> None:
    """RL 6.7: offset 2 is missing, or is a marker without its record: nothing is written."""
    refusal = missed(follower(plain(0), opened(1)), hidden_by)
    assert (refusal.offset, refusal.fully) == (1, False)
    assert "transaction at 1" in str(refusal)


def test_who_may_be_elected_takes_it_as_it_is() -> None:
    """RL 6.7: it may be the only one that has all that is committed."""
    log = follower(plain(0), opened(1))
    log.append_as_follower(plain(3), 0, NOW_MS, False)
    assert log.log_end_offset == 4 and log.producers.ongoing == {1: P}


@pytest.mark.parametrize(
    "sent",
    [
        (at(2, marker(P, True)), plain(4)),  # the end is there
        (at(2, batch(b"v", key=b"k")), emptied(3, Q)),  # of somebody who has nothing open
        (plain(2), plain(3)),
    ],
)
def test_nothing_is_missed(sent: tuple[bytes, ...]) -> None:
    log = follower(plain(0), opened(1))
    before = log.log_end_offset
    while log.log_end_offset < BatchView(sent[-1]).next_offset:
        # Before missing offsets an answer is cut: the rest comes with the next one.
        left = [each for each in sent if BatchView(each).base_offset >= log.log_end_offset]
        before, end = log.log_end_offset, take(log, *left)
        assert end > before
    assert not log.truncations


def test_an_answer_ends_before_what_is_missing() -> None:
    log = follower(opened(0))
    assert take(log, plain(1), plain(3)) == 2
    assert missed(log, plain(3)).offset == 0


def test_nothing_open_nothing_missed() -> None:
    log = follower(plain(0), plain(4))
    assert take(log, plain(9)) == 10 and log.fetched_transactions is None


def copied_lately() -> Log:
    """It ends at 4, with a transaction from 3 on that is not doubted now."""
    log = follower(opened(0, Q))
    take(log, plain(1))
    assert take(log, at(2, marker(Q, True)), opened(3)) == 4
    return log


def test_what_was_copied_lately_is_not_doubted() -> None:
    """RL 6.7: a quarter of `delete.retention.ms` is not over, by a clock that did not go back.

    The first answer with a transaction tells nothing of when that was copied: it is doubted once.
    """
    later = NOW_MS + IN_TIME_MS
    for wall_ms, is_missed in ((later, False), (later + 1, True), (NOW_MS - 1, True)):
        log = copied_lately()
        if is_missed:
            assert missed(log, plain(5), wall_ms=wall_ms).offset == 3
        else:
            assert take(log, plain(5), wall_ms=wall_ms) == 6


def test_a_log_that_is_copied_slowly() -> None:
    """RL 6.7: however often something comes, it counts when the transaction's first record came."""
    log = follower(opened(0, Q))
    take(log, plain(1))
    take(log, opened(2))
    for tenth in range(1, 10):
        take(log, plain(2 + tenth), wall_ms=NOW_MS + tenth * IN_TIME_MS // 10)
    in_time = NOW_MS + IN_TIME_MS
    take(log, plain(12), at(13, marker(Q, True)), wall_ms=in_time)
    assert take(log, plain(15), wall_ms=in_time) == 16
    assert missed(log, plain(17), wall_ms=NOW_MS + 2 * IN_TIME_MS).offset == 2


def copied_again(delete_retention_ms: int = 0) -> Log:
    """A log of two offsets that was truncated to 1, of which it had three, and its clock went on by
    a millisecond.
    """
    log = follower(plain(0), opened(1), plain(2), delete_retention_ms=delete_retention_ms)
    assert missed(log, plain(4), wall_ms=NOW_MS + 1).offset == 1
    log.truncate_to(1)
    assert take(log, opened(1), wall_ms=NOW_MS + 1) == 2
    return log


def test_what_is_copied_again_is_not_doubted_up_to_twice_as_far() -> None:
    """Without a time for markers at all, too: its leader has the transaction's record, and its end
    far behind holes. It comes to that in a few times.
    """
    log = copied_again()
    assert take(log, plain(4), wall_ms=NOW_MS + 2) == 5
    assert take(log, plain(6), wall_ms=NOW_MS + 3) == 7
    assert missed(log, plain(8), wall_ms=NOW_MS + 4).offset == 1
    log.truncate_to(1)
    answers = [opened(1), *(plain(offset) for offset in range(3, 300, 2)), marker_at(301)]
    wall_ms, truncations = NOW_MS + 4, 0
    while log.log_end_offset < 302:
        wall_ms += 1
        following = [each for each in answers if BatchView(each).base_offset >= log.log_end_offset]
        try:
            take(log, following[0], wall_ms=wall_ms)
        except MarkersMissed as again:
            truncations += 1
            log.truncate_to(again.offset)
    assert 1 < truncations < 8


def marker_at(offset: int) -> bytes:
    return at(offset, marker(P, True))


def test_who_was_away_while_it_copied_again_doubts_all_of_it() -> None:
    """Its leader's cleaner may have gone on meanwhile."""
    for seconds, is_missed in ((10, False), (11, True)):
        log = copied_again()
        later = NOW_MS + 1 + seconds * 1000
        if is_missed:
            assert missed(log, plain(4), wall_ms=later).offset == 1
        else:
            assert take(log, plain(4), wall_ms=later) == 5


def test_another_time_for_markers_makes_all_doubtful() -> None:
    log = copied_lately()
    log.update_config(replace(log.config, delete_retention_ms=RETENTION_MS * 2))
    assert missed(log, plain(5)).offset == 3


def test_a_restart_forgets_when_it_was_copied() -> None:
    """RL 6.7."""
    log = closed_and_opened(follower(plain(0), opened(1)))
    assert missed(log, plain(3)).offset == 1


def test_a_transaction_that_begins_below_the_log_start() -> None:
    """Nothing below the start can be fetched again: all of the log goes."""
    log = follower(opened(0), plain(1), plain(2))
    log.set_high_watermark(3)
    log.increment_log_start_offset(2)
    refusal = missed(log, plain(4))
    assert (refusal.offset, refusal.fully) == (2, True)


def test_while_the_producers_are_found_again_missing_offsets_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which transactions are open is not known: nothing behind a hole is taken until then."""
    monkeypatch.setattr(producer_rebuild, "AT_ONCE_BYTES", 0)
    worker, log = ManualWorker(), follower(opened(0), plain(1), opened(2, Q))
    log.attach(worker, None)
    log.truncate_to(2)
    assert log.producers.is_rebuilding
    for hidden_by in (plain(3), emptied(2)):
        with pytest.raises(ProducersUnknown):
            take(log, hidden_by)
    assert take(log, plain(2), plain(4)) == 3
    worker.run_all()
    assert missed(log, plain(4)).offset == 0
