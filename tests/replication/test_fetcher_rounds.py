"""What a round of a replica fetcher does first, what wakes it, what it says when it cuts, and
what it counts (RL 6.2-6.5).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from twisted.internet.defer import ensureDeferred
from twisted.logger import LogLevel, capturedLogs, formatEvent

from tests.replication.fixtures import TOPIC_ID, TP, Fixture, batch, registration
from tests.replication.pair import BACKOFF_MS, Node, copied, nodes
from tests.replication.test_fetcher import Bent, following, out_of_range
from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.explain.explanation import _truncation_info
from twisted_broker.replication.fetcher.fetch_session_handler import RequestedPartitions
from twisted_broker.replication.fetcher.fetcher import ANSWERS_PER_TURN, Fetcher
from twisted_broker.replication.fetcher.fetcher_state import FetchedPartition, InitialFetchState
from twisted_broker.replication.fetcher.leader_endpoint import BrokerEndPoint
from twisted_broker.replication.fetcher.replica_fetcher import FollowedReplicas
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.records import set_offsets_and_epoch

TOPIC_STATS = ("replication_bytes_in", "reassignment_bytes_in", "messages_in", "bytes_in")


def kinds(node: Node) -> list[str]:
    return [what for what, _ in node.leader.asked]


def truncating(records: int = 3) -> tuple[Node, Node]:
    """A follower whose partition is to be truncated before it is fetched, by
    OffsetForLeaderEpoch.
    """
    a, b = following(records=records)
    a.catch_up(2)
    b.append(records)
    a.follow(b, 1, truncates_on_fetch=False)
    return a, b


def test_a_round_truncates_first_and_fetches_then() -> None:
    """RL 6.2, 6.3: in one round: the epoch is asked, the log is cut, and what is then ready is
    fetched from there.
    """
    a, b = truncating()
    a.round()
    assert kinds(a) == ["epochs", "fetch"]
    assert a.content() == b.content()


def test_what_is_delayed_is_not_truncated_either() -> None:
    """RL 6.2: nobody is asked about a partition that waits; afterwards it is."""
    a, _ = truncating()
    a.fetcher.partitions_with_errors([TP])
    a.round()
    assert kinds(a) == []
    a.clock.advance(BACKOFF_MS / 1000)
    a.round()
    assert kinds(a) == ["epochs", "fetch"]


def test_the_end_of_a_delay_ends_the_wait() -> None:
    """RL 6.2: with nothing ready the fetcher waits for the backoff at most, and not past the end
    of a delay that is sooner.
    """
    a, _ = following(records=2)
    a.state.delayed_until_ms = a.now_ms() + 250
    a.fetcher.start()
    assert kinds(a) == []
    a.leader.hold()
    a.clock.advance(0.25)
    assert kinds(a) == ["fetch"]
    a.fetcher.shutdown()


@pytest.mark.parametrize(("high_watermark", "level"), [(2, LogLevel.info), (5, LogLevel.warn)])
def test_a_truncation_below_the_high_watermark_is_a_warning(
    high_watermark: int, level: LogLevel
) -> None:
    """RL 6.3: the usual cut is told as it is; one that takes what a consumer may have seen is a
    warning.
    """
    a, b = copied(2)
    a.append(3)
    a.log.set_high_watermark(high_watermark)
    b.lead(2)
    b.append(3)
    a.follow(b, 2)
    with capturedLogs() as told:
        a.catch_up(4)
    assert [
        event["log_level"]
        for event in told
        if " truncated from 5 to 2" in (formatEvent(event) or "")
    ] == [level]
    assert a.content() == b.content()


def test_an_unclean_truncation_is_a_warning() -> None:
    """RL 6.5: the leader ends below us: cut to its end, and said so."""
    a, _ = out_of_range(own=5, leader_start=0, leader_end=2)
    a.fetcher.leader = Bent(
        a.leader, lambda answers: {TP: FetchedPartition(ErrorCode.OFFSET_OUT_OF_RANGE)}
    )
    with capturedLogs() as told:
        a.round()
    lines = [formatEvent(event) for event in told if event["log_level"] is LogLevel.warn]
    assert a.log.log_end_offset == 2 and any(
        line is not None and "out of the leader's range" in line for line in lines
    )


def write(node: Node, *offsets: int) -> None:
    """Under epoch 1; offset 1 is of a transaction."""
    for offset in offsets:
        transaction = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
        more = transaction | {"is_transactional": True} if offset == 1 else {}
        data = bytearray(batch(value=b"%d" % offset, **more))
        set_offsets_and_epoch(data, offset, 1)
        node.log.append_as_follower(bytes(data), 1, 0)


def test_what_another_leader_sent_is_doubted() -> None:
    """RL 6.7: it was copied a moment ago, from one whose cleaner had not come so far."""
    a, b, c = nodes(3)
    write(b, 0, 1)
    write(c, 0, 3)
    b.lead(1)
    a.follow(b, 1)
    a.catch_up(2)
    c.lead(2)
    a.follow(c, 2)
    a.catch_up(4)
    assert a.content() == c.content() and not a.log.producers.ongoing


@pytest.mark.parametrize("may_be_elected", [False, True])
def test_what_a_transactions_end_was_missed_in_is_copied_again(may_be_elected: bool) -> None:
    """RL 6.7: the leader's cleaner took the records of a transaction and its marker while the
    follower was away. Where it may be elected it keeps what it has.
    """
    a, b = nodes()
    write(a, 0, 1)
    write(b, 0, 3, 4)
    b.lead(1)
    a.log.set_high_watermark(2)
    a.refuses_unclean = True
    a.follow(b, 1)
    a.held.may_be_elected = may_be_elected
    with capturedLogs() as told:
        a.catch_up(4)
    lines = [formatEvent(event) for event in told]
    if may_be_elected:
        assert [offset for offset, _, _ in a.content()] == [0, 1, 3, 4] and not lines
        return
    assert a.content() == b.content() and not a.log.producers.ongoing
    reason = "its leader may have cleaned away the end of the transaction at 1"
    assert lines == [
        f"t-0: {reason}, fetching from 1",
        "t-0 truncated from 2 to 1, below its high watermark 2",
    ]
    (truncation,) = a.held.history.truncations
    assert _truncation_info(truncation).why == f"{reason}: fetched again from 1"
    assert a.state.fetch_offset == a.log.high_watermark == 5 and a.state.lag == 0


def test_fenced_partitions_are_one_line_a_round() -> None:
    """RL 6.5: after a restart the leader's epoch is newer for every partition, until the
    controller's news are here: one line at info for all of them, and no error.
    """
    a, _ = following()
    another = TopicPartition("t", 9)
    fenced = {each: FetchedPartition(ErrorCode.FENCED_LEADER_EPOCH) for each in (TP, another)}
    a.fetcher.state.partitions[another] = a.fetcher.state.partitions[TP]

    def bend(answers: dict) -> dict:
        a.fetcher.state.requested.current[another] = a.fetcher.state.requested.current[TP]
        return fenced

    a.fetcher.leader = Bent(a.leader, bend)
    with capturedLogs() as told:
        a.round()
    assert a.fetcher.state.failed == {TP, another}
    lines = [
        (event["log_level"], formatEvent(event) or "")
        for event in told
        if event["log_level"] >= LogLevel.info
    ]
    assert [level for level, _ in lines] == [LogLevel.info]
    assert "2 partitions, the first t-0" in lines[0][1]


def test_what_a_fetcher_brings_is_counted_as_replication() -> None:
    """RL 1.13, 6.4: bytes of the fetcher and of the topic, as replication and, for a replica
    being added, as reassignment; nothing as produced.
    """
    a, b = following()
    a.catch_up(2)
    size = a.log.size_in_bytes
    assert [getattr(a.held.stats, name) for name in TOPIC_STATS] == [size, 0, 0, 0]
    assert (a.fetcher.bytes_fetched, a.fetcher.requests) == (size, 2)
    a.held.make_follower(registration(2, (1, 2, 3), (2,), 1, 11)._replace(adding=(1,)), a.log)
    b.append(2)
    a.catch_up(2)
    assert [getattr(a.held.stats, name) for name in TOPIC_STATS] == [
        a.log.size_in_bytes,
        a.log.size_in_bytes - size,
        0,
        0,
    ]


def test_a_partition_that_cannot_be_truncated_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """RL 6.5, AbstractFetcherThreadTest: an error while cutting fails that partition; the
    fetcher lives, and takes it back when told to.
    """
    a, _ = truncating()

    def broken(*arguments: object) -> None:
        raise RuntimeError("cannot cut")

    monkeypatch.setattr(FollowedReplicas, "truncate", broken)
    a.round()
    assert a.state is None and a.fetcher.state.failed == {TP}
    a.round()
    a.fetcher.add({TP: InitialFetchState(TOPIC_ID, 1, 0)})
    assert a.fetcher.state.failed == set()


class Answering:
    """A leader that answers each fetch with what it is given; it must not be asked else."""

    endpoint, truncates_on_fetch = BrokerEndPoint(2, "h", 1), True

    def __init__(self, answer: Callable[[TopicPartition], FetchedPartition]) -> None:
        self.answer = answer

    def has_request(self, requested: RequestedPartitions) -> bool:
        return bool(requested.current)

    async def fetch(self, requested: RequestedPartitions) -> dict[TopicPartition, FetchedPartition]:
        return {name: self.answer(name) for name in requested.current}

    def close(self) -> None:
        """Nothing waits."""


def many_followed(count: int, epoch: int = 1) -> tuple[Fixture, list[TopicPartition], Fetcher]:
    """Partitions with a record each that their leader answers with, not fetched yet."""
    fixture = Fixture()
    fixture.topic(
        states={
            number: registration(2, (1, 2), leader_epoch=epoch, partition_epoch=epoch)
            for number in range(count)
        }
    )
    names = [TopicPartition("t", number) for number in range(count)]
    for name in names:
        log = fixture.partition(name).log
        log.leader_epochs.assign(0, 0)
    records = bytearray(batch())
    set_offsets_and_epoch(records, 0, epoch)
    leader = Answering(lambda name: FetchedPartition(ErrorCode.NONE, 1, 0, bytes(records)))
    target = FollowedReplicas(fixture.replicas)
    fetcher = Fetcher("many", fixture.runtime, leader, target, BACKOFF_MS, 1 << 20)
    fetcher.add({name: InitialFetchState(TOPIC_ID, epoch, 0) for name in names})
    return fixture, names, fetcher


def ends(fixture: Fixture, names: list[TopicPartition]) -> int:
    """How many have their record."""
    found: list[int] = [fixture.partition(name).log.log_end_offset for name in names]
    return sum(found)


def test_an_answer_for_very_many_partitions_takes_turns() -> None:
    """What a leader brings for thousands after an outage: others are served meanwhile."""
    fixture, names, fetcher = many_followed(3 * ANSWERS_PER_TURN)
    finished: list[object] = []
    ensureDeferred(fetcher.do_work()).addBoth(finished.append)
    # `Clock.advance` runs what is called later for now as well, so one turn is taken by hand.
    for turn in range(1, 4):
        assert ends(fixture, names) == turn * ANSWERS_PER_TURN
        assert bool(finished) == (turn == 3)
        calls = [call for call in fixture.clock.calls if call.getTime() <= fixture.clock.seconds()]
        for call in calls:
            fixture.clock.calls.remove(call)
            call.called = 1
            call.func(*call.args, **call.kw)
    assert finished == [True] and fetcher.requests == 1


def test_what_changes_within_a_long_answer_counts() -> None:
    """A partition that is led, or followed under another epoch, by then takes nothing of it."""
    fixture, names, fetcher = many_followed(2 * ANSWERS_PER_TURN + 1)
    finished: list[object] = []
    ensureDeferred(fetcher.do_work()).addBoth(finished.append)
    led, newer = names[-1], names[-2]
    states = dict(fixture.image.topics_by_name["t"].partitions)
    fetcher.remove([led, newer])
    states[led.partition] = registration(1, (1, 2), leader_epoch=2, partition_epoch=2)
    states[newer.partition] = registration(2, (1, 2), leader_epoch=2, partition_epoch=2)
    fixture.topic(states=states)
    fetcher.add({newer: InitialFetchState(TOPIC_ID, 2, 0)})
    fixture.advance(0)
    fixture.advance(0)
    assert finished == [True] and ends(fixture, names) == len(names) - 2
    assert ends(fixture, [led, newer]) == 0 and not fixture.partition(led).offline


def test_a_fetcher_that_is_stopped_within_a_long_answer_takes_no_more() -> None:
    fixture, names, fetcher = many_followed(2 * ANSWERS_PER_TURN)
    fetcher.start()
    assert ends(fixture, names) == ANSWERS_PER_TURN
    fetcher.shutdown()
    fixture.advance(0)
    assert ends(fixture, names) == ANSWERS_PER_TURN and fetcher.requests == 1
