"""Which offsets control batches take, as batches of bytes tell it: without Spark and without a
broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from replog_pipeline.errors import PipelineError
from replog_pipeline.jobs.audit import markers
from replog_pipeline.jobs.audit.markers import Markers
from replog_pipeline.kafka_cluster import KafkaCluster
from replog_pipeline.replay.cluster import NotNowError
from tests.pipeline.replica_folders import batch

DATA, CONTROL = "data", "control"
LOG = [
    (DATA, 0, 3),
    (CONTROL, 3, 1),
    (CONTROL, 4, 1),
    (DATA, 5, 2),
    (CONTROL, 7, 1),
    (DATA, 10, 2),
    (CONTROL, 12, 1),
]
"""Offsets 8 and 9 are nobody's."""


class Leader:
    """Gives so many batches at once, the last one cut."""

    def __init__(self, at_once: int) -> None:
        self.at_once, self.asked = at_once, list[int]()
        self.made = [
            (base + count, batch(base, count, is_control=kind == CONTROL))
            for kind, base, count in LOG
        ]

    def __call__(self, topic: str, partition: int, offset: int) -> bytes:
        assert (topic, partition) == ("t", 2)
        self.asked.append(offset)
        given = [made for end, made in self.made if end > offset]
        return (
            b"".join(given[: self.at_once]) + b"".join(given[self.at_once : self.at_once + 1])[:40]
        )


def are_all(leader: Leader, *ranges: tuple[int, int]) -> list[bool]:
    first, last = (np.array(column, np.int64) for column in zip(*ranges, strict=True))
    return Markers(KafkaCluster(""), leader).are_all("t", 2, first, last).tolist()


@pytest.mark.parametrize("at_once", [1, 2, 3, 100])
def test_only_what_control_batches_take_whole_is_taken(at_once: int) -> None:
    wanted = {
        (3, 4): True,
        (3, 3): True,
        (4, 4): True,
        (7, 7): True,
        (7, 8): False,
        (8, 9): False,
        (2, 3): False,
        (12, 12): True,
        (12, 13): False,
    }
    ranges = sorted(wanted)
    assert are_all(Leader(at_once), *ranges) == [wanted[each] for each in ranges]


def test_one_answer_serves_all_gaps_in_its_range() -> None:
    leader = Leader(100)
    assert are_all(leader, (3, 4), (7, 7), (8, 9), (12, 12)) == [True, True, False, True]
    assert leader.asked == [3]


def test_a_leader_that_moves_is_asked_again_and_at_last_it_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers: Iterator[Any] = iter([NotNowError("moved"), batch(0, 1, is_control=True)])

    def fetched(*arguments: object) -> bytes:
        answer = next(answers, NotNowError("nobody leads"))
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(markers, "fetched", fetched)
    monkeypatch.setattr(markers, "PAUSE_SECONDS", 0)
    asker = Markers(KafkaCluster("127.0.0.1:1"))
    assert asker.are_all("t", 0, np.array([0]), np.array([0])).tolist() == [True]
    monkeypatch.setattr(markers, "PATIENCE_SECONDS", -1)
    with pytest.raises(
        PipelineError,
        match=r"t-0: offset 9 could not be read .* \(nobody leads\): are its brokers up",
    ):
        asker.are_all("t", 0, np.array([9]), np.array([9]))
    asker.close()
