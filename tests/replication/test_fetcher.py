"""Rounds of a replica fetcher on a leader in memory and a clock of the test (RL 6.2-6.5)."""

from __future__ import annotations

import errno

import pytest
from twisted.internet.error import ConnectionLost
from twisted.logger import LogLevel, capturedLogs, formatEvent

from tests.replication.fixtures import TOPIC_ID, TP, WALL_MS, batch, registration
from tests.replication.pair import BACKOFF_MS, Node, copied, nodes
from twisted_broker.log.append_info import AppendOrigin
from twisted_broker.log.errors import LogDirFailure
from twisted_broker.replication.explain.explanation import fetching_now
from twisted_broker.replication.explain.reasons import Moment
from twisted_broker.replication.fetcher.fetcher_state import FetchedPartition, InitialFetchState
from twisted_broker.replication.fetcher.leader_endpoint import EARLIEST, LATEST
from twisted_broker.replication.fetcher.replica_fetcher import FollowedReplicas
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.records import set_offsets_and_epoch


def following(*, records: int = 3) -> tuple[Node, Node]:
    """A follower that has not fetched yet, and its leader with so many records."""
    a, b = nodes()
    b.lead(1, isr=(1, 2))
    b.append(records)
    a.follow(b, 1)
    return a, b


def asks(node: Node) -> list:
    return [asked[TP] for what, asked in node.leader.asked if what == "fetch" and TP in asked]


def replicated_batch(offset: int, count: int, epoch: int = 1) -> bytes:
    """A batch as the leader's log holds it."""
    data = bytearray(batch(count))
    set_offsets_and_epoch(data, offset, epoch)
    return bytes(data)


class Bent:
    """A leader whose answers a test bends before they arrive."""

    def __init__(self, leader, bend) -> None:
        self._leader, self._bend = leader, bend
        self.endpoint, self.truncates_on_fetch = leader.endpoint, leader.truncates_on_fetch

    def has_request(self, requested) -> bool:
        return self._leader.has_request(requested)

    async def fetch(self, requested):
        return self._bend(await self._leader.fetch(requested))

    async def fetch_offset(self, *asked):
        return await self._leader.fetch_offset(*asked)

    def close(self) -> None:
        pass


def test_what_a_round_asks_and_does() -> None:
    """RL 6.2, 6.4: own offset, epochs and log start are sent; records go in; the high watermark
    is min(own end, leader's); lag is what is left.
    """
    a, b = following()
    a.round()
    assert asks(a)[0] == (TOPIC_ID, 0, 1, -1, 0, 1 << 20)
    assert (a.log.log_end_offset, a.log.high_watermark, a.state.fetch_offset, a.state.lag) == (
        3,
        0,
        3,
        0,
    )
    a.round()
    assert asks(a)[1] == (TOPIC_ID, 3, 1, 1, 0, 1 << 20)
    assert b.log.high_watermark == 3
    a.round()
    assert a.log.high_watermark == 3
    assert a.content() == b.content()


def test_the_high_watermark_never_passes_the_own_end() -> None:
    """RL 6.4: the leader's high watermark may be far ahead of what has been fetched."""
    a, b = following(records=0)
    b.lead(2, isr=(2,))
    b.append(5)
    a.follow(b, 2)
    a.fetcher.leader = Bent(
        a.leader,
        lambda answers: {TP: FetchedPartition(ErrorCode.NONE, answers[TP].high_watermark, 0, b"")},
    )
    a.round()
    assert b.log.high_watermark == 5 and a.log.high_watermark == 0 and a.state.lag == 5


def test_the_log_start_follows_the_leaders() -> None:
    """RL 2.8, 6.4: followers learn of DeleteRecords in fetch answers, once their high watermark
    reaches it.
    """
    a, b = following()
    a.catch_up(3)
    b.held.delete_records(2)
    a.round()
    assert a.log.log_start_offset == 2


