"""Known mistakes, planted one at a time in this process only: the tests must notice each.

Every mutation replaces a function of the production code by one with the mistake in it: those of
RELIABILITY 2.5 (the first twelve), those that a review proved or suspected to go unseen (the next
seven), and what someone who knows Kafka would fear. A mutation that finds no function to replace,
or one with other parameters, fails; so does one whose function never ran.

`python -m tests.simulation.mutations [NAME ..]` looks for the first seed that catches each.
`python -m pytest -p tests.simulation.planted TEST` runs a test with the mutation that the
environment variable REPLOG_MUTATION names.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from inspect import signature
from typing import Any
from unittest.mock import patch

from twisted.internet.defer import Deferred, succeed

from twisted_broker.api import transactional_produce
from twisted_broker.cluster import (
    alter_partition_decision,
    metadata_check,
    partition_change,
    quorum_state,
    snapshots,
)
from twisted_broker.cluster.cluster_view import ClusterView
from twisted_broker.cluster.controller import Controller
from twisted_broker.cluster.election import Candidates, Elected, Election
from twisted_broker.cluster.metadata_log import MetadataLog
from twisted_broker.coordinator import offset_metadata_manager
from twisted_broker.coordinator.consumer.group import ConsumerGroup
from twisted_broker.coordinator.consumer.migration import Upgrade
from twisted_broker.coordinator.coordinator_shard import CoordinatorShard
from twisted_broker.coordinator.group_entry import GroupEntry
from twisted_broker.coordinator.group_offsets import GroupOffsets
from twisted_broker.coordinator.offsets_store import ReplicaOffsetsStore
from twisted_broker.coordinator.streams.group import StreamsGroup
from twisted_broker.coordinator.transaction.transaction_marker_sender import (
    PendingCompletion,
    TransactionMarkerSender,
)
from twisted_broker.coordinator.transaction.transaction_metadata import (
    TransactionMetadata,
    TxnTransitMetadata,
)
from twisted_broker.coordinator.transaction.transaction_state_manager import (
    TransactionShard,
    TransactionStateManager,
)
from twisted_broker.image.entries import PartitionRegistration
from twisted_broker.log import (
    batch_scan,
    checkpoints,
    follower_append,
    meta_properties,
    producer_append,
    producer_rebuild,
    reading,
)
from twisted_broker.log import log as log_module
from twisted_broker.log.cleaner import batch_filter, log_cleaner
from twisted_broker.log.cleaner.batch_filter import BatchFilter
from twisted_broker.log.cleaner.cleaned_transactions import CleanedTransactions
from twisted_broker.log.cleaner.offset_map import OffsetMap
from twisted_broker.log.durability import Durability
from twisted_broker.log.leader_epochs import LeaderEpochFileCache
from twisted_broker.log.log import Log
from twisted_broker.log.producer_state import ProducerStateManager
from twisted_broker.log.verification import NOT_REQUIRED, VerificationStateEntry
from twisted_broker.replication.fetcher import fetched_logs, fetcher_manager
from twisted_broker.replication.fetcher.fetcher_state import PartitionFetchState
from twisted_broker.replication.partition.isr_state import CommittedIsr, IsrProposal, PendingShrink
from twisted_broker.replication.partition.partition import Partition
from twisted_broker.replication.partition.remote_replica import RemoteReplica
from twisted_broker.replication.replica_manager import ReplicaManager
from twisted_broker.share.in_flight import ARCHIVED
from twisted_broker.share.share_partition import SharePartition
from twisted_broker.share.share_partition_manager import SharePartitionManager
from twisted_broker.simulation.__main__ import Verdict, run_seed
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.records import BatchBuilder, BatchView

SEEDS = 200


class Planting:
    """Puts functions with a mistake in the place of others, until it is left. `ran`: how often
    each was called.
    """

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.ran: Counter[str] = Counter()

    def __call__(self, owner: Any, name: str, mistaken: Callable[..., Any]) -> None:
        """`owner` is the class or module that holds the function itself."""
        held = owner.__dict__[name]
        function = getattr(held, "__func__", held)
        wanted, given = list(signature(function).parameters), list(signature(mistaken).parameters)
        assert "arguments" in given or len(wanted) == len(given), (name, wanted, given)
        key = f"{owner.__name__}.{name}"
        self.ran[key] = 0

        def counted(*arguments: Any, **keywords: Any) -> Any:
            self.ran[key] += 1
            return mistaken(*arguments, **keywords)

        planted = staticmethod(counted) if isinstance(held, staticmethod) else counted
        self._stack.enter_context(patch.object(owner, name, planted))

    def check_ran(self) -> None:
        """A mistake that nothing calls proves nothing."""
        never = [key for key, times in self.ran.items() if not times]
        assert not never, f"never called: {never}"


def truncate_to_the_high_watermark(plant: Planting) -> None:
    """A new follower cuts its log to its own high watermark, whatever the leader's epochs say
    (before KIP-101).
    """

    def initial_fetch_offset(log: Any, truncates_on_fetch: bool) -> int:
        log.truncate_to(log.high_watermark)
        return int(log.log_end_offset)

    plant(fetcher_manager, "initial_fetch_offset", initial_fetch_offset)


def fetch_is_not_fenced(plant: Planting) -> None:
    """A leader answers a follower of any leader epoch, and a follower takes the answer (before
    KIP-320).
    """
    real = Partition.log_for
    plant(Partition, "log_for", lambda self, epoch, only_leader: real(self, -1, only_leader))


def high_watermark_over_the_committed_isr(plant: Planting) -> None:
    """While an expansion is pending the joining replica does not hold the high watermark back."""

    def least_log_end(self: Partition, leader_end: Any, now_ms: int) -> Any:
        ends = [
            replica.log_end
            for broker, replica in self.remote_replicas.items()
            if broker in self.isr_state.isr
        ]
        return min([leader_end, *ends], key=lambda end: end.offset)

    plant(Partition, "_least_log_end", least_log_end)


def expansion_without_the_epochs_start(plant: Planting) -> None:
    """A replica joins as soon as it reached the high watermark, though that has not reached the
    leader epoch yet (KAFKA-7128).
    """

    def maybe_expand(partition: Partition, replica: Any) -> None:
        state, log = partition.isr_state, partition.leader_log
        if (
            log is None
            or not isinstance(state, CommittedIsr)
            or replica.broker_id in state.isr
            or not partition.is_isr_eligible(replica)
        ):
            return
        if replica.log_end.offset >= log.high_watermark:
            partition.propose_isr(state.expand(replica.broker_id), replica.last_fetch_ms)

    plant(Partition, "maybe_expand_isr", maybe_expand)


def produce_completed_on_the_log_end(plant: Planting) -> None:
    """acks=all is answered when the leader has it."""

    def enough(self: Partition, required_offset: int) -> ErrorCode | None:
        if self.leader_log is None:
            return self.refusal().code
        return ErrorCode.NONE if self.leader_log.log_end_offset >= required_offset else None

    plant(Partition, "enough_replicas_reached", enough)


def epoch_cache_not_cut(plant: Planting) -> None:
    """A truncation leaves the epochs of what it cut."""
    plant(LeaderEpochFileCache, "truncate_from_end", lambda self, end_offset: None)


def isr_change_without_partition_epoch(plant: Planting) -> None:
    """The controller takes an ISR change that was made from an older state of the partition."""

    def check(partition: Any, sender: int, asked: Any) -> None:
        if asked.leader_epoch > partition.leader_epoch:
            raise BrokerError(ErrorCode.NOT_CONTROLLER)
        if asked.leader_epoch < partition.leader_epoch:
            raise BrokerError(ErrorCode.FENCED_LEADER_EPOCH)
        if sender != partition.leader:
            raise BrokerError(ErrorCode.INVALID_REQUEST)

    plant(alter_partition_decision, "_check_epochs", check)


def high_watermark_below_the_minimum_isr(plant: Planting) -> None:
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

    plant(Partition, "maybe_increment_leader_hw", maybe_increment)


def old_incarnation_counted(plant: Planting) -> None:
    """Nobody asks under which broker epoch a follower fetched (before KIP-903)."""
    real_follower, real_proposal = Partition._follower, Partition.isr_proposal

    def follower(self: Partition, params: Any, request: Any) -> Any:
        epoch, params.replica_epoch = params.replica_epoch, -1
        try:
            return real_follower(self, params, request)
        finally:
            params.replica_epoch = epoch

    def is_isr_eligible(self: Partition, replica: Any) -> bool:
        return replica.broker_epoch is not None and self.brokers.may_be_in_isr(replica.broker_id)

    def proposal(partition: Partition, pending: Any) -> IsrProposal:
        made = real_proposal(partition, pending)
        return made._replace(members=tuple((member, -1) for member, _ in made.members))

    plant(Partition, "_follower", follower)
    plant(Partition, "is_isr_eligible", is_isr_eligible)
    plant(Partition, "isr_proposal", proposal)


def recovery_point_before_the_flush(plant: Planting) -> None:
    """The checkpoint says where the log ends, synced or not: recovery trusts what was never on the
    disk.
    """
    real = Durability.point_to_checkpoint

    def point_to_checkpoint(self: Durability, synced_upto: int | None = None) -> int:
        return real(self, self._segments.log_end_offset)

    plant(Durability, "point_to_checkpoint", point_to_checkpoint)


def recovery_point_moved_with_the_sync(plant: Planting) -> None:
    """The recovery point moves when a sync begins, not when it is done."""
    real = Durability._submit_sync

    def submit(self: Durability, disk: Any, upto: int) -> None:
        real(self, disk, upto)
        self.recovery_point = max(self.recovery_point, upto)

    plant(Durability, "_submit_sync", submit)


def checkpoint_renamed_without_sync(plant: Planting) -> None:
    """A small file is put in its place before its content is durable."""
    real = checkpoints.write_aside

    def write_aside(files: Any, path: str, content: bytes, sync: bool = True) -> None:
        real(files, path, content, sync=False)

    for module in (checkpoints, metadata_check, quorum_state):
        plant(module, "write_aside", write_aside)
    for module in (snapshots, meta_properties):  # not in every run
        plant(module, "write_aside", write_aside)
        plant.ran.pop(f"{module.__name__}.write_aside")


def aborted_transactions_forgotten(plant: Planting) -> None:
    """A read_committed fetch is not told which transactions were aborted (KAFKA-5376)."""
    plant(reading, "aborted_transactions", lambda segments, offset, upper_bound: [])


def duplicate_acknowledged_at_once(plant: Planting) -> None:
    """A batch that came again is acknowledged though its first arrival may not be replicated."""
    real = Log._duplicate_info

    def duplicate_info(self: Log, found: Any, attributes: int, records_count: int) -> Any:
        info = real(self, found, attributes, records_count)
        info.last_offset = -1
        return info

    plant(Log, "_duplicate_info", duplicate_info)


def recovery_without_crc(plant: Planting) -> None:
    """Recovery takes any bytes that look like a batch."""
    plant(batch_scan, "_checked", lambda chunk, at, place: BatchView(chunk, at))


def flush_never_syncs(plant: Planting) -> None:
    """A flush only says that it synced."""

    def flush(self: Durability, upto: int | None = None) -> None:
        upto = self._segments.log_end_offset if upto is None else upto
        self.recovery_point = max(self.recovery_point, upto)

    plant(Durability, "flush", flush)


def clean_stop_syncs_nothing(plant: Planting) -> None:
    """The mark of a clean stop is written, the records below it are not durable."""

    def finish(self: Log) -> Callable[[], None]:
        if self.failed is None:
            self.segments.active.become_inactive()
            self.producers.take_snapshot()
        return lambda: None

    plant(Log, "finish", finish)


def duplicates_not_recalled(plant: Planting) -> None:
    """After a restart only the last batch of each producer is known."""
    plant(producer_rebuild, "recover_producer_batches", lambda segments, producers: None)


def producers_forgotten_on_a_follower(plant: Planting) -> None:
    """A follower keeps no producer state: once it leads, a retry is written again."""
    real = follower_append.write_run

    def write_run(log: Log, records: Any, run: Any) -> None:
        real(log, records, run)
        log.producers.producers.clear()

    plant(follower_append, "write_run", write_run)


def metadata_not_synced(plant: Planting) -> None:
    """The controller commits what is not on its disk."""
    plant(MetadataLog, "_unsynced", lambda self, upto: [])


def high_watermark_from_the_leaders_own_end(plant: Planting) -> None:
    """What the leader has counts as replicated."""
    plant(Partition, "_least_log_end", lambda self, leader_end, now_ms: leader_end)


def expansion_before_caught_up(plant: Planting) -> None:
    """A follower joins the ISR with its first fetch, wherever it is."""

    def maybe_expand(self: Partition, replica: RemoteReplica) -> None:
        state = self.isr_state
        if (
            self.leader_log is not None
            and isinstance(state, CommittedIsr)
            and replica.broker_id not in state.isr
            and self.is_isr_eligible(replica)
        ):
            self.propose_isr(state.expand(replica.broker_id), replica.last_fetch_ms)

    plant(Partition, "maybe_expand_isr", maybe_expand)


def old_leader_changes_the_isr(plant: Planting) -> None:
    """The controller takes an ISR change from whoever sends it, of any leader epoch."""
    plant(alter_partition_decision, "_check_epochs", lambda partition, sender, requested: None)


def followers_remembered_over_a_leader_change(plant: Planting) -> None:
    """A new leader believes what it knew of its followers when it led before."""
    plant(RemoteReplica, "reset", lambda self, now_ms, leader_end, leader_is_new, in_isr: None)


def followers_mark_beyond_its_end(plant: Planting) -> None:
    """A follower takes the leader's high watermark as it is."""

    def follow(self: Partition, leader_high_watermark: int) -> bool:
        marks = self.followed_log().watermarks
        before, marks.high_watermark = marks.high_watermark, leader_high_watermark
        return before < leader_high_watermark

    plant(Partition, "follow_high_watermark", follow)


