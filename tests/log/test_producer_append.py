"""What may follow what a producer wrote, by itself: over a producer state, without a log."""

from __future__ import annotations

import pytest

from tests.log.batches import batch, marker
from twisted_broker.log.append_info import AppendOrigin
from twisted_broker.log.memory import MemoryFileSystem
from twisted_broker.log.producer_append import check_append
from twisted_broker.log.producer_snapshot import BatchMetadata
from twisted_broker.log.producer_state import ProducerStateManager
from twisted_broker.log.verification import NOT_REQUIRED
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.records import BatchView, read_batch_header

CLIENT, COORDINATOR = AppendOrigin.CLIENT, AppendOrigin.COORDINATOR


def state() -> ProducerStateManager:
    """Producer 1 at epoch 3 wrote sequences 0 to 9, two a batch, at offsets 100 and on."""
    producers = ProducerStateManager(MemoryFileSystem(), "/data/t-0", 1000)
    for sequence in range(0, 10, 2):
        producers.add_data(1, 3, sequence, 100 + sequence, 1, 0, False)
    return producers


def check(
    producers: ProducerStateManager,
    sequence: int,
    *,
    producer: int = 1,
    epoch: int = 3,
    count: int = 2,
    transactional: bool = False,
    origin: AppendOrigin = CLIENT,
    verified: bool = False,
) -> BatchMetadata | None:
    data = batch(
        *[b"v"] * count,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=transactional,
    )
    return check_append(
        producers, read_batch_header(data), data, origin, NOT_REQUIRED if verified else None
    )


def refusal(*arguments: object, **named: object) -> ErrorCode:
    with pytest.raises(BrokerError) as caught:
        check(*arguments, **named)
    return caught.value.code


@pytest.mark.parametrize("sequence", [0, 2, 4, 6, 8])
def test_each_of_the_last_five_is_a_duplicate(sequence: int) -> None:
    """KIP-98: it is answered with the offset of its first arrival."""
    found = check(state(), sequence)
    assert found is not None and found[1] == 100 + sequence + 1


def test_what_follows_may_be_appended_and_nothing_else() -> None:
    """KIP-98: a gap, a repetition in other pieces and an old epoch are refused."""
    producers = state()
    assert check(producers, 10) is None
    for sequence in (1, 9, 11):
        assert refusal(producers, sequence) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(producers, 8, count=1) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(producers, 10, epoch=2) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert check(producers, 0, epoch=4) is None
    assert refusal(producers, 10, epoch=4) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert check(producers, 77, producer=2) is None
    assert check(producers, 77, origin=COORDINATOR) is None


def test_a_check_changes_nothing() -> None:
    """What is refused, or never written, leaves no trace."""
    producers = state()
    for sequence, producer in ((10, 1), (0, 1), (5, 2)):
        check(producers, sequence, producer=producer)
    refusal(producers, 30)
    assert list(producers.producers) == [1]
    assert producers.producers[1].batches == state().producers[1].batches


def test_a_transaction_is_begun_by_its_coordinator_and_ended_before_anything_else() -> None:
    """KIP-890: an open one or a verified one goes on; beside an open one nothing else may be
    written.
    """
    producers = state()
    assert refusal(producers, 10, transactional=True) == ErrorCode.INVALID_TXN_STATE
    assert check(producers, 10, transactional=True, verified=True) is None
    producers.add_data(1, 3, 10, 110, 1, 0, True)
    assert check(producers, 12, transactional=True) is None
    assert refusal(producers, 12) == ErrorCode.INVALID_TXN_STATE


def test_markers_of_an_old_epoch_or_coordinator_are_refused() -> None:
    """KIP-98: zombies of either kind."""
    producers = state()
    producers.add_batch(BatchView(marker(1, True, epoch=3, coordinator_epoch=5, offset=110)))

    def send(epoch: int, coordinator_epoch: int) -> None:
        data = marker(1, True, epoch=epoch, coordinator_epoch=coordinator_epoch)
        assert check_append(producers, read_batch_header(data), data, COORDINATOR, None) is None

    send(3, 5)
    send(4, 6)
    for epoch, coordinator_epoch, code in (
        (2, 6, ErrorCode.INVALID_PRODUCER_EPOCH),
        (3, 4, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
    ):
        with pytest.raises(BrokerError) as caught:
            send(epoch, coordinator_epoch)
        assert caught.value.code == code


def test_while_the_state_is_rebuilt_nothing_can_be_judged() -> None:
    """RL 3.5: not even a producer that is not known; the client comes again."""
    producers = state()
    rebuilt = producers.begin_rebuild()
    for producer in (1, 2):
        assert refusal(producers, 10, producer=producer) == ErrorCode.LEADER_NOT_AVAILABLE
    producers.adopt(rebuilt)
    assert check(producers, 10) is None
