"""Consumer groups at work: lines, appends, commits, timers (GN 0.5-0.8, 2.80-2.83)."""

from dataclasses import replace
from random import Random

import pytest
from twisted.python.failure import Failure

from tests.coordinator.broker_run import TurnClock
from tests.coordinator.consumer.consumer_run import stored
from tests.coordinator.consumer.topics import TA, TB, image, topic
from tests.coordinator.memory_store import MemoryStore
from twisted_broker.coordinator.consumer import target
from twisted_broker.coordinator.consumer.decision import ConsumerGroupSettings
from twisted_broker.coordinator.consumer.group import ConsumerGroup
from twisted_broker.coordinator.consumer.records import decode_record
from twisted_broker.coordinator.consumer.requests import HeartbeatRequest
from twisted_broker.coordinator.consumer_group_runner import ConsumerGroupRunner
from twisted_broker.coordinator.coordinator_context import CoordinatorContext, CoordinatorSettings
from twisted_broker.coordinator.group_records import group_record
from twisted_broker.turns import Turns
from twisted_broker.wire.errors import BrokerError, ErrorCode

ONE, TWO = topic("ta", TA, [[None]] * 4), topic("tb", TB, [[None]] * 3)
INDEX = 7
NONE = ErrorCode.NONE
SETTINGS = ConsumerGroupSettings(
    session_timeout_ms=45_000, heartbeat_interval_ms=5_000, assignment_interval_ms=0
)


class Asked:
    """One request: `answer` or `error` once it is answered."""

    def __init__(self, waiting):
        self.answer = self.error = None
        waiting.addCallbacks(self._answered, self._refused)

    def _answered(self, answer):
        self.answer = answer

    def _refused(self, failure):
        self.error = failure.value.code

    @property
    def is_waiting(self):
        return self.answer is None and self.error is None


class RunnerRun:
    def __init__(self):
        self.clock, self.store = TurnClock(), MemoryStore()
        self.settings = SETTINGS
        self.image = image(ONE, TWO, offset=10)
        self.context = CoordinatorContext(
            self.clock,
            self.wall_ms,
            Random(1),
            self.store,
            CoordinatorSettings(),
            Turns(self.clock),
        )
        self.first = []
        self.runner = self.new_runner()
        self.group = ConsumerGroup("g")

    def new_runner(self):
        return ConsumerGroupRunner(
            self.context,
            lambda batch: self.store.append(INDEX, batch, 5_000),
            lambda: self.image,
            lambda group_id: self.settings,
            self,
        )

    # the keeper of groups
    def first_decided(self, group, is_begun):
        self.first.append(is_begun)

    def downgraded(self, group, successor, rebalances):
        group.is_dead = True
        self.group, self.rebalances = successor, rebalances

    def wall_ms(self):
        return 1_000_000 + int(self.clock.seconds() * 1000)

    def send(self, member_id, epoch, group=None, may_describe=lambda name: True, **fields):
        group = group or self.group
        request = HeartbeatRequest(group.group_id, member_id, epoch, **fields)
        return Asked(self.runner.heartbeat(group, request, may_describe))

    def join(self, member_id, names=("ta",), **fields):
        return self.send(
            member_id,
            0,
            names=names,
            rebalance_timeout_ms=10_000,
            owned=frozenset(),
            **fields,
        )

    def turns(self, number=20):
        for _ in range(number):
            self.clock.advance(0)

    def pass_seconds(self, seconds):
        """Time goes from timer to timer, as a reactor sees it."""
        until = self.clock.seconds() + seconds
        while due := [
            call.getTime() for call in self.clock.getDelayedCalls() if call.getTime() <= until
        ]:
            self.clock.advance(max(min(due) - self.clock.seconds(), 0))
        self.clock.advance(until - self.clock.seconds())

    def check(self):
        """What the log says is what the group is."""
        replayed = ConsumerGroup("g")
        for key, value in self.store.records(INDEX):
            record = decode_record(key, value)
            if record is not None and getattr(record[0], "group_id", None) == "g":
                replayed.apply(record)
        assert stored(replayed) == stored(self.group)


@pytest.fixture
def run():
    run = RunnerRun()
    yield run
    if not run.store.held:
        run.check()
    run.runner.close()
    run.turns()
    assert not run.clock.getDelayedCalls(), "timers are left"


@pytest.fixture
def slow_assignor(monkeypatch):
    """The assignor pauses three times."""
    assign = target.ASSIGNORS["uniform"]

    def slowly(spec):
        for _ in range(3):
            yield
        return (yield from assign(spec))

    monkeypatch.setattr(target, "ASSIGNORS", {"uniform": slowly})


def test_a_heartbeat_without_a_pause_is_answered_at_once(run):
    joined = run.join("a")
    assert joined.answer.member_epoch == 2
    assert run.send("a", 2).answer.member_epoch == 2
    assert len(run.store.records(INDEX)) == 5
    assert not run.runner.is_busy(run.group)