def truncation_below_the_high_watermark(plant: Planting) -> None:
    """A follower truncates one record more than it must."""
    real = vars(fetched_logs)["truncation_for"]

    def truncation_for(leader: Any, fetch_offset: int, own: Any) -> Any:
        found = real(leader, fetch_offset, own)
        return found._replace(offset=max(0, found.offset - 1))

    plant(fetched_logs, "truncation_for", truncation_for)


def snapshot_without_a_record(plant: Planting) -> None:
    """A metadata snapshot lacks a partition of each topic."""
    real = vars(snapshots)["image_records"]

    def image_records(image: Any) -> Iterator[Any]:
        return (record for record in real(image) if getattr(record, "partition_id", 1) != 0)

    plant(snapshots, "image_records", image_records)


def metadata_applied_before_it_is_durable(plant: Planting) -> None:
    """The controller answers and shows a change before its sync is done."""
    real = Controller.write

    def write(self: Controller, found: Any, prepared: Any = None) -> Deferred[int]:
        done = real(self, found, prepared)
        if self.log.failed is None:
            self._committed(self.log.end_offset)
        return done

    plant(Controller, "write", write)


def offset_commit_acknowledged_before_replication(plant: Planting) -> None:
    """A group's commit is answered when the coordinator's own log has it."""
    real = ReplicaOffsetsStore.append

    def append(
        self: ReplicaOffsetsStore, index: int, batch: bytes, timeout_ms: int, guard: Any = None
    ) -> Any:
        done = real(self, index, batch, timeout_ms, guard)
        if done.called:
            return done
        done.addErrback(lambda failure: None)
        return succeed(self.bounds(index)[1] - 1)

    plant(ReplicaOffsetsStore, "append", append)


