"""The record that changes one partition: its replicas, its ISR, its eligible leader replicas, its
leader.

Owns `change_partition`, which turns what is wanted of a partition into the smallest
PartitionChangeRecord, or none.

1. With ELR (KIP-966) the ISR may become empty, and a replica that leaves it below the minimum ISR
   stays eligible; without ELR the last member stays.
2. After an unclean election the ISR is the new leader alone, nobody is eligible, and the partition
   is recovering.
3. The leader is named exactly when it changes (which raises the leader epoch), when a replica
   left the assignment (below 3.6 the ISR), or when a new leader epoch is what is wanted.
4. A reassignment whose target is in the ISR ends with this very record, whatever it was made for.
5. Nothing changed: no record.

Source: Kafka's `PartitionChangeBuilder`; KIP-455, KIP-966; `RL 8.3`. Not here: what a reassignment
is (`reassignment.py`), who leads (`election.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from twisted_broker.cluster.election import Acceptable, Candidates, Elected, Election, elect
from twisted_broker.cluster.reassignment import Assignment, completed
from twisted_broker.image.entries import (
    NO_LEADER,
    NO_LEADER_CHANGE,
    RECOVERING,
    UNASSIGNED,
    PartitionRegistration,
)
from twisted_broker.wire.messages.metadata_records import PartitionChangeRecord

ELR_FEATURE = "eligible.leader.replicas.version"


class PartitionRules:
    """What holds for the partitions of one topic: who may lead, whether ELR is on, the minimum ISR,
    which elections are allowed.

    `directory(broker)`: where a new replica on that broker lies. `shrink_begins_epoch`: a smaller
    ISR begins a leader epoch.
    """

    __slots__ = ("acceptable", "directory", "elr", "min_isr", "shrink_begins_epoch", "unclean")

    def __init__(
        self,
        acceptable: Acceptable,
        elr: bool,
        min_isr: int,
        unclean: bool,
        directory: Callable[[int], bytes] = lambda broker: UNASSIGNED,
        shrink_begins_epoch: bool = False,
    ) -> None:
        self.acceptable, self.elr, self.min_isr, self.unclean, self.directory = (
            acceptable,
            elr,
            min_isr,
            unclean,
            directory,
        )
        self.shrink_begins_epoch = shrink_begins_epoch

    @property
    def election(self) -> Election:
        return Election.UNCLEAN if self.unclean else Election.ONLINE


def change_partition(
    partition: PartitionRegistration,
    topic_id: bytes,
    number: int,
    rules: PartitionRules,
    *,
    isr: Sequence[int] | None = None,
    assignment: Assignment | None = None,
    unclean_shutdown: Collection[int] = (),
    recovery_state: int | None = None,
    directories: Sequence[bytes] | None = None,
    election: Election | None = None,
    begins_epoch: bool = False,
) -> PartitionChangeRecord | None:
    """The record for what is wanted (None: as it is), or None when nothing changes.

    `unclean_shutdown`: brokers that may have lost what they had; they cannot be eligible.
    `directories`: of the replicas as they are now. `begins_epoch`: the leader that stays gets a new
    leader epoch, too.
    """
    record = PartitionChangeRecord(partition_id=number, topic_id=topic_id)
    target = assignment or Assignment.of(partition)
    target_isr = list(partition.isr if isr is None else isr)
    target, target_isr = completed(target, target_isr) or (target, target_isr)
    elr = _next_elr(partition, target.replicas, target_isr, rules, unclean_shutdown)
    known = partition.last_known_elr if rules.elr else ()
    elected = elect(
        Candidates(target.replicas, target_isr, elr, known, partition.leader),
        rules.acceptable,
        election or rules.election,
    )
    unclean = _name_leader(record, partition, elected)
    if elected.leader != NO_LEADER and elected.leader not in target_isr:
        target_isr = [elected.leader]
        elr = [broker for broker in elr if broker != elected.leader]
    # The others may have what this leader lacks: they follow it before they count again.
    if unclean:
        target_isr, elr = [elected.leader], []
    if elected.leader != partition.leader:
        target, target_isr = completed(target, target_isr) or (target, target_isr)
        elr = [broker for broker in elr if broker in target.replicas]
    # A replica is removed: under a new leader epoch its late fetches no longer count, as in Kafka.
    begins_epoch = begins_epoch or not set(partition.replicas) <= set(target.replicas)
    if (target_isr or rules.elr) and tuple(target_isr) != partition.isr:
        record.isr = target_isr
        if rules.shrink_begins_epoch and not set(partition.isr) <= set(target_isr):
            begins_epoch = True
    if record.leader == NO_LEADER_CHANGE and begins_epoch:
        record.leader = partition.leader
    if tuple(elr) != partition.elr:
        record.eligible_leader_replicas = elr
    _remember_leader(record, partition, rules)
    if (
        recovery_state is not None
        and not unclean
        and recovery_state != partition.leader_recovery_state
    ):
        record.leader_recovery_state = recovery_state
    _assign(record, partition, target, directories, rules)
    return (
        None if record == PartitionChangeRecord(partition_id=number, topic_id=topic_id) else record
    )


def _next_elr(
    partition: PartitionRegistration,
    replicas: Sequence[int],
    isr: list[int],
    rules: PartitionRules,
    unclean_shutdown: Collection[int],
) -> list[int]:
    """The eligible leader replicas after the change."""
    if not rules.elr or len(isr) >= min(rules.min_isr, len(replicas)):
        return []
    seen = {*partition.elr, *partition.isr} & set(replicas)
    return sorted(broker for broker in seen if broker not in isr and broker not in unclean_shutdown)


def _assign(
    record: PartitionChangeRecord,
    partition: PartitionRegistration,
    target: Assignment,
    directories: Sequence[bytes] | None,
    rules: PartitionRules,
) -> None:
    """Writes what differs in the assignment into the record; a replica that stays keeps its
    directory.
    """
    known = dict(
        zip(
            partition.replicas,
            partition.directories if directories is None else directories,
            strict=True,
        )
    )
    places = tuple(
        known[replica] if replica in known else rules.directory(replica)
        for replica in target.replicas
    )
    if places != partition.directories:
        record.directories = list(places)
    if target.replicas != partition.replicas:
        record.replicas = list(target.replicas)
    if target.removing != partition.removing:
        record.removing_replicas = list(target.removing)
    if target.adding != partition.adding:
        record.adding_replicas = list(target.adding)


def _name_leader(
    record: PartitionChangeRecord, partition: PartitionRegistration, elected: Elected
) -> bool:
    """Writes a changed leader into the record; returns whether the election was unclean."""
    if elected.leader == partition.leader:
        return False
    record.leader = elected.leader
    if elected.unclean and partition.leader_recovery_state != RECOVERING:
        record.leader_recovery_state = RECOVERING
    return elected.unclean


def _remember_leader(
    record: PartitionChangeRecord, partition: PartitionRegistration, rules: PartitionRules
) -> None:
    """Keeps the last leader's name from the moment the ISR is empty until there is a leader
    again.
    """
    if not rules.elr:
        return
    if (
        record.isr is not None
        and not record.isr
        and partition.leader >= 0
        and partition.last_known_elr != (partition.leader,)
    ):
        record.last_known_elr = [partition.leader]
    elif partition.last_known_elr and (
        record.leader >= 0 or (partition.leader != NO_LEADER and record.leader != NO_LEADER)
    ):
        record.last_known_elr = []