def test_a_log_that_starts_inside_a_batch_is_taken_from_the_batchs_start() -> None:
    """RL 2.8, 6.5: an empty follower begins at the leader's log start; the batch that this is in
    comes whole, and begins below.
    """
    a, b = nodes()
    b.lead(1, isr=(2,))
    b.held.append_as_leader(batch(5), 1, WALL_MS, b.now_ms(), AppendOrigin.CLIENT)
    b.append(1)
    b.held.delete_records(3)
    a.follow(b, 1)
    a.catch_up(3)
    assert TP not in a.fetcher.state.failed
    assert (a.log.log_start_offset, a.log.log_end_offset, a.log.high_watermark) == (3, 6, 6)
    assert a.content() == b.content()


def test_records_below_the_end_of_a_log_that_is_not_empty_fail_the_partition() -> None:
    """RL 6.4: only a log that holds nothing may begin below its end."""
    a, b = following(records=2)
    a.round()
    whole = replicated_batch(0, 5)
    a.fetcher.leader = Bent(
        a.leader, lambda answers: {TP: FetchedPartition(ErrorCode.NONE, 5, 0, whole)}
    )
    a.round()
    assert TP in a.fetcher.state.failed
    assert a.content() == b.content()


def test_watermarks_beside_a_divergence_are_not_taken() -> None:
    """RL 6.3: an answer that says where to cut moves neither high watermark nor log start: they
    are the leader's of another history.
    """
    a, _ = following()
    a.catch_up(2)
    before = a.log.high_watermark
    bent = FetchedPartition(ErrorCode.NONE, 2, 2, b"", (1, 2))
    a.fetcher.leader = Bent(a.leader, lambda answers: {TP: bent})
    a.round()
    assert (a.log.log_end_offset, a.log.high_watermark, a.log.log_start_offset) == (2, before, 0)


def test_nothing_to_ask_waits_for_the_backoff() -> None:
    """RL 6.2: a fetcher without partitions asks nothing, and looks again after
    `replica.fetch.backoff.ms`, not before.
    """
    a, _ = following()
    initial = a.fetcher.remove([TP])[TP].initial
    a.fetcher.start()
    a.clock.advance(0)
    a.leader.hold()
    began = a.clock.seconds()
    a.fetcher.state.add(TP, initial, 1, True)  # nobody wakes it
    for ms in (0, BACKOFF_MS - 1):
        a.clock.advance(began + ms / 1000 - a.clock.seconds())
        assert a.leader.asked == []
    a.clock.advance(0.002)
    assert [what for what, _ in a.leader.asked] == ["fetch"]
    a.fetcher.shutdown()


def test_adding_wakes_a_waiting_fetcher() -> None:
    """RL 6.1, 6.2: it does not sit out the backoff."""
    a, _ = following()
    initial = a.fetcher.remove([TP])[TP].initial
    a.fetcher.start()
    a.leader.asked.clear()
    a.leader.hold()
    a.fetcher.add({TP: initial})
    a.clock.advance(0)
    assert [what for what, _ in a.leader.asked] == ["fetch"]


def test_one_request_in_flight() -> None:
    """RL 6.2: while an answer is on its way nothing else is asked, whatever is added; the next
    round follows at once.
    """
    a, _ = following()
    a.leader.asked.clear()
    a.leader.hold()
    a.fetcher.start()
    a.clock.advance(5)
    a.fetcher.add({TP: InitialFetchState(TOPIC_ID, 1, 0)})
    a.clock.advance(5)
    assert len(a.leader.asked) == 1
    a.leader.release(hold_on=True)
    assert len(a.leader.asked) == 2 and a.log.log_end_offset == 3
    a.fetcher.shutdown()


@pytest.mark.parametrize("what", ["removed", "added anew under a newer epoch", "shut down"])
def test_an_answer_in_flight_of_what_changed_meanwhile_is_dropped(what: str) -> None:
    """RL 6.4: an epoch change or a removal while the answer is on its way discards it: nothing
    is appended.
    """
    a, _ = following()
    a.leader.hold()
    a.fetcher.start()
    fetcher = a.fetcher
    if what == "removed":
        a.fetcher.remove([TP])
    elif what == "shut down":
        a.fetcher.shutdown()
    else:
        a.fetcher.remove([TP])
        a.fetcher.add({TP: InitialFetchState(TOPIC_ID, 2, 0)})
    a.leader.release(hold_on=True)
    assert a.log.log_end_offset == 0
    fetcher.shutdown()