def test_the_batch_begins_with_the_tombstone_of_the_group_that_was_replaced(run):
    """GN 2.10, 2.102."""
    tombstone = group_record("g", None)
    run.runner.begin(run.group, [tombstone])
    run.join("a")
    assert run.store.records(INDEX)[0] == tombstone
    assert len(run.store.records(INDEX)) == 6 and run.first == [True]


def test_an_append_that_is_refused_changes_nothing(run):
    """GN 0.5, 0.6."""
    run.join("a")
    run.store.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    assert run.join("b").error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert [*run.group.members] == ["a"]
    run.store.refuse = None
    assert run.join("b").answer.member_epoch == 3


def test_a_batch_that_is_too_large_is_refused_whole(run):
    """GN 0.7."""
    run.store.max_message_bytes = 10
    assert run.join("a").error is ErrorCode.UNKNOWN_SERVER_ERROR
    assert not run.group.members and not run.store.records(INDEX)


def test_an_answer_waits_for_the_commit_and_the_group_does_not(run):
    """GN 0.5: a heartbeat that writes nothing waits, too."""
    run.store.held = []
    joined, other = run.join("a"), run.join("b")
    silent = run.send("b", 3)
    assert run.group.members.keys() == {"a", "b"}
    assert joined.is_waiting and other.is_waiting and silent.is_waiting
    assert run.runner.is_busy(run.group)
    run.store.release()
    assert [each.answer.member_epoch for each in (joined, other, silent)] == [2, 3, 3]
    assert not run.runner.is_busy(run.group)


def test_a_commit_that_times_out_answers_an_error_and_stays_applied(run):
    """GN 0.5, 0.6: until it is decided, nothing that rests on it is answered."""
    run.store.held = []
    joined = run.join("a")
    (outcome,) = run.store.time_out()
    assert joined.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert run.group.members and run.runner.is_busy(run.group)
    assert run.send("a", 2).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    outcome.callback(0)
    assert run.send("a", 2).answer.member_epoch == 2


def test_what_is_asked_of_a_group_waits_in_line_and_other_groups_do_not(run, slow_assignor):
    """GN 0.8: first in, first out, each on the state that the one before left."""
    order = []
    first, second, silent = run.join("a"), run.join("b"), run.send("b", 3)
    for name, each in (("a", first), ("b", second), ("silent", silent)):
        assert each.is_waiting, name
    other = ConsumerGroup("other")
    assert run.join("x", names=(), group=other).answer.member_epoch == 1
    for _ in range(40):
        run.clock.turn()
        order += [
            name
            for name, each in (("a", first), ("b", second), ("silent", silent))
            if not each.is_waiting and name not in order
        ]
    assert order == ["a", "b", "silent"]
    assert (first.answer.member_epoch, second.answer.member_epoch) == (2, 3)


def test_a_refusal_and_a_failure_leave_the_line_going(run, monkeypatch, slow_assignor):
    """GN 2.23."""
    first = run.join("a")
    unknown = run.send("stranger", 9)
    monkeypatch.setattr(target, "ASSIGNORS", {"uniform": lambda spec: 1 / 0})
    broken, last = run.join("b"), run.send("b", 9)
    run.turns(40)
    assert first.answer.member_epoch == 2
    assert unknown.error is ErrorCode.UNKNOWN_MEMBER_ID
    assert broken.error is ErrorCode.UNKNOWN_SERVER_ERROR
    assert last.error is ErrorCode.UNKNOWN_MEMBER_ID


def test_many_in_line_are_done_in_turns(run, slow_assignor):
    """GN 0.8: a turn is not held by all that waited."""
    run.join("a")
    waiting = [run.join(f"m{number}", names=()) for number in range(300)]
    while waiting[0].is_waiting:
        run.clock.turn()
    assert sum(each.is_waiting for each in waiting) > 200
    run.turns()
    assert not waiting[-1].is_waiting


def test_a_session_ends_without_heartbeats(run):
    """GN 2.80."""
    run.join("a")
    run.join("b")
    run.pass_seconds(44)
    run.send("b", 3)
    run.pass_seconds(2)
    assert [*run.group.members] == ["b"]
    run.pass_seconds(44)
    assert not run.group.members


def test_a_setting_acts_at_the_next_heartbeat(run):
    """GN 1.30."""
    run.join("a")
    run.settings = replace(SETTINGS, session_timeout_ms=60_000, heartbeat_interval_ms=7_000)
    assert run.send("a", 2).answer.heartbeat_interval_ms == 7_000
    run.pass_seconds(59)
    assert run.group.members


