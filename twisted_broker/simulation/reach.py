"""Counts of the events of simulated runs, by kind: a run without events proves nothing.

Owns `KINDS`, the table of what the seeds must reach, and `DARK`, what they cannot; `Reach`, the
counts of one run; `Total`, those of many runs, its table and what is missing in it.

1. A kind that is counted is in the table, but for answers to clients, faults, and what an operator
   did, which are counted under their names.
2. `Total.missing` names the kinds that no run reached. One broker, or few seeds, cannot reach all.

Source: FoundationDB's coverage marks. Not here: where things
are counted (`simulation/probes.py`, `simulation/image_counts.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

KINDS = {
    # logs
    "roll by size": "a segment of a topic was full",
    "roll by index": "the offset index of a segment was full",
    "roll by time index": "its time index was full",
    "roll by time": "a segment was old enough",
    "roll of metadata": "the metadata log began a segment behind a snapshot",
    "producer snapshot": "the state of producers, not empty, was written",
    "producer snapshot loaded": "and read, not empty",
    "producers rebuilt later": "in slices, after the truncation or the start",
    "duplicate": "a batch came again and was answered from producer state",
    "log start moved": "of a topic's replica",
    "retention by size": "segments were deleted",
    "retention by time": "segments were deleted",
    "retention by log start": "segments below the log start were deleted",
    "DeleteRecords": "moved the log start of a leader",
    "truncation by epoch": "a follower dropped records where its leader diverged",
    "truncation below high watermark": "after an unclean election, or to copy it again",
    "truncation out of range": "a follower dropped all, to begin at its leader's start",
    "truncation over segments": "a truncation removed whole segments",
    "fetched again": "a follower came too late for the end of a transaction",
    "full truncation": "a log was emptied",
    "recovery": "segments were checked after an unclean stop",
    "recovery of several segments": "of one log",
    "recovery dropped a tail": "bytes behind the last good batch",
    "clean start": "a log was loaded after a clean stop",
    "sync of a log": "by roll, flush.messages or flush.ms",
    # replication
    "fetch fenced": "a follower's answer under an older leader epoch",
    "fetch diverged": "the leader said where the logs diverge",
    "fetch out of range": "a follower was outside of its leader's log",
    "fetch stale": "an answer that did not count any more",
    "fetch refused": "another error, tried again",
    "ISR shrink": "the controller took a replica out of an ISR",
    "ISR expansion": "and into one",
    "ISR change refused": "the controller refused a leader's proposal",
    "leader change": "another broker leads",
    "no leader": "a partition lost its leader",
    "unclean election": "of a replica that may lack records",
    "election from the ELR": "of an eligible leader replica (KIP-966)",
    "high watermark checkpoint read": "with a value above 0",
    "throttled by the leader": "a follower that is not in sync got nothing for now",
    "throttled by the follower": "what lags was not requested for now",
    "replica moved": "a copy took its log's place in another directory",
    "move began again": "of a copy that a restart found",
    "move ended before": "it was cancelled, or its replica went",
    # the cluster
    "controller started": "a new epoch of the controller began",
    "session expired": "the controller fenced a broker that was silent",
    "controlled shutdown": "a broker handed its leaderships over",
    "broker registered again": "under a new epoch",
    "metadata transaction": "a decision took several batches",
    "metadata snapshot": "by the controller",
    "metadata snapshot of a broker": "of its own log",
    "metadata snapshot fetched": "a broker was too far behind the log's start",
    "topic deleted": "under load",
    "topic made again": "under the same name",
    "replica deleted": "a broker removed its log of a deleted topic",
    "replica deleted at a start": "a record had removed it while its broker was away",
    "reassignment begun": "replicas are added to a partition",
    "reassignment ended": "they are in its ISR, the others are gone",
    "setting changed": "of a topic",
    "directory failed": "one of a broker's several",
    "replica moved from a failed directory": "the controller took it as lost and elected another",
    "directory assigned": "a broker told the controller where a replica is",
    "refused by the controller": "its metadata was damaged, gone, or older: an operator rebuilt it",
    "refused by a broker": "the controller's was older than its own, or another cluster's",
    "controller apart": "and no broker runs in its process",
    # producers
    "batch without an answer": "acks=0: it went out",
    "batch of its leader alone": "acks=1: it was acknowledged",
    "five batches in flight": "of one producer, to one partition",
    "compressed batch": "was acknowledged",
    # the disk under the reactor
    "reactor waits for a read": "of what was in memory no longer",
    "reactor waits for a write": "while too much was not on the disk yet",
    "stale roles": "a process stood still for long: others may have what it coordinates",
    "session expired in a wait": "the controller fenced the broker meanwhile",
    # groups
    "group rebalance": "a generation of members began",
    "offsets loaded": "a coordinator read groups that were not empty",
    "coordinator moved": "groups were unloaded",
    "member expired": "a session of a member ran out",
    "offsets topic refused": "fewer brokers had joined than it has replicas",
    "offset commit": "was acknowledged to a member",
    "late commit refused": "of a member that stalled until its generation was over",
    "partition given to a member": "of a consumer group",
    "partition revoked": "a member of a consumer group gave it up while it was in the group",
    "partition of a lost member given away": "it had not heard yet that it was out of the group",
    "consumer group member began anew": "it left, or was fenced",
    "consumer group member expired": "its session, or its time to give partitions up, ran out",
    "consumer group loaded": "by a coordinator",
    # groups of both protocols
    "group upgraded": "a classic group with members became a consumer group",
    "group downgraded": "and became classic again, with its classic members",
    "empty group replaced": "by one of the other kind",
    "classic member in a consumer group": "it was given partitions",
    "classic generation of a mixed group": "its members assigned",
    # streams groups
    "task given to a streams member": "an active one",
    "standby task given to a streams member": "of a subtopology with a state",
    "task revoked": "a member gave it up while it was in the group",
    "streams group had to wait": "for a topic",
    # share groups
    "share records delivered": "to a member",
    "share records delivered again": "a second time or more",
    "share record accepted": "some in a row, as the answer says",
    "share record released": "so that another may have them",
    "share record rejected": "never to be delivered again",
    "share record renewed": "their locks are longer",
    "share lock timed out": "records came free",
    "share leader moved under a lock": "another leader, or process, delivered what a member had",
    "share start offset moved": "over what is finished",
    "share state read": "with records in flight, by a leader",
    "share coordinator loaded": "with share partitions",
    # transactions
    "transaction committed": "as its producer was answered",
    "transaction aborted": "as its producer was answered",
    "transaction begun at once, version 1": "with the answer to the end of the one before",
    "transaction begun at once, version 2": "with the answer to the end of the one before",
    "verification outlived a marker": "of the transaction before",
    "verification ended by a marker": "before the coordinator's answer was used",
    "batch of an aborted transaction": "came late, at a leader",
    "transaction left open": "its producer went away in the middle",
    "transaction timed out": "its coordinator aborted it",
    "transactional producer fenced": "by another instance, or by a timeout",
    "offset in a transaction": "was taken by the group's coordinator",
    "transactions loaded": "a coordinator read transactional ids",
    "transaction coordinator moved": "transactional ids were unloaded",
    "markers sent again": "after an error, or none could be sent",
    "markers after a failover": "by a coordinator that found a prepared transaction",
    "aborted records skipped": "by a consumer of committed records",
    # compacted logs
    "log cleaned": "segments were replaced",
    "segments merged by cleaning": "several became one",
    "log of a coordinator cleaned": "of groups or transactions",
    "delete horizon passed": "of a tombstone, or a marker of which nothing is left",
    "compacted log read": "by a reader of committed records, from its start to its end",
}
"""Kind -> what it is."""


DARK = {
    "truncation by high watermark": "a log that holds records knows their epochs: only one "
    "that was written before KIP-101 has none",
}
"""Kind -> why no seed reaches it."""

ENOUGH_SEEDS = 100
"""So many seeds with three brokers reach every kind but rare ones; twenty leave a handful out."""


class Reach:
    """The counts of one run. `counts`: kind -> how often."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def count(self, kind: str, times: int = 1) -> None:
        assert kind in KINDS or kind in DARK, kind
        self.counts[kind] += times

    def fault(self, name: str) -> None:
        """A fault struck."""
        self.counts[f"fault: {name}"] += 1

    def by_hand(self, what: str) -> None:
        """An operator had to do something."""
        self.counts[f"by hand: {what}"] += 1

    def answer(self, api: str, code: str) -> None:
        """A client was answered an error."""
        self.counts[f"{api}: {code}"] += 1


class Total:
    """The counts of many runs. `wanted`: what must not be missing."""

    def __init__(self, wanted: Mapping[str, str] = KINDS) -> None:
        self.wanted = wanted
        self.counts: Counter[str] = Counter()
        self.seeds: Counter[str] = Counter()
        """kind -> how many runs reached it"""
        self.runs = 0

    def add(self, counts: Mapping[str, int]) -> None:
        """One more run."""
        self.runs += 1
        self.counts.update(counts)
        self.seeds.update([kind for kind, times in counts.items() if times])

    def missing(self) -> list[str]:
        """What no run reached."""
        return [kind for kind in self.wanted if not self.counts[kind]]

    def table(self) -> str:
        """A line for each kind: how often in all, and in how many runs."""
        others = sorted(kind for kind in self.counts if kind not in self.wanted)
        kinds = [*self.wanted, *others]
        width = max(map(len, kinds))
        return f"{'reached':{width}} {'times':>8} {'runs':>6}\n" + "".join(
            f"{kind:{width}} {self.counts[kind]:8} {self.seeds[kind]:6}\n" for kind in kinds
        )