def test_a_lost_connection_delays_the_partitions_of_this_fetcher() -> None:
    """RL 6.5: all of them wait for the backoff, then it tries again, for ever."""
    a, _ = following()
    a.leader.broken = ConnectionLost()
    for _ in range(5):
        a.round()
        assert a.state.delayed_until_ms == a.now_ms() + BACKOFF_MS
        asked = len(a.leader.asked)
        a.round()
        assert len(a.leader.asked) == asked, "nobody is ready"
        a.clock.advance(BACKOFF_MS / 1000)
    a.leader.broken = None
    a.round()
    assert a.log.log_end_offset == 3


def test_a_running_fetcher_comes_back_when_its_leader_does() -> None:
    """RL 6.5: the loop itself, on the clock: nothing but the backoff lies between the leader's
    return and the next fetch.
    """
    a, _ = following()
    a.leader.broken = ConnectionLost()
    a.fetcher.start()
    for _ in range(3):
        a.clock.advance(BACKOFF_MS / 1000)
    a.leader.broken = None
    a.leader.hold()
    a.clock.advance(BACKOFF_MS / 1000)
    a.leader.release(hold_on=True)
    assert a.log.log_end_offset == 3
    a.fetcher.shutdown()


@pytest.mark.parametrize(
    ("error", "is_logged"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, False),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, False),
        (ErrorCode.UNKNOWN_SERVER_ERROR, True),
        (ErrorCode.CORRUPT_MESSAGE, True),
    ],
)
def test_an_error_of_one_partition_delays_that_one(error: ErrorCode, is_logged: bool) -> None:
    """RL 6.5: every other error: delayed by the backoff, and logged unless a change of leadership
    explains it.
    """
    a, _ = following()
    a.fetcher.leader = Bent(a.leader, lambda answers: {TP: FetchedPartition(error)})
    with capturedLogs() as events:
        a.round()
    assert a.log.log_end_offset == 0
    assert a.state.delayed_until_ms == a.now_ms() + BACKOFF_MS
    expected = [(LogLevel.error, f"fetcher-1 cannot fetch t-0, retrying: {error.name}")]
    assert [(event["log_level"], formatEvent(event)) for event in events] == expected * is_logged


def test_corrupt_bytes_are_fetched_again() -> None:
    """RL 6.5, RELIABILITY: a corrupt batch may be the wire's fault: nothing of it is appended,
    it is fetched anew, the partition does not fail.
    """
    a, b = following()

    def flip(answers):
        records = bytearray(answers[TP].records)
        records[-1] ^= 1
        answers[TP].records = bytes(records)
        return answers

    a.fetcher.leader = Bent(a.leader, flip)
    a.round()
    assert a.log.log_end_offset == 0 and a.state.delayed_until_ms == a.now_ms() + BACKOFF_MS
    a.fetcher.leader = a.leader
    a.clock.advance(1)
    a.catch_up(2)
    assert a.content() == b.content()


def test_records_for_another_place_fail_the_partition() -> None:
    """RL 6.4: append offset = log end, else the partition fails: it is fetched no more until it
    is added again.
    """
    a, _ = following()
    a.state.fetch_offset = 1
    a.round()
    assert a.state is None and a.fetcher.state.failed == {TP}
    assert a.log.log_end_offset == 0


def test_a_storage_error_fails_the_partition_and_takes_the_directory_offline(monkeypatch) -> None:
    """RL 6.5, 1.12: KAFKA_STORAGE_ERROR while appending: `failed_partitions`, and the manager
    hears of the directory.
    """
    a, _ = following()

    def broken(*arguments):
        raise LogDirFailure("/data", OSError("no more"))

    monkeypatch.setattr(FollowedReplicas, "process_partition_data", broken)
    a.round()
    assert a.fetcher.state.failed == {TP} and a.failed_directories == ["/data"]