def test_a_heartbeat_that_stood_in_line_when_the_session_ended_keeps_the_member(run, slow_assignor):
    """GN 2.80."""
    run.join("a")
    run.turns()
    run.clock.advance(44.9)
    run.join("b")  # takes several turns
    asked = run.send("a", 2)
    run.clock.advance(0.2)
    run.turns(40)
    assert asked.answer is not None and "a" in run.group.members


def test_who_gives_nothing_up_is_removed_after_its_rebalance_timeout(run):
    """GN 2.82."""
    run.join("a")
    run.join("b")
    run.send("a", 2)
    run.pass_seconds(9)
    assert run.send("a", 2).answer.assignment is None
    run.pass_seconds(2)
    assert [*run.group.members] == ["b"]


def test_who_gives_up_in_time_stays(run):
    """GN 2.82."""
    run.join("a")
    run.join("b")
    told = run.send("a", 2).answer
    run.send("a", 2, owned=told.assignment)
    run.pass_seconds(11)
    assert run.group.members.keys() == {"a", "b"}


def test_a_removal_whose_write_fails_is_tried_again(run):
    """GN 2.83: after 500 ms."""
    run.join("a")
    run.store.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    run.pass_seconds(46)
    assert run.group.members
    run.store.refuse = None
    run.pass_seconds(0.4)
    assert run.group.members
    run.pass_seconds(0.2)
    assert not run.group.members


def test_a_heartbeat_whose_records_are_refused_still_shows_that_the_member_lives(run):
    """GN 2.80."""
    run.join("a")
    run.pass_seconds(40)
    run.store.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    assert run.send("a", 2, names=("tb",)).error is not None
    run.pass_seconds(40)
    assert "a" in run.group.members


def test_a_static_members_session_runs_on_after_it_left_for_a_while(run):
    """GN 2.50."""
    run.join("s", instance_id="i")
    run.pass_seconds(40)
    assert run.send("s", -2, instance_id="i").answer.member_epoch == -2
    run.pass_seconds(6)
    assert not run.group.members


def test_a_pattern_is_resolved_in_turns_and_seen_by_a_later_heartbeat(run):
    """GN 2.65, 2.63."""
    joined = run.join("a", names=None, pattern="t.*", may_describe=lambda name: name == "tb")
    assert joined.answer.member_epoch == 1
    run.turns()
    assert run.group.patterns["t.*"].topics == ("tb",)
    assert (run.group.epoch, run.group.pattern_refresh.version) == (2, 10)
    assert run.send("a", 1).answer.assignment == {(TB, number) for number in range(3)}


def test_a_refresh_that_fails_is_dropped_and_tried_again_later(run):
    """GN 2.65."""
    run.join("a", names=None, pattern="t.*", may_describe=lambda name: 1 / 0)
    run.turns()
    assert not run.group.patterns and not run.group.pattern_refresh.is_running
    run.pass_seconds(11)
    run.send("a", 1)
    run.turns()
    assert run.group.patterns.keys() == {"t.*"}


def test_a_loaded_group_gives_every_member_its_time(run):
    """GN 2.80, 2.82."""
    run.join("a")
    run.join("b")
    run.send("a", 2)
    run.runner.close()
    run.runner = run.new_runner()
    run.runner.group_loaded(run.group)
    run.pass_seconds(9)
    assert run.group.members.keys() == {"a", "b"}
    run.send("b", 3)
    run.pass_seconds(2)
    assert [*run.group.members] == ["b"], "it was found giving up partitions"
    run.pass_seconds(46)
    assert not run.group.members


def test_who_waits_when_the_group_goes_elsewhere_is_told_so(run, slow_assignor):
    """GN 0.6, 7.6: in line, and for a commit; later requests as well."""
    run.store.held = []
    uncommitted = run.join("m", names=())
    also = run.send("m", 1, client_id="other")
    in_line = [run.join("a"), run.join("b")]
    run.runner.close()
    late = run.send("m", 1)
    records = len(run.store.records(INDEX))
    for each in (uncommitted, also, *in_line, late):
        assert each.error is ErrorCode.NOT_COORDINATOR
    run.turns()
    run.store.release(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert len(run.store.records(INDEX)) == records, "a closed one writes nothing"


def test_errors_are_refusals():
    """GN 0.6: an answer that fails does so with BrokerError."""
    run = RunnerRun()
    run.runner.close()
    failures: list[Failure] = []
    run.runner.heartbeat(run.group, HeartbeatRequest("g", "m", 2)).addErrback(failures.append)
    assert failures[0].check(BrokerError)


def test_a_member_that_is_known_to_live_has_another_session(run):
    run.join("a")
    run.pass_seconds(40)
    run.runner.lives(run.group, "a")
    run.runner.lives(run.group, "nobody")
    run.pass_seconds(40)
    assert set(run.group.members) == {"a"}
    run.pass_seconds(6)
    assert not run.group.members
