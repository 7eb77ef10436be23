"""Whatever groups did, a broker that reads their log knows what the one before it knew."""

from contextlib import suppress
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.coordinator.broker_run import BrokerRun
from twisted_broker.coordinator.offset_metadata_manager import OffsetToCommit
from twisted_broker.wire.errors import BrokerError, ErrorCode

GROUPS = st.sampled_from(["a", "b", "c"])
TOPICS = st.sampled_from(["t", "old"])
STEPS = st.one_of(
    st.tuples(st.just("stable"), GROUPS),
    st.tuples(st.just("member commits"), GROUPS, TOPICS, st.integers(0, 99)),
    st.tuples(st.just("commit"), GROUPS, TOPICS, st.integers(0, 99)),
    st.tuples(st.just("leave"), GROUPS),
    st.tuples(st.just("delete offset"), GROUPS, TOPICS),
    st.tuples(st.just("delete group"), GROUPS),
    st.tuples(st.just("storage"), st.sampled_from([None, ErrorCode.NOT_ENOUGH_REPLICAS])),
    st.tuples(st.just("time"), st.sampled_from([1_000, 9_000, 700_000])),
)


SETTINGS = {"offsets_retention_ms": 600_000, "retention_check_interval_ms": 60_000}


class Scenario:
    """Plays steps; what is refused is refused."""

    def __init__(self) -> None:
        self.run = BrokerRun(**SETTINGS)
        self.members: dict[str, tuple[str, int]] = {}

    def play(self, step: tuple) -> None:
        name, *what = step
        with suppress(BrokerError):
            getattr(self, name.replace(" ", "_"))(*what)
        self.run.settle()

    def stable(self, group: str) -> None:
        joined: Any = self.run.join(group)
        self.run.settle()
        if joined.called and not joined.result.error:
            answer = joined.result
            self.members[group] = (answer.member_id, answer.generation)
            self.run.sync(
                answer.member_id, answer.generation, {answer.member_id: group.encode()}, group
            )

    def member_commits(self, group: str, topic: str, offset: int) -> None:
        member, generation = self.members.get(group, ("", -1))
        self.run.commit(
            OffsetToCommit(topic, 0, offset), group=group, member=member, generation=generation
        )

    def commit(self, group: str, topic: str, offset: int) -> None:
        self.run.commit(OffsetToCommit(topic, 0, offset, 3, "note", b"I" * 16), group=group)

    def leave(self, group: str) -> None:
        self.run.coordinator.leave(group, [(self.members.pop(group, ("nobody", 0))[0], None)])

    def delete_offset(self, group: str, topic: str) -> None:
        self.run.coordinator.delete_offsets(group, [(topic, 0)]).addErrback(lambda _: None)

    def delete_group(self, group: str) -> None:
        self.run.coordinator.delete_group(group)

    def storage(self, refusal: ErrorCode | None) -> None:
        self.run.store.refuse = refusal

    def time(self, milliseconds: int) -> None:
        self.run.pass_ms(milliseconds)


def offsets_of(run: BrokerRun) -> dict:
    return {
        name: found
        for name in "abc"
        if (found := {(f.topic, f.partition): f.committed for f in run.committed(name)})
    }


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(STEPS, max_size=30))
def test_a_restart_changes_no_offset_and_no_stable_group(steps):
    """Every committed offset with all its fields, and every stable group with generation,
    members, assignment, is there again.
    """
    scenario = Scenario()
    for step in steps:
        scenario.play(step)
    scenario.storage(None)
    before, stable = offsets_of(scenario.run), {}
    for name in "abc":
        described = scenario.run.coordinator.describe(name)
        if described is not None and described.state == "Stable":
            stable[name] = described
    after = scenario.run.restarted(**SETTINGS)
    assert offsets_of(after) == before
    for name, described in stable.items():
        assert after.coordinator.describe(name) == described
        member, generation = scenario.members[name]
        assert after.coordinator.heartbeat(name, member, None, generation) is ErrorCode.NONE
    after.pass_ms(1_500_000)
    assert offsets_of(after) == {} and after.listed() == [], "left alone, everything expires"