def partition_given_before_it_is_free(plant: Planting) -> None:
    """A member of a consumer group gets what another has not given up yet."""
    plant(ConsumerGroup, "has_owner", lambda self, partition: False)


def leader_epoch_not_raised(plant: Planting) -> None:
    """A new leader leads under the epoch of the one before."""
    real = PartitionRegistration.changed
    plant(
        PartitionRegistration,
        "changed",
        lambda self, record: real(self, record)._replace(leader_epoch=self.leader_epoch),
    )


def elected_outside_the_isr(plant: Planting) -> None:
    """Any replica that lives may lead, and nobody calls it unclean."""

    def elect(
        candidates: Candidates, acceptable: Callable[[int], bool], election: Election
    ) -> Elected:
        living = [broker for broker in candidates.replicas if acceptable(broker)]
        return Elected(living[0] if living else -1, False)

    plant(partition_change, "elect", elect)


def unclean_stop_forgotten(plant: Planting) -> None:
    """Who may have lost what was not synced stays eligible to lead (KIP-966)."""
    real = ClusterView.changes_without_broker

    def changes(self: ClusterView, broker_id: int, *arguments: Any, **keywords: Any) -> Any:
        return real(self, broker_id, **keywords | {"unclean": False})

    plant(ClusterView, "changes_without_broker", changes)


