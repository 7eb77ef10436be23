"""A simulated run's histories meet the same judge as those of real clients."""

from __future__ import annotations

from twisted_broker.interfaces import TopicPartition
from twisted_broker.simulation.checks.history import Fate
from twisted_broker.simulation.client_history import ClientHistory
from twisted_broker.simulation.client_notes import Attempt

T0 = TopicPartition("t", 0)


def acknowledged(base: int, *values: bytes, idempotent: bool = True) -> Attempt:
    attempt = Attempt(T0, list(values), idempotent)
    attempt.fate, attempt.base_offset = Fate.ACKED, base
    return attempt


def names(
    history: ClientHistory, *attempts: Attempt, left_out: set[TopicPartition] | None = None
) -> list[str]:
    return [anomaly.name for anomaly in history.anomalies(attempts, left_out or set(), {})]


def reader(*batches: tuple[int, list[bytes]]) -> ClientHistory:
    history = ClientHistory()
    for base, values in batches:
        history.consumed("c0", T0, base, values)
    return history


def test_what_was_acknowledged_and_is_there_is_no_anomaly() -> None:
    """A batch nobody knows about may be there, one that was refused is not."""
    unknown, refused = Attempt(T0, [b"p0-3"], True), Attempt(T0, [b"p0-4"], True)
    unknown.fate, refused.fate = Fate.UNKNOWN, Fate.REFUSED
    history = reader((0, [b"p0-1", b"p0-2"]), (2, [b"p0-3"]))
    assert names(history, acknowledged(0, b"p0-1", b"p0-2"), unknown, refused) == []


def test_a_lost_record_is_one_unless_an_election_was_unclean() -> None:
    """RL 9.1: an acknowledged record is there, unless an unclean election was recorded."""

    def history() -> ClientHistory:
        return reader((0, [b"p0-1"]), (2, [b"p0-3"]))

    attempts = [acknowledged(number, f"p0-{number + 1}".encode()) for number in range(3)]
    assert names(history(), *attempts) == ["lost-write", "poll-skip"]
    assert names(history(), *attempts, left_out={T0}) == []


def test_only_an_idempotent_producers_record_must_be_there_once() -> None:
    """RL 9.4: a producer that may repeat itself is no fault of the log."""

    def history() -> ClientHistory:
        return reader((0, [b"p0-1", b"p0-1"]))

    assert names(history(), acknowledged(0, b"p0-1")) == ["duplicate"]
    assert names(history(), acknowledged(0, b"p0-1", idempotent=False)) == []


def test_a_consumer_that_gets_a_new_position_goes_back() -> None:
    history = reader((0, [b"p0-1"]))
    history.moved("c0")
    history.consumed("c0", T0, 0, [b"p0-1"])
    assert names(history, acknowledged(0, b"p0-1")) == []


def test_what_was_deleted_may_be_read_by_nobody() -> None:
    """Below a log start an acknowledged record is owed to nobody; above it is."""
    first, second = acknowledged(0, b"p0-1"), acknowledged(1, b"p0-2")
    history = reader((2, [b"p0-3"]))
    last = acknowledged(2, b"p0-3")
    found = history.anomalies([first, second, last], set(), {T0: 1})
    assert [(each.name, "p0-2" in each.what) for each in found] == [("lost-write", True)]


def test_a_copy_of_what_was_deleted_is_no_duplicate() -> None:
    """All by which a leader knew the producer was deleted before the copy was acknowledged."""

    def found(deleted_upto: int) -> list[str]:
        attempt = acknowledged(3, b"p0-1")
        attempt.deleted_upto = deleted_upto
        return names(reader((1, [b"p0-1", b"p1-1", b"p0-1"])), attempt, acknowledged(2, b"p1-1"))

    assert [found(upto) for upto in (0, 1, 2, 3)] == [["duplicate"], ["duplicate"], [], []]


def test_a_copy_of_what_was_deleted_is_none_where_nobody_was_answered() -> None:
    """Nobody knows when the copy was appended: what is deleted by the end counts."""

    def found(deleted_upto: int) -> list[str]:
        attempt, other = Attempt(T0, [b"p0-1"], True), acknowledged(2, b"p1-1")
        attempt.fate = Fate.UNKNOWN
        history = reader((1, [b"p0-1", b"p1-1", b"p0-1"]))
        return [
            each.name for each in history.anomalies([attempt, other], set(), {T0: deleted_upto})
        ]

    assert [found(upto) for upto in (0, 1, 2)] == [["duplicate"], ["duplicate"], []]


def test_an_answer_that_may_be_of_another_batch_says_nothing() -> None:
    """A producer's epoch that was given twice; the record itself may be there or not."""
    first, second = acknowledged(0, b"p0-1"), acknowledged(0, b"p0-2")

    def found(*unsure: Attempt) -> list[str]:
        history = reader((0, [b"p0-1"]))
        return [each.name for each in history.anomalies([first, second], set(), {}, unsure)]

    assert "inconsistent-offsets" in found()
    assert found(first, second) == []