def test_a_partition_that_leads_by_now_takes_nothing() -> None:
    """RELIABILITY: partitions turned leader meanwhile are filtered: a leader's log is never
    written by a fetcher.
    """
    a, _ = following()
    a.held.make_leader(registration(1, (1, 2, 3), (1,), 2, 20), a.log, a.now_ms())
    a.round()
    assert a.log.log_end_offset == 0 and a.state.delayed_until_ms > a.now_ms()


# out of range


def out_of_range(own: int, leader_start: int, leader_end: int, **options) -> tuple[Node, Node]:
    """A follower with `own` records of an epoch that its leader does not know, and a leader with
    records from `leader_start` to `leader_end`.
    """
    a, b = nodes()
    b.lead(1)
    b.append(leader_end)
    b.log.increment_log_start_offset(leader_start)
    a.lead(1)
    a.append(own)
    a.log.set_high_watermark(own)
    a.follow(b, 1)
    return a, b


def test_a_follower_above_the_leaders_end_is_truncated() -> None:
    """RL 6.5: the leader's end is asked; below our own: cut to it, below the high watermark too."""
    a, _ = out_of_range(own=8, leader_start=0, leader_end=5)
    a.fetcher.leader = Bent(
        a.leader, lambda answers: {TP: FetchedPartition(ErrorCode.OFFSET_OUT_OF_RANGE)}
    )
    a.round()
    assert [asked for what, asked in a.leader.asked if what == "offset"] == [(TP, 1, LATEST)]
    assert (a.log.log_end_offset, a.log.high_watermark, a.state.fetch_offset) == (5, 5, 5)


def test_beyond_us_starts_the_leader_we_start_there() -> None:
    """RL 6.5: the leader's start above our end: everything goes, and fetching begins at its
    start.
    """
    a, b = out_of_range(own=2, leader_start=6, leader_end=9)
    a.catch_up(3)
    assert [asked[2] for what, asked in a.leader.asked if what == "offset"] == [LATEST, EARLIEST]
    assert (a.log.log_start_offset, a.log.log_end_offset) == (6, 9)
    assert a.content() == b.content()


def test_within_the_leaders_range_we_go_on_at_our_end() -> None:
    """RL 6.5: next = max(leader's start, own end); nothing is cut."""
    a, _ = out_of_range(own=3, leader_start=1, leader_end=9)
    a.fetcher.leader = Bent(
        a.leader, lambda answers: {TP: FetchedPartition(ErrorCode.OFFSET_OUT_OF_RANGE)}
    )
    a.round()
    assert (a.log.log_end_offset, a.state.fetch_offset, a.state.lag) == (3, 3, 6)


def test_refused_again_within_the_leaders_range_it_waits() -> None:
    """Going on at the same place changes nothing: the second time waits for the backoff,
    whatever the reason is; progress ends that.
    """
    a, _ = out_of_range(own=3, leader_start=1, leader_end=9)
    a.fetcher.leader = Bent(
        a.leader, lambda answers: {TP: FetchedPartition(ErrorCode.OFFSET_OUT_OF_RANGE)}
    )
    a.round()
    assert a.state.delayed_until_ms < 0
    for _ in range(3):
        a.round()
        assert a.state.delayed_until_ms > a.now_ms()
        a.clock.advance(BACKOFF_MS / 1000)
    assert (a.log.log_end_offset, a.state.fetch_offset) == (3, 3)


@pytest.mark.parametrize("truncates_on_fetch", [True, False])
@pytest.mark.parametrize("leader_end", [2, 5, 9])
def test_a_log_of_a_newer_epoch_than_its_leaders_is_left_alone(
    leader_end: int, truncates_on_fetch: bool
) -> None:
    """Metadata that went back makes an older epoch lead: what a newer one wrote is neither cut
    nor added to, and nobody is asked in vain.
    """
    a, b = nodes()
    b.lead(7)
    b.append(leader_end)
    a.lead(8)
    a.append(5)
    a.log.set_high_watermark(5)
    a.held.partition_epoch = a.held.leader_epoch = -1  # the process that led at epoch 8 is another
    a.follow(b, 7, truncates_on_fetch=truncates_on_fetch)
    for _ in range(3):
        a.round()
        a.clock.advance(1)
    assert a.log.log_end_offset == 5 and a.fetcher.state.failed == {TP} and a.leader.asked == []
    assert (
        "records of leader epoch 8, but its leader leads at epoch 7"
        in a.held.history.failure.reason
    )
    assert "stop the broker and move its directory" in a.held.history.failure.reason
    told = fetching_now(a.held, "", "", None, Moment(a.now_ms(), 0))
    assert told.phase == "failed" and a.held.history.failure.reason in told.why