def shrunk_isr_counts_before_the_answer(plant: Planting) -> None:
    """A leader counts a follower out before the controller has: it may still be elected."""
    real = PendingShrink.__init__

    def init(self: PendingShrink, last_committed: CommittedIsr, leaving: frozenset[int]) -> None:
        real(self, last_committed, leaving)
        self.maximal_isr = self.proposed

    plant(PendingShrink, "__init__", init)


def late_fetch_answers_count(plant: Planting) -> None:
    """A follower appends an answer that was requested at another offset or epoch."""
    plant(PartitionFetchState, "is_as_requested", lambda self, requested: True)


def failed_partitions_tell_nobody(plant: Planting) -> None:
    """A log directory fails, and the fetches that wait for its partitions are not woken."""
    plant(ReplicaManager, "_stop_failed", lambda self, failed, reason: iter(()))


def sequences_not_checked(plant: Planting) -> None:
    """An idempotent producer's retry is a new batch."""
    plant(log_module, "check_append", lambda *arguments: None)


# transactions


def transactional_append_not_verified(plant: Planting) -> None:
    """A leader takes a transactional batch whether or not the coordinator knows of it (KIP-890);
    where it adds the partition itself, that still comes first.
    """
    real = vars(transactional_produce)["verify"]

    async def verify(context: Any, transactional_id: str, entries: Any) -> Any:
        if context.version < 12:
            return {place: NOT_REQUIRED for place, _ in entries}, {}
        return await real(context, transactional_id, entries)

    plant(transactional_produce, "verify", verify)
    plant(producer_append, "_check_verified", lambda *arguments: None)


