"""What a leader is being asked for, and what is said of it (RL 6.2; KIP-227)."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.fetcher.fetch_session_handler import (
    RequestedPartition,
    RequestedPartitions,
)

ONE, TWO = bytes(15) + b"\x11", bytes(15) + b"\x12"
A, B, C = (TopicPartition("t", number) for number in range(3))


def ask(offset: int, topic_id: bytes = ONE) -> RequestedPartition:
    return RequestedPartition(topic_id, offset, 1, 1, 0, 1000)


def put_exactly(
    asks: RequestedPartitions, wanted: Mapping[TopicPartition, RequestedPartition]
) -> RequestedPartitions:
    """These, and no others, are asked from now on."""
    for name in [name for name in asks.current if name not in wanted]:
        asks.remove(name)
    for name, each in wanted.items():
        asks.put(name, each)
    return asks


def test_only_what_changed_is_news() -> None:
    """RL 6.2: new, moved and gone ones are, each once; what stays is not."""
    asks = put_exactly(RequestedPartitions([A, B, C]), {A: ask(0), B: ask(5)})
    assert asks.take_changes() == ({A: ask(0), B: ask(5)}, [])
    put_exactly(asks, {A: ask(3), C: ask(9)})
    assert asks.has_forgotten
    assert asks.take_changes() == ({A: ask(3), C: ask(9)}, [(B, ONE)])
    put_exactly(asks, {A: ask(3), C: ask(9)})
    assert asks.take_changes() == ({}, []) and not asks.has_forgotten


def test_all_are_named_in_the_order_of_turns() -> None:
    """RL 6.2: the order in which they came to be asked, or moved, does not count."""
    turns = {A: 1, B: 2, C: 3}
    asks = put_exactly(RequestedPartitions(turns), {C: ask(0), A: ask(0), B: ask(0)})
    turns[A] = turns.pop(A)
    assert list(asks.in_order()) == [B, C, A]
    asks.remove(C)
    assert list(asks.in_order()) == [B, A]


@given(
    steps=st.lists(
        st.one_of(
            st.just("say"),
            st.tuples(
                st.sampled_from([A, B, C]),
                st.none() | st.tuples(st.integers(0, 2), st.sampled_from([ONE, TWO])),
            ),
        ),
        max_size=30,
    )
)
def test_what_was_said_with_the_news_is_what_stands(steps) -> None:
    """RL 6.2: for a leader that puts in what changed and then forgets what is gone, whenever and
    however often it is told.
    """
    asks = RequestedPartitions([A, B, C])
    model: dict[TopicPartition, RequestedPartition] = {}
    told: dict[tuple[TopicPartition, bytes], RequestedPartition] = {}
    for step in [*steps, "say"]:
        if step == "say":
            changed, gone = asks.take_changes()
            assert changed.items() <= asks.current.items()
            told.update({(name, each.topic_id): each for name, each in changed.items()})
            for key in gone:
                told.pop(key, None)
            assert told == {(name, each.topic_id): each for name, each in asks.current.items()}
            assert asks.take_changes() == ({}, [])
        elif step[1] is None:
            asks.remove(step[0])
            model.pop(step[0], None)
        else:
            asks.put(step[0], ask(*step[1]))
            model[step[0]] = ask(*step[1])
        assert asks.current == model