@pytest.mark.parametrize("truncates_on_fetch", [True, False])
def test_a_truncation_for_which_no_file_can_be_opened_is_tried_again(
    truncates_on_fetch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Descriptors are short for a moment: as with an append, that is no failure of the partition,
    which nothing would fetch any more.
    """
    a, b = copied(2)
    a.append(1)
    b.lead(2, isr=(2,))
    b.append(2)
    a.follow(b, 2, truncates_on_fetch=truncates_on_fetch)

    def short(position: int, length: int) -> bytes:
        raise OSError(errno.EMFILE, "no")

    with monkeypatch.context() as patched:
        patched.setattr(a.log.segments.active.log.open(), "read_at", short)
        a.round()
    assert TP not in a.fetcher.state.failed and a.log.log_end_offset == 3
    a.clock.advance(BACKOFF_MS / 1000)
    a.catch_up(5)
    assert a.content() == b.content()


def test_unclean_truncation_can_be_refused() -> None:
    """RL 6.5: with `replog.refuse.unclean.truncation` the partition stops instead, with
    everything it holds.
    """
    a, _ = out_of_range(own=8, leader_start=0, leader_end=5)
    a.refuses_unclean = True
    a.fetcher.leader = Bent(
        a.leader, lambda answers: {TP: FetchedPartition(ErrorCode.OFFSET_OUT_OF_RANGE)}
    )
    a.round()
    assert a.log.log_end_offset == 8 and a.fetcher.state.failed == {TP}


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ],
)
def test_a_leader_that_does_not_know_its_end_is_asked_later(error) -> None:
    """RL 6.5: refusals of ListOffsets delay the partition; the own log stays as it is."""
    a, _ = out_of_range(own=8, leader_start=0, leader_end=5)
    bent = a.fetcher.leader = Bent(
        a.leader, lambda answers: {TP: FetchedPartition(ErrorCode.OFFSET_OUT_OF_RANGE)}
    )

    async def refuse(*asked):
        raise BrokerError(error)

    bent.fetch_offset = refuse
    a.round()
    assert a.log.log_end_offset == 8 and a.state.delayed_until_ms == a.now_ms() + BACKOFF_MS


def test_fenced_while_asking_for_the_range() -> None:
    """RL 6.5: FENCED_LEADER_EPOCH at the current epoch fails the partition, from ListOffsets
    too.
    """
    a, _ = out_of_range(own=8, leader_start=0, leader_end=5)
    bent = a.fetcher.leader = Bent(
        a.leader, lambda answers: {TP: FetchedPartition(ErrorCode.OFFSET_OUT_OF_RANGE)}
    )

    async def refuse(*asked):
        raise BrokerError(ErrorCode.FENCED_LEADER_EPOCH)

    bent.fetch_offset = refuse
    a.round()
    assert a.fetcher.state.failed == {TP} and a.log.log_end_offset == 8


def test_a_lost_connection_while_asking_for_the_range() -> None:
    """RL 6.5: as any other."""
    a, _ = out_of_range(own=8, leader_start=0, leader_end=5)
    bent = a.fetcher.leader = Bent(
        a.leader, lambda answers: {TP: FetchedPartition(ErrorCode.OFFSET_OUT_OF_RANGE)}
    )

    async def lose(*asked):
        raise ConnectionLost()

    bent.fetch_offset = lose
    a.round()
    assert a.log.log_end_offset == 8 and a.state.delayed_until_ms == a.now_ms() + BACKOFF_MS