def marker_ends_the_next_verification(plant: Planting) -> None:
    """Under version 2 a transaction that began before the markers of the one before were written is
    refused for good, and nobody asks again.
    """
    waiting = transactional_produce.EndOfTheOneBefore
    real = waiting.is_worth_asking_again

    async def is_worth_asking_again(self: Any, codes: Any, guards: Any) -> bool:
        return await real(self, codes, {})

    plant(waiting, "is_worth_asking_again", is_worth_asking_again)
    plant(VerificationStateEntry, "outlives", lambda self, producer, marker_epoch: False)


def open_transactions_are_stable(plant: Planting) -> None:
    """The last stable offset is the high watermark."""
    plant(ProducerStateManager, "first_unstable_offset", lambda self: -1)


def open_transactions_forgotten_on_a_follower(plant: Planting) -> None:
    """A follower does not note which transactions are open: once it leads, they are shown."""
    real = follower_append.write_run

    def write_run(log: Log, records: Any, run: Any) -> None:
        real(log, records, run)
        log.producers.ongoing.clear()
        for entry in log.producers.producers.values():
            entry.current_txn_first_offset = -1
        log.watermarks.update_first_unstable()

    plant(follower_append, "write_run", write_run)


def pending_offsets_are_shown(plant: Planting) -> None:
    """Whoever wants stable offsets gets the ones before the transaction that ends just now."""
    plant(GroupOffsets, "is_unstable", lambda self, partition: False)


def completed_without_markers(plant: Planting) -> None:
    """A transaction is complete when it is prepared, and nobody is sent a marker."""
    real = TransactionMarkerSender.send

    def send(self: TransactionMarkerSender, pending: PendingCompletion) -> None:
        pending.metadata.partitions = set()
        real(self, pending)

    plant(TransactionMarkerSender, "send", send)


def prepared_not_resumed(plant: Planting) -> None:
    """A new coordinator leaves what the one before had prepared as it is."""

    def resume_steps(
        self: TransactionStateManager, shard: TransactionShard, prepared: Any
    ) -> Iterator[None]:
        return iter(())

    plant(TransactionStateManager, "_resume_steps", resume_steps)


def timed_out_not_aborted(plant: Planting) -> None:
    """A transaction stays open for as long as its producer is away."""
    plant(TransactionStateManager, "timed_out", lambda self, wall_ms: iter(()))


def markers_of_an_old_coordinator_count(plant: Planting) -> None:
    """A leader writes the marker of a coordinator that another one has followed."""
    plant(producer_append, "_check_coordinator_epoch", lambda entry, coordinator_epoch: None)


