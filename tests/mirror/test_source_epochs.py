"""The side file: before the records, and not trusted beyond them."""

from __future__ import annotations

from tests.log.test_mirrored import at, batch
from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.memory import MemoryFileSystem
from twisted_broker.mirror.source_epochs import SourceEpochs

TP = TopicPartition("t", 0)
PATH = "/side/t-0/leader-epoch-checkpoint"


def test_epochs_are_kept_and_bounded_by_what_the_target_has() -> None:
    files = MemoryFileSystem()
    epochs = SourceEpochs(files, "/side", TP)
    assert epochs.epoch_at(0) == -1
    epochs.note(at(0, batch(b"a"), epoch=3) + at(1, batch(b"b"), epoch=3), 3)
    epochs.note(at(5, batch(b"c"), epoch=7) + at(9, batch(b"d"), epoch=8), 8)
    again = SourceEpochs(files, "/side", TP)
    assert again.entries() == [(3, 0), (7, 5), (8, 9)]
    again.begin(2, 9)
    assert again.entries() == [(3, 2), (7, 5)]
    assert [again.epoch_at(offset) for offset in (2, 4, 5, 8)] == [3, 3, 7, 7]
    assert SourceEpochs(files, "/side", TP).entries() == again.entries()


def test_a_damaged_file_is_begun_anew() -> None:
    files = MemoryFileSystem()
    SourceEpochs(files, "/side", TP).note(at(0, batch(b"a"), epoch=3), 3)
    file = files.open(PATH)
    file.write_at(0, (b"what",))
    epochs = SourceEpochs(files, "/side", TP)
    assert epochs.entries() == []
    epochs.note(at(4, batch(b"a"), epoch=4), 4)
    assert SourceEpochs(files, "/side", TP).entries() == [(4, 4)]
