"""A share partition by short words, for tests.

`0-9` are the offsets of a batch; what was acquired reads `0-9x1`; a state `0-4 ack, 5-9 free x1`.
"""

from twisted_broker.coordinator.share_state.values import ReadState, StateBatch
from twisted_broker.share.in_flight import ACKNOWLEDGED, ACQUIRED, ARCHIVED, AVAILABLE
from twisted_broker.share.share_partition import (
    ACCEPT,
    BATCH_OPTIMIZED,
    GAP,
    RECORD_LIMIT,
    REJECT,
    RELEASE,
    RENEW,
    Acknowledgement,
    LogBatch,
    ShareLimits,
    SharePartition,
)

KINDS = {"gap": GAP, "accept": ACCEPT, "release": RELEASE, "reject": REJECT, "renew": RENEW}
STATES = {AVAILABLE: "free", ACQUIRED: "held", ACKNOWLEDGED: "ack", ARCHIVED: "arch"}
CODES = {word: state for state, word in STATES.items()}


def span(text):
    first, _, last = text.partition("-")
    return int(first), int(last or first)


class ShareRun:
    """At `now` 0 with locks of 100 ms, unless it is told otherwise."""

    def __init__(self, start=0, stored="", **limits):
        self.limits = ShareLimits(
            **({"record_lock_duration_ms": 100, "max_record_locks": 200} | limits)
        )
        batches = []
        for each in filter(None, stored.split(",")):
            offsets, word, *count = each.split()
            first, last = span(offsets)
            batches.append(StateBatch(first, last, CODES[word], int(*(count or [1]))))
        self.partition = SharePartition.from_state(ReadState(3, start, tuple(batches)), start)
        self.now = 0
        self.writes = []

    def take(self, log, member="a", most=500, size=500, by_record=False, at=None, aborted=()):
        """`log`: its batches; `6-9t5` is one of producer 5's transaction, `6-6c5` its marker."""
        batches = []
        for word in log.split():
            for sign in "tc":
                offsets, found, producer = word.partition(sign)
                if found:
                    first, last = span(offsets)
                    made = LogBatch(first, last, 0, int(producer), True, sign == "c")
                    break
            else:
                first, last = span(word)
                made = LogBatch(first, last)
            batches.append(made)
        taken = self.partition.acquire(
            member,
            RECORD_LIMIT if by_record else BATCH_OPTIMIZED,
            size,
            most,
            self.partition.next_fetch_offset if at is None else at,
            batches,
            self.now,
            self.limits,
            aborted,
        )
        return " ".join(f"{first}-{last}x{count}" for first, last, count in taken)

    def begin(self, what, member="a"):
        """`0-9 accept, 10-11 accept release`: the write that is under way."""
        acknowledgements = []
        for each in what.split(","):
            offsets, *kinds = each.split()
            types = tuple(KINDS[kind] for kind in kinds)
            first, last = span(offsets)
            acknowledgements.append(Acknowledgement(first, last, types))
        return self.partition.acknowledge(member, acknowledgements, self.now, self.limits)

    def ack(self, what, member="a"):
        self.finish(self.begin(what, member))
        return self

    def finish(self, write, succeeded=True):
        return self.partition.finish_write(write, succeeded, self.now)

    def release(self, member="a"):
        self.finish(self.partition.release(member, self.limits))
        return self

    def wait(self, ms):
        self.now += ms
        return written(self.partition.end_locks(self.now, self.limits))

    @property
    def state(self):
        found = []
        for batch in self.partition.in_flight:
            for run in batch.runs:
                word = STATES[run.state] + ("?" if run.pending else "")
                found.append(f"{run.first}-{run.last} {word} x{run.count}")
        return ", ".join(found)

    @property
    def offsets(self):
        """Start, end, next fetch offset, complete count."""
        partition = self.partition
        return (
            partition.start_offset,
            partition.end_offset,
            partition.next_fetch_offset,
            partition.complete_count,
        )


def written(batches):
    return ", ".join(
        f"{first}-{last} {STATES[state]} x{count}" for first, last, state, count in batches
    )