def transactions_share_an_epoch(plant: Planting) -> None:
    """The end of a transaction does not raise its producer's epoch (before KIP-890)."""
    real = TransactionMetadata.prepare_abort_or_commit

    def prepare(self: TransactionMetadata, *arguments: Any, **more: Any) -> TxnTransitMetadata:
        made = real(self, *arguments, **more)
        if more.get("is_fence"):
            return made
        return replace(
            made,
            producer_epoch=self.producer_epoch,
            last_producer_epoch=self.last_producer_epoch,
        )

    plant(TransactionMetadata, "prepare_abort_or_commit", prepare)


def new_instance_does_not_fence(plant: Planting) -> None:
    """A new instance of a transactional id gets the epoch of the one before."""
    real = TransactionMetadata.prepare_increment_producer_epoch

    def prepare(self: TransactionMetadata, *arguments: Any) -> TxnTransitMetadata:
        made = replace(real(self, *arguments), producer_epoch=max(0, self.producer_epoch))
        self.pending = made.state
        return made

    plant(TransactionMetadata, "prepare_increment_producer_epoch", prepare)


# cleaning


def last_value_cleaned_away(plant: Planting) -> None:
    """Of each key the cleaner takes the newest record as well."""
    plant(OffsetMap, "mark_newest", lambda self: None)


def cleaned_above_the_last_stable_offset(plant: Planting) -> None:
    """The cleaner goes on where a transaction is not decided."""
    real = vars(log_cleaner)["log_to_clean"]

    class AllStable:
        def __init__(self, log: Log) -> None:
            self._log, self.last_stable_offset = log, log.log_end_offset

        def __getattr__(self, name: str) -> Any:
            return getattr(self._log, name)

    def log_to_clean(log: Log, checkpoint: int | None, wall_ms: int) -> Any:
        return real(AllStable(log), checkpoint, wall_ms)._replace(log=log)

    plant(log_cleaner, "log_to_clean", log_to_clean)


def tombstone_cleaned_too_early(plant: Planting) -> None:
    """A tombstone goes with what it deletes: a reader that has the value never hears of it."""
    plant(BatchFilter, "_is_over", lambda self, batch: True)


def aborted_records_replace_others(plant: Planting) -> None:
    """The cleaner takes the records of an aborted transaction for newer values."""

    def can_discard(self: CleanedTransactions, batch: BatchView) -> bool:
        return False

    plant(CleanedTransactions, "can_discard", can_discard)


def last_sequence_cleaned_away(plant: Planting) -> None:
    """The last batch of a producer goes with its records: its sequence is not known any more."""

    def must_stay(self: BatchFilter, batch: BatchView) -> bool:
        return batch.next_offset == self._upper_bound

    plant(BatchFilter, "_must_stay", must_stay)


def offsets_change_in_cleaning(plant: Planting) -> None:
    """What stays of a batch moves together."""
    real = vars(batch_filter)["_rebuilt"]

    def rebuilt(batch: BatchView, kept: set[int], delete_horizon_ms: int | None) -> bytes:
        made = BatchView(real(batch, kept, delete_horizon_ms))
        builder = BatchBuilder(
            base_offset=batch.base_offset,
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            base_sequence=batch.base_sequence,
            is_transactional=batch.is_transactional,
            is_control=batch.is_control,
            leader_epoch=batch.partition_leader_epoch,
            delete_horizon_ms=delete_horizon_ms,
        )
        for delta, record in enumerate(made.records()):
            builder.append(record.timestamp, record.key, record.value, record.headers, delta)
        return builder.build(last_offset_delta=batch.last_offset_delta)

    plant(batch_filter, "_rebuilt", rebuilt)


# groups of both protocols


def upgrade_forgets_the_generation(plant: Planting) -> None:
    """The epochs of a consumer group begin anew that was a classic one with members."""
    real = Upgrade.__init__

    def init(self: Upgrade, group: Any) -> None:
        real(self, group)
        self._generation = 0

    plant(Upgrade, "__init__", init)


def offsets_lost_with_an_upgrade(plant: Planting) -> None:
    """A group that takes a classic one's place begins without its offsets."""
    real = CoordinatorShard.begin_modern_group

    def begin(self: CoordinatorShard, group: Any, entry: GroupEntry | None) -> None:
        real(self, group, entry)
        self.groups[group.group_id] = GroupEntry(group)

    plant(CoordinatorShard, "begin_modern_group", begin)


# streams groups


def task_given_before_it_is_free(plant: Planting) -> None:
    """A process gets an active task that another has not given up yet."""
    plant(StreamsGroup, "is_active_somewhere", lambda self, task: False)


