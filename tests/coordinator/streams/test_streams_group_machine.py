"""A streams group under clients that do as they please: its invariants hold after every decision
(`StreamsRun.check`, GN 6.29, 6.25), and with clients that obey it comes to rest.
"""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.coordinator.streams.streams_run import (
    StreamsRun,
    stored,
    subtopology,
    tasks,
    topics,
    topology,
)
from twisted_broker.coordinator.streams.group import StreamsGroupState
from twisted_broker.coordinator.streams.tasks import Tasks
from twisted_broker.wire.errors import BrokerError

# A member stays in its process.
PROCESSES = {"a": "p", "b": "p", "c": "q", "d": "r"}
IDS = [*PROCESSES]
APP = topology(
    subtopology("0", ["in"], sinks=["rep"]),
    subtopology("1", repartition=["rep"], changelogs=["log"]),
    epoch=1,
)
STALE = topology(subtopology("0", ["in"]))


class StreamsGroupMachine(RuleBasedStateMachine):
    """`owned` is what a client has that obeys: what it was told."""

    @initialize(
        interval_ms=st.sampled_from([0, 1_000]),
        delay_ms=st.sampled_from([0, 3_000]),
        standbys=st.integers(0, 2),
    )
    def begin(self, interval_ms, delay_ms, standbys):
        self.run = StreamsRun(
            self.topics(3, True),
            assignment_interval_ms=interval_ms,
            initial_rebalance_delay_ms=delay_ms,
            num_standby_replicas=standbys,
            max_size=3,
        )
        self.owned = {}

    def topics(self, count, are_internal_there):
        internal = {"rep": count, "log": count} if are_internal_there else {}
        return topics(**({"in": count} | internal if count else {}))

    def send(self, call, member_id, *arguments, **fields):
        try:
            answer = call(member_id, *arguments, **fields)
        except BrokerError:
            return
        if answer.member_epoch < 0:
            self.owned.pop(member_id, None)
        elif answer.tasks is not None:
            self.owned[member_id] = answer.tasks

    @rule(
        member_id=st.sampled_from(IDS),
        app=st.sampled_from([APP, APP, STALE]),
        endpoint=st.sampled_from([None, ("h", 1)]),
    )
    def join(self, member_id, app, endpoint):
        process_id = PROCESSES[member_id]
        self.send(self.run.join, member_id, app, process_id=process_id, endpoint=endpoint)

    @rule(
        member_id=st.sampled_from(IDS),
        late=st.sampled_from([0, 0, 0, 1, 2, -1]),
        says=st.sampled_from(["nothing", "truth", "nothing owned", "too much"]),
        shutdown=st.sampled_from([False, False, False, True]),
    )
    def go_on(self, member_id, late, says, shutdown):
        member = self.run.group.members.get(member_id)
        owned = {
            "nothing": None,
            "truth": tuple(self.owned.get(member_id, Tasks())._replace(warmup=frozenset())),
            "nothing owned": tuple(Tasks()),
            "too much": (tasks(s0=range(2)), tasks(s1=range(2)), frozenset()),
        }[says]
        epoch = 5 if member is None else max(member.epoch - late, 1)
        self.send(
            self.run.send,
            member_id,
            epoch,
            owned,
            shutdown_application=shutdown,
        )

    @rule(member_id=st.sampled_from(IDS))
    def leave(self, member_id):
        self.send(self.run.send, member_id, -1)

    @rule(which=st.integers(0, 9))
    def expire(self, which):
        if self.run.timers:
            kind, member_id = sorted(self.run.timers, key=str)[which % len(self.run.timers)]
            self.run.expire(kind, member_id)

    @rule(after_ms=st.sampled_from([100, 1_000, 20_000, -5_000]))
    def time_goes_by(self, after_ms):
        self.run.wall_ms += after_ms

    @rule()
    def the_delay_ends(self):
        if self.run.is_delayed:
            self.run.end_delay()

    @rule(count=st.integers(0, 5), are_internal_there=st.booleans())
    def change_topics(self, count, are_internal_there):
        self.run.change_topics(self.topics(count, are_internal_there))

    @rule()
    def another_broker_leads(self):
        self.run.reload()

    @invariant()
    def a_compacted_log_gives_the_same_group(self):
        """GN 2.105: only the last value of each key, each where it stood."""
        if not hasattr(self, "run"):
            return
        last: dict[bytes, bytes | None] = {}
        for batch in self.run.batches:
            for key, value in batch:
                last.pop(key, None)
                last[key] = value
        assert stored(self.run.replayed([last.items()])) == stored(self.run.group)

    def teardown(self):
        """Clients that obey have every task in a few heartbeats, each once."""
        if not hasattr(self, "run"):
            return
        run = self.run
        run.wall_ms += 10_000_000
        run.change_topics(self.topics(4, True))
        run.is_delayed = False
        for _ in range(8):
            for member_id, member in list(run.group.members.items()):
                run.wall_ms += 1_000
                told = run.send(member_id, member.epoch)
                run.send(
                    member_id,
                    told.member_epoch,
                    tuple(run.group.members[member_id].assigned.without_epochs()),
                )
        if not run.group.members:
            return
        assert run.group.state is StreamsGroupState.STABLE
        members = run.group.members.values()
        active = sorted(each for member in members for each in member.assigned.active)
        expected = run.group.topology.subtopologies
        assert active == sorted((id, number) for id in expected for number in range(4))


StreamsGroupMachine.TestCase.settings = settings(
    max_examples=12,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestStreamsGroupMachine = StreamsGroupMachine.TestCase
