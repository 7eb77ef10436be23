"""Known mistakes, switched on one at a time in this process only: the checkers must notice each.

Every mutation replaces a function of the production code by one with the mistake in it; the card of
RELIABILITY 2.5 names them. `python -m tests.simulation.mutations [NAME ..]` looks for the first
seed that catches each.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from twisted_broker.cluster import alter_partition_decision
from twisted_broker.log.leader_epochs import LeaderEpochFileCache
from twisted_broker.replication.fetcher import fetcher_manager
from twisted_broker.replication.partition.isr import CommittedIsr, IsrProposal
from twisted_broker.replication.partition.partition import Partition
from twisted_broker.testing.sim.__main__ import Verdict, run_seed
from twisted_broker.wire.errors import BrokerError, ErrorCode

SEEDS = 200


def truncate_to_the_high_watermark(stack: ExitStack) -> None:
    """A new follower cuts its log to its own high watermark, whatever the leader's epochs say
    (before KIP-101).
    """

    def initial_fetch_offset(log: Any, truncates_on_fetch: bool) -> int:
        log.truncate_to(log.high_watermark)
        return int(log.log_end_offset)

    stack.enter_context(patch.object(fetcher_manager, "initial_fetch_offset", initial_fetch_offset))


def fetch_is_not_fenced(stack: ExitStack) -> None:
    """A leader answers a follower of any leader epoch, and a follower takes the answer (before
    KIP-320).
    """
    real = Partition.log_for
    stack.enter_context(
        patch.object(
            Partition, "log_for", lambda self, epoch, only_leader: real(self, -1, only_leader)
        )
    )


def high_watermark_over_the_committed_isr(stack: ExitStack) -> None:
    """While an expansion is pending the joining replica does not hold the high watermark back."""

    def least_log_end(self: Partition, leader_end: Any, now_ms: int) -> Any:
        ends = [
            replica.log_end
            for broker, replica in self.remote_replicas.items()
            if broker in self.isr_state.isr
        ]
        return min([leader_end, *ends], key=lambda end: end.offset)

    stack.enter_context(patch.object(Partition, "_least_log_end", least_log_end))


def expansion_without_the_epochs_start(stack: ExitStack) -> None:
    """A replica joins as soon as it reached the high watermark, though that has not reached the
    leader epoch yet (KAFKA-7128).
    """

    def maybe_expand(partition: Partition, replica: Any) -> None:
        state, log = partition.isr_state, partition.leader_log
        if (
            log is None
            or not isinstance(state, CommittedIsr)
            or replica.broker_id in state.isr
            or not partition.is_eligible(replica)
        ):
            return
        if replica.log_end.offset >= log.high_watermark:
            partition._propose_isr(state.expand(replica.broker_id), replica.last_fetch_ms)

    stack.enter_context(patch.object(Partition, "maybe_expand_isr", maybe_expand))


def produce_completed_on_the_log_end(stack: ExitStack) -> None:
    """acks=all is answered when the leader has it."""

    def enough(self: Partition, required_offset: int) -> ErrorCode | None:
        if self.leader_log is None:
            return self.refusal().code
        return ErrorCode.NONE if self.leader_log.log_end_offset >= required_offset else None

    stack.enter_context(patch.object(Partition, "enough_replicas_reached", enough))


def epoch_cache_not_cut(stack: ExitStack) -> None:
    """A truncation leaves the epochs of what it cut."""
    stack.enter_context(
        patch.object(LeaderEpochFileCache, "truncate_from_end", lambda self, end_offset: None)
    )


def isr_change_without_partition_epoch(stack: ExitStack) -> None:
    """The controller takes an ISR change that was made from an older state of the partition."""

    def check(partition: Any, sender: int, asked: Any) -> None:
        if asked.leader_epoch > partition.leader_epoch:
            raise BrokerError(ErrorCode.NOT_CONTROLLER)
        if asked.leader_epoch < partition.leader_epoch:
            raise BrokerError(ErrorCode.FENCED_LEADER_EPOCH)
        if sender != partition.leader:
            raise BrokerError(ErrorCode.INVALID_REQUEST)

    stack.enter_context(patch.object(alter_partition_decision, "_check_epochs", check))


def high_watermark_below_the_minimum_isr(stack: ExitStack) -> None:
    """The high watermark moves however few replicas are in sync (before KIP-966)."""

    def maybe_increment(self: Partition, now_ms: int) -> bool:
        log = self.leader_log
        if log is None:
            return False
        target = self._least_log_end(log.segments.log_end, now_ms)
        if target.offset <= log.high_watermark:
            return False
        log.set_high_watermark(target)
        return True

    stack.enter_context(patch.object(Partition, "maybe_increment_leader_hw", maybe_increment))


def old_incarnation_counted(stack: ExitStack) -> None:
    """Nobody asks under which broker epoch a follower fetched (before KIP-903)."""
    real_follower, real_proposal = Partition._follower, Partition.isr_proposal

    def follower(self: Partition, params: Any, request: Any) -> Any:
        epoch, params.replica_epoch = params.replica_epoch, -1
        try:
            return real_follower(self, params, request)
        finally:
            params.replica_epoch = epoch

    def is_eligible(self: Partition, replica: Any) -> bool:
        return replica.broker_epoch is not None and self.brokers.may_be_in_isr(replica.broker_id)

    def proposal(partition: Partition, pending: Any) -> IsrProposal:
        made = real_proposal(partition, pending)
        return made._replace(members=tuple((member, -1) for member, _ in made.members))

    stack.enter_context(patch.object(Partition, "_follower", follower))
    stack.enter_context(patch.object(Partition, "is_eligible", is_eligible))
    stack.enter_context(patch.object(Partition, "isr_proposal", proposal))


MUTATIONS: dict[str, Callable[[ExitStack], None]] = {
    each.__name__: each
    for each in (
        truncate_to_the_high_watermark,
        fetch_is_not_fenced,
        high_watermark_over_the_committed_isr,
        expansion_without_the_epochs_start,
        produce_completed_on_the_log_end,
        epoch_cache_not_cut,
        isr_change_without_partition_epoch,
        high_watermark_below_the_minimum_isr,
        old_incarnation_counted,
    )
}


@contextmanager
def switched_on(name: str) -> Iterator[None]:
    with ExitStack() as stack:
        MUTATIONS[name](stack)
        yield


def search(name: str, seeds: int = SEEDS, first: int = 0) -> tuple[int, Verdict] | None:
    """The first seed that catches a mutation, and what it says."""
    with switched_on(name):
        for seed in range(first, first + seeds):
            verdict = run_seed(seed)
            if verdict.violation is not None:
                return seed, verdict
    return None


def main(names: list[str]) -> None:
    from twisted.logger import globalLogBeginner

    globalLogBeginner.beginLoggingTo([], redirectStandardIO=False, discardBuffer=True)
    for name in names or MUTATIONS:
        found = search(name)
        caught = "not caught" if found is None else f"seed {found[0]}: {found[1].violation}"
        print(f"{name}: {caught}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