def any_commit_of_a_streams_group(plant: Planting) -> None:
    """It takes what a process commits that is not in the group any more."""

    def check(
        group: Any, member_id: str, member_epoch: int, partitions: Any, knows_member_epochs: bool
    ) -> None:
        pass

    plant(offset_metadata_manager, "check_streams_commit", check)


# share groups


def lock_not_checked(plant: Planting) -> None:
    """A member acknowledges what another has."""
    real = SharePartition.__dict__["_check_held"].__func__

    def check(member: str, run: Any, batch: Any) -> None:
        real(run.member if run.is_held else member, run, batch)

    plant(SharePartition, "_check_held", check)


def acceptance_answered_before_it_is_written(plant: Planting) -> None:
    """An acknowledgement is answered when it is sent to the share coordinator."""
    real = SharePartitionManager._store

    def store(self: SharePartitionManager, held: Any, write: Any) -> Any:
        real(self, held, write)
        return succeed(None)

    plant(SharePartitionManager, "_store", store)


def given_back_is_over(plant: Planting) -> None:
    """What a member gives back, or has for too long, is not delivered again."""
    plant(SharePartition, "_given_back", lambda self, run, delivery_count_limit: ARCHIVED)


MUTATIONS: dict[str, Callable[[Planting], None]] = {
    each.__name__: each
    for each in (
        truncate_to_the_high_watermark,
        partition_given_before_it_is_free,
        fetch_is_not_fenced,
        high_watermark_over_the_committed_isr,
        expansion_without_the_epochs_start,
        isr_change_without_partition_epoch,
        old_incarnation_counted,
        high_watermark_below_the_minimum_isr,
        recovery_point_before_the_flush,
        recovery_point_moved_with_the_sync,
        checkpoint_renamed_without_sync,
        epoch_cache_not_cut,
        produce_completed_on_the_log_end,
        aborted_transactions_forgotten,
        duplicate_acknowledged_at_once,
        recovery_without_crc,
        flush_never_syncs,
        clean_stop_syncs_nothing,
        duplicates_not_recalled,
        producers_forgotten_on_a_follower,
        metadata_not_synced,
        high_watermark_from_the_leaders_own_end,
        expansion_before_caught_up,
        old_leader_changes_the_isr,
        followers_remembered_over_a_leader_change,
        followers_mark_beyond_its_end,
        truncation_below_the_high_watermark,
        snapshot_without_a_record,
        metadata_applied_before_it_is_durable,
        offset_commit_acknowledged_before_replication,
        leader_epoch_not_raised,
        elected_outside_the_isr,
        unclean_stop_forgotten,
        shrunk_isr_counts_before_the_answer,
        late_fetch_answers_count,
        failed_partitions_tell_nobody,
        sequences_not_checked,
        transactional_append_not_verified,
        marker_ends_the_next_verification,
        open_transactions_are_stable,
        open_transactions_forgotten_on_a_follower,
        pending_offsets_are_shown,
        completed_without_markers,
        prepared_not_resumed,
        timed_out_not_aborted,
        markers_of_an_old_coordinator_count,
        transactions_share_an_epoch,
        new_instance_does_not_fence,
        last_value_cleaned_away,
        cleaned_above_the_last_stable_offset,
        tombstone_cleaned_too_early,
        aborted_records_replace_others,
        last_sequence_cleaned_away,
        offsets_change_in_cleaning,
        upgrade_forgets_the_generation,
        offsets_lost_with_an_upgrade,
        task_given_before_it_is_free,
        any_commit_of_a_streams_group,
        lock_not_checked,
        acceptance_answered_before_it_is_written,
        given_back_is_over,
    )
}


@contextmanager
def planted(name: str) -> Iterator[Planting]:
    """The mistake is in the production code within."""
    with ExitStack() as stack:
        planting = Planting(stack)
        MUTATIONS[name](planting)
        yield planting


@contextmanager
def switched_on(name: str) -> Iterator[None]:
    """The same, and every function with a mistake must have run when it is left in order."""
    with planted(name) as planting:
        yield
        planting.check_ran()


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
        try:
            found = search(name)
        except AssertionError as error:
            print(f"{name}: not caught, {error}", flush=True)
            continue
        caught = "not caught" if found is None else f"seed {found[0]}: {found[1].violation}"
        print(f"{name}: {caught}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
