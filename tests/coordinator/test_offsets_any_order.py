"""Offsets in memory and in the log, whatever is decided late: after any run both say the same."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest
from twisted.internet.defer import Deferred

from tests.coordinator.broker_run import BrokerRun
from tests.coordinator.test_transactional_offsets import end, one, txn_commit
from twisted_broker.coordinator.coordinator_context import AppendUndecided
from twisted_broker.coordinator.group_records import ProducerIdAndEpoch, partition_for
from twisted_broker.log.verification import Guard
from twisted_broker.wire.errors import BrokerError, ErrorCode

GROUPS = ("g", "h")
PRODUCERS = (ProducerIdAndEpoch(7, 3), ProducerIdAndEpoch(8, 3))


def _same(outcome: Deferred[int]) -> Deferred[int]:
    return outcome


class LateRun:
    """Appends wait for the high watermark, which decides a beginning of the log at a time, in any
    order; some time out before. A producer writes nothing while its marker is not answered.
    """

    def __init__(self, seed: int) -> None:
        self.random, self.run = Random(seed), BrokerRun()
        self.store = self.run.store
        self._append = self.store.append
        self.store.held = []
        self.waiting: list[tuple[int, int, Deferred[int]]] = []
        self.timed_out: set[Deferred[int]] = set()
        self.ending: dict[tuple[int, int], bool] = {}
        self.asked: set[tuple[int, int]] = set()
        self.store.append = self.append

    def append(
        self, index: int, batch: bytes, timeout_ms: int, guard: Guard = None
    ) -> Deferred[int]:
        self._append(index, batch, timeout_ms, guard)
        assert self.store.held
        waiting, offset = self.store.held.pop()
        self.waiting.append((index, offset, waiting))
        return waiting

    def time_out(self) -> None:
        for row, (index, offset, waiting) in enumerate(list(self.waiting)):
            if waiting not in self.timed_out and self.random.random() < 0.4:
                outcome: Deferred[int] = Deferred()
                self.timed_out.add(outcome)
                self.waiting[row] = index, offset, outcome
                waiting.errback(
                    AppendUndecided(ErrorCode.REQUEST_TIMED_OUT, None, partial(_same, outcome))
                )

    def replicate(self, index: int, share: float) -> None:
        mine = sorted((each for each in self.waiting if each[0] == index), key=lambda each: each[1])
        decided = mine[: round(share * len(mine))]
        self.waiting = [each for each in self.waiting if each not in decided]
        self.random.shuffle(decided)
        for _, offset, waiting in decided:
            waiting.callback(offset)
        self.run.settle()

    def end(self, producer: ProducerIdAndEpoch, index: int) -> None:
        key = producer.id, index
        if key in self.asked:
            return
        is_commit = self.ending.setdefault(key, self.random.random() < 0.6)
        self.asked.add(key)

        def answered(code: ErrorCode) -> None:
            self.asked.discard(key)
            if code is ErrorCode.NONE:
                del self.ending[key]

        end(self.run, is_commit, producer, index).addCallback(answered)

    def act(self, number: int) -> None:
        random, run = self.random, self.run
        group, producer = random.choice(GROUPS), random.choice(PRODUCERS)
        index, partition = partition_for(group, 50), random.randrange(2)
        share = random.random()
        kind = random.choice(("commit", "txn", "txn", "end", "delete", "group", "late", "store"))
        if kind == "commit":
            _quiet(run.commit(one(number, partition), group=group))
        elif kind == "txn" and (producer.id, index) not in self.ending:
            some = [one(number, each) for each in random.sample((0, 1), random.randrange(1, 3))]
            _quiet(txn_commit(run, *some, producer=producer, group=group))
        elif kind == "end":
            self.end(producer, index)
        elif kind == "delete":
            _quiet(run.coordinator.delete_offsets(group, [("t", partition)]))
        elif kind == "group" and share < 0.5:
            _quiet(run.coordinator.delete_group(group))
        elif kind == "late":
            self.time_out()
        elif kind == "store":
            self.replicate(index, share)
        run.settle()


def _quiet(answer: Deferred[object]) -> None:
    answer.addErrback(lambda failure: failure.trap(BrokerError))


def held(run: BrokerRun) -> dict[str, object]:
    """What each group has: committed, and in open transactions."""
    found: dict[str, object] = {}
    for shard in run.coordinator.runtime.shards.values():
        for name in shard.groups:
            offsets = shard.groups[name].offsets
            committed = {key: each.offset for key, each in offsets.items()}
            pending = {
                producer: {key: each.offset for key, each in some.items()}
                for producer, some in offsets.transactional.items()
            }
            if committed or pending:
                found[name] = committed, pending
    return found


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_memory_says_what_the_log_says(first: int) -> None:
    for seed in range(first, first + 50):
        late = LateRun(seed)
        for number in range(80):
            try:
                late.act(number)
            except BrokerError:
                continue  # the group is being deleted, or not there
        while late.waiting:
            late.replicate(late.waiting[0][0], 1.0)
        late.store.append = late._append
        before = held(late.run)
        assert held(late.run.restarted()) == before, seed
