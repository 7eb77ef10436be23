"""A group under random clients, time and storage: its invariants hold at every step, and it
comes to rest.
"""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.coordinator.group_run import GroupRun
from twisted_broker.coordinator.classic_group import ClassicGroupState
from twisted_broker.coordinator.effects import TimerKind
from twisted_broker.coordinator.rebalance import GroupSettings
from twisted_broker.wire.errors import ErrorCode

PROTOCOLS = [
    {"range": b"1"},
    {"range": b"2", "sticky": b"2"},
    {"sticky": b"3", "range": b"3"},
    {"sticky": b"4"},
]
INSTANCES = [None, None, "i-1", "i-2"]


class GroupMachine(RuleBasedStateMachine):
    """Clients that follow no rule at all: the group has to hold whatever they do."""

    @initialize(delay_ms=st.sampled_from([0, 3000]), limit=st.sampled_from([2, 4, 100]))
    def begin(self, delay_ms: int, limit: int) -> None:
        self.run = GroupRun(GroupSettings(delay_ms, limit))
        self.run.hold_writes = True
        self.generations = [0]

    def pick(self, number: int) -> str:
        known = ["", *self.run.group.members, *self.run.group.pending_joins, "stranger"]
        return known[number % len(known)]

    @rule(
        who=st.integers(0, 20),
        instance=st.sampled_from(INSTANCES),
        protocols=st.sampled_from(PROTOCOLS),
        known=st.booleans(),
        skip=st.booleans(),
        rebalance_ms=st.sampled_from([5_000, 60_000]),
    )
    def join(self, who, instance, protocols, known, skip, rebalance_ms):
        self.run.join(
            self.pick(who),
            instance=instance,
            protocols=protocols,
            known=known,
            skip=skip,
            rebalance_ms=rebalance_ms,
        )

    @rule(
        who=st.integers(0, 20),
        instance=st.sampled_from(INSTANCES),
        late=st.sampled_from([0, 0, 0, 1]),
    )
    def sync(self, who, instance, late):
        member = self.pick(who)
        self.run.sync(
            member,
            self.run.group.generation - late,
            {m: m.encode() for m in self.run.group.members},
            instance=instance,
        )

    @rule(who=st.integers(0, 20))
    def heartbeat(self, who):
        self.run.heartbeat(self.pick(who))

    @rule(who=st.integers(0, 20), instance=st.sampled_from(INSTANCES))
    def leave(self, who, instance):
        self.run.leave((self.pick(who), instance))

    @rule(milliseconds=st.sampled_from([0, 1, 3000, 9_999, 60_000]))
    def pass_time(self, milliseconds):
        self.run.advance(milliseconds)

    @rule(
        error=st.sampled_from([ErrorCode.NONE, ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE])
    )
    def store(self, error):
        if self.run.waiting_writes:
            self.run.finish_write(error)

    @rule(limit=st.sampled_from([1, 2, 100]))
    def change_limit(self, limit):
        self.run.with_settings(max_size=limit)

    @invariant()
    def the_cards_invariants_hold(self):
        if not hasattr(self, "run"):
            return
        group = self.run.group
        parked = [m for m in group.members.values() if m.awaiting_join is not None]
        assert group.awaiting_join_count == len(parked)
        assert (group.leader in group.members) if group.members else group.leader is None
        assert {
            i: m
            for m, i in ((m.member_id, m.instance_id) for m in group.members.values())
            if i is not None
        } == group.static_members
        assert set(group.supported_protocols.values()) <= set(range(1, len(group.members) + 1))
        if group.members:
            assert any(count == len(group.members) for count in group.supported_protocols.values())
        assert set(group.pending_syncs) <= set(group.members) and not set(
            group.pending_joins
        ) & set(group.members)

    @invariant()
    def states_mean_what_they_say(self):
        if not hasattr(self, "run"):
            return
        group, timers = self.run.group, self.run.timers
        if group.state is ClassicGroupState.EMPTY:
            assert not group.members
        if group.state is ClassicGroupState.PREPARING_REBALANCE:
            assert (TimerKind.JOIN, "") in timers
        if group.state in (ClassicGroupState.COMPLETING_REBALANCE, ClassicGroupState.STABLE):
            assert group.members and group.protocol_name is not None
            assert all(
                group.protocol_name in m.protocols
                for m in group.members.values()
                if m.awaiting_join is None
            )
        if group.state is not ClassicGroupState.COMPLETING_REBALANCE:
            assert all(m.awaiting_sync is None for m in group.members.values())
        assert {m for kind, m in timers if kind is TimerKind.SESSION} == set(group.members) | set(
            group.pending_joins
        )

    @invariant()
    def parked_requests_are_those_of_members(self):
        if not hasattr(self, "run"):
            return
        members = self.run.group.members.values()
        held = {id(t) for m in members for t in (m.awaiting_join, m.awaiting_sync) if t is not None}
        assert held == {id(t) for t in self.run.tokens if t.answer is None}

    @invariant()
    def generations_only_grow(self):
        if not hasattr(self, "run"):
            return
        assert self.run.group.generation >= self.generations[-1]
        self.generations.append(self.run.group.generation)

    def teardown(self):
        """Left alone, with storage at work, every group becomes empty and nothing stays parked."""
        if not hasattr(self, "run"):
            return
        self.run.hold_writes = False
        while self.run.waiting_writes:
            self.run.finish_write()
        for _ in range(20):
            self.run.advance(400_000)
        assert self.run.group.state is ClassicGroupState.EMPTY and not self.run.timers
        assert all(t.answer is not None for t in self.run.tokens)


TestGroupMachine = GroupMachine.TestCase
TestGroupMachine.settings = settings(
    max_examples=200,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
