"""A share partition under any order of reads, acknowledgements, writes that fail, locks that end,
compaction, deletions and changes of leader (GN 6.27, 6.28).
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from twisted_broker.coordinator.share_state.values import ReadState, StateBatch
from twisted_broker.share.in_flight import ACKNOWLEDGED, ACQUIRED, ARCHIVED
from twisted_broker.share.share_partition import (
    BATCH_OPTIMIZED,
    RECORD_LIMIT,
    Acknowledgement,
    LogBatch,
    ShareLimits,
    SharePartition,
)
from twisted_broker.wire.errors import BrokerError

LIMITS = ShareLimits(max_record_locks=12, delivery_count_limit=4, record_lock_duration_ms=100)
MEMBERS = ("a", "b", "c")


class Persister:
    """What is durable: by offset, state and delivery count."""

    def __init__(self, start):
        self.start, self.known = start, {}

    def write(self, start, batches):
        for first, last, state, count in batches:
            for offset in range(first, last + 1):
                before = self.known.get(offset, (0, 0))
                self.known[offset] = max(before, (count, state))
        self.start = max(self.start, start)
        self.known = {at: what for at, what in self.known.items() if at >= self.start}

    def read(self):
        return ReadState(
            1,
            self.start,
            tuple(
                StateBatch(offset, offset, state, count)
                for offset, (count, state) in sorted(self.known.items())
            ),
        )


class Machine(RuleBasedStateMachine):
    """`held`: who has which offset, and until when, as its last answer said."""

    @initialize(start=st.integers(0, 3))
    def begin(self, start):
        self.now = 0
        self.log = []  # (base, last)
        self.log_start, self.log_end = start, start
        self.persister = Persister(start)
        self.load()
        self.finished = set()  # acknowledged, and the answer said so
        self.spso = start

    def load(self):
        state = self.persister.read()
        self.partition = SharePartition.from_state(state, self.persister.start)
        self.held, self.counts, self.writes = {}, {}, []

    @rule(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=3))
    def produce(self, sizes):
        for size in sizes:
            self.log.append((self.log_end, self.log_end + size - 1))
            self.log_end += size

    @precondition(lambda self: len(self.log) > 1)
    @rule(row=st.integers(0, 20))
    def compact(self, row):
        self.log.pop(row % (len(self.log) - 1))

    @precondition(lambda self: self.log)
    @rule(row=st.integers(0, 20), into=st.integers(0, 4))
    def delete_records(self, row, into):
        base, last = self.log[row % len(self.log)]
        self.log_start = max(self.log_start, min(base + into, last + 1))
        self.log = [batch for batch in self.log if batch[1] >= self.log_start]

    def read(self, batches=3):
        at = self.partition.next_fetch_offset
        if at < self.log_start:
            self.partition.move_to_log_start(self.log_start)
            return None
        found = [LogBatch(base, last) for base, last in self.log if last >= at][:batches]
        return at, found

    @rule(
        member=st.sampled_from(MEMBERS),
        mode=st.sampled_from((BATCH_OPTIMIZED, RECORD_LIMIT)),
        batch_size=st.integers(1, 6),
        most=st.integers(1, 15),
        batches=st.integers(1, 6),
    )
    def fetch(self, member, mode, batch_size, most, batches):
        if not self.partition.can_acquire(LIMITS):
            assert self.partition.window >= LIMITS.max_record_locks
            return
        found = self.read(batches)
        if found is None:
            return
        at, log = found
        taken = self.partition.acquire(member, mode, batch_size, most, at, log, self.now, LIMITS)
        before = -1
        for first, last, count in taken:
            assert before < first <= last
            before = last
            assert 1 <= count <= LIMITS.delivery_count_limit
            for offset in range(first, last + 1):
                holder, until = self.held.get(offset, ("", 0))
                assert not holder or until <= self.now, (offset, holder)
                assert offset not in self.finished
                assert count == self.counts.get(offset, count - 1) + 1
                self.counts[offset] = count
                self.held[offset] = member, self.now + LIMITS.record_lock_duration_ms
        if mode == RECORD_LIMIT:
            assert sum(last - first + 1 for first, last, _ in taken) <= most
        known = sum(batch.size for batch in self.partition.in_flight)
        assert known <= LIMITS.max_record_locks + 10  # a batch at either end

    @precondition(lambda self: self.held)
    @rule(
        member=st.sampled_from(MEMBERS),
        row=st.integers(0, 30),
        length=st.integers(1, 6),
        types=st.lists(st.integers(0, 4), min_size=1, max_size=6),
        each=st.booleans(),
    )
    def acknowledge(self, member, row, length, types, each):
        offsets = sorted(self.held)
        first = offsets[row % len(offsets)]
        kinds = (types * 6)[:length] if each else types[:1]
        before = self.shape()
        try:
            write = self.partition.acknowledge(
                member, [Acknowledgement(first, first + length - 1, kinds)], self.now, LIMITS
            )
        except BrokerError:
            assert self.shape() == before
            return
        for offset in range(first, first + length):
            kind = kinds[0] if len(kinds) == 1 else kinds[offset - first]
            if kind == 4 and offset >= self.partition.start_offset and offset in self.held:
                self.held[offset] = member, self.now + LIMITS.record_lock_duration_ms
        self.begun(write)

    def begun(self, write):
        if write.runs:
            told = self.partition.start_offset, tuple(write.batches)
            self.writes.append((write, told))

    @rule(member=st.sampled_from(MEMBERS))
    def release(self, member):
        self.begun(self.partition.release(member, LIMITS))

    @precondition(lambda self: self.writes)
    @rule(row=st.integers(0, 5), succeeds=st.booleans())
    def persisted(self, row, succeeds):
        write, told = self.writes.pop(row % len(self.writes))
        if succeeds:
            self.persister.write(*told)
        self.partition.finish_write(write, succeeds, self.now)
        for first, last, state, _ in told[1] if succeeds else ():
            for offset in range(first, last + 1):
                self.held.pop(offset, None)
                if state in (ACKNOWLEDGED, ARCHIVED):
                    self.finished.add(offset)

    @rule(ms=st.integers(1, 120), succeeds=st.booleans())
    def time_passes(self, ms, succeeds):
        self.now += ms
        ended = self.partition.end_locks(self.now, LIMITS)
        if ended and succeeds:
            self.persister.write(self.partition.start_offset, ended)
        end = self.partition.next_lock_end_ms
        assert end is None or end > self.now

    @rule()
    def leader_changes(self):
        self.load()

    def shape(self):
        return [
            (run.first, run.last, run.state, run.count, run.member, run.pending, run.lock_ends_ms)
            for batch in self.partition.in_flight
            for run in batch.runs
        ]

    @invariant()
    def runs_cover_their_batches_and_counts_are_right(self):
        partition = getattr(self, "partition", None)
        if partition is None:
            return
        end, complete = -1, 0
        for batch in partition.in_flight:
            assert batch.first > end
            at = batch.first
            for run in batch.runs:
                assert run.first == at <= run.last
                at = run.last + 1
                if run.is_finished:
                    complete += run.size_from(partition.start_offset)
                if run.is_free:
                    assert run.first >= partition.start_offset
                assert (run.state == ACQUIRED or run.pending) == bool(run.member)
            assert at == batch.last + 1
            end = batch.last
        assert complete == partition.complete_count
        if partition.in_flight:
            assert end <= partition.end_offset
            assert partition.end_offset >= partition.start_offset

    @invariant()
    def the_start_offset_passes_nothing_that_is_not_finished(self):
        partition = getattr(self, "partition", None)
        if partition is None:
            return
        for base, last in self.log:
            for offset in range(
                max(base, self.log_start), min(last, partition.start_offset - 1) + 1
            ):
                holder, _ = self.held.get(offset, ("", 0))
                assert not holder or offset in self.finished or self.is_archived(offset), offset

    def is_archived(self, offset):
        return self.counts.get(offset, 0) >= LIMITS.delivery_count_limit or offset < self.log_start

    @invariant()
    def what_was_persisted_replays_to_what_is_finished(self):
        if getattr(self, "partition", None) is None:
            return
        again = SharePartition.from_state(self.persister.read(), self.persister.start)
        finished = {
            offset
            for batch in again.in_flight
            for run in batch.runs
            if run.is_finished
            for offset in range(run.first, run.last + 1)
        }
        for offset in self.finished:
            assert offset < again.start_offset or offset in finished

    def teardown(self):
        """Nothing is stuck: a member that accepts all gets all that is left."""
        if getattr(self, "partition", None) is None:
            return
        for write, _ in self.writes:
            self.partition.finish_write(write, False, self.now)
        self.now += 1000
        self.partition.end_locks(self.now, LIMITS)
        self.produce([1])
        seen: set[int] = set()
        for _ in range(200):
            assert self.partition.can_acquire(LIMITS), self.shape()
            found = self.read(4)
            if found is None:
                continue
            at, log = found
            if not log:
                break
            taken = self.partition.acquire("d", BATCH_OPTIMIZED, 5, 5, at, log, self.now, LIMITS)
            for first, last, _ in taken:
                seen.update(range(first, last + 1))
                write = self.partition.acknowledge(
                    "d", [Acknowledgement(first, last, (1,))], self.now, LIMITS
                )
                self.partition.finish_write(write, True, self.now)
        else:
            raise AssertionError(f"{self.shape()} {self.log} {self.partition.start_offset}")
        assert not self.partition.in_flight and self.partition.start_offset == self.log_end
        assert all(offset not in seen for offset in self.finished)


Machine.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    report_multiple_bugs=False,
)
TestSharePartition = Machine.TestCase
