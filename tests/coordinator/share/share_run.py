"""A share group in memory: each decision is checked against a replay of its log."""

from tests.coordinator.consumer.topics import TA, TB, image, topic
from twisted_broker.coordinator.consumer.metadata_hash import TopicHashes
from twisted_broker.coordinator.group_replay import GroupReplay
from twisted_broker.coordinator.record_codec import encode_record
from twisted_broker.coordinator.share import states
from twisted_broker.coordinator.share.decision import (
    ShareEnvironment,
    ShareGroupDecision,
    ShareGroupSettings,
)
from twisted_broker.coordinator.share.group import ShareGroup
from twisted_broker.coordinator.share.heartbeat import heartbeat, leave, remove_members
from twisted_broker.coordinator.share.records import decode_record
from twisted_broker.coordinator.share.requests import ShareHeartbeatRequest
from twisted_broker.wire.errors import BrokerError

ONE, TWO = topic("ta", TA, [[None]] * 4), topic("tb", TB, [[None]] * 2)


def whole(steps):
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def stored(group):
    return (
        group.epoch,
        group.metadata_hash,
        group.assignment_epoch,
        group.assigned_at_ms,
        group.members,
        group.targets,
        group.names,
        group.states,
    )


class ShareRun:
    def __init__(self, **settings):
        self.group = ShareGroup("g")
        self.image = image(ONE, TWO)
        self.hashes = TopicHashes()
        self.wall_ms = 1_000_000
        self.settings = ShareGroupSettings(**({"assignment_interval_ms": 0} | settings))
        self.log = []
        self.decision = ShareGroupDecision()

    def environment(self):
        return ShareEnvironment(self.image, self.hashes, self.wall_ms, self.settings)

    def carry_out(self, decision):
        self.decision = decision
        self.log += map(encode_record, decision.records)
        decision.apply(self.group)
        self.check()
        return decision.answer

    def beat(self, member_id="a", epoch=0, names=None, **fields):
        request = ShareHeartbeatRequest("g", member_id, epoch, names=names, **fields)
        decide = leave if epoch < 0 else heartbeat
        return self.carry_out(whole(decide(self.group, request, self.environment())))

    def join(self, member_id="a", names=("ta",), **fields):
        return self.beat(member_id, 0, names, **fields)

    def refused(self, *args, **fields):
        before, count = stored(self.group), len(self.log)
        try:
            self.beat(*args, **fields)
        except BrokerError as error:
            assert stored(self.group) == before and len(self.log) == count
            return error.code
        raise AssertionError("not refused")

    def remove(self, *member_ids):
        self.carry_out(whole(remove_members(self.group, member_ids, self.environment())))

    def initialized(self, failed=()):
        """The share coordinator answers what the last decision asked for."""
        asked = self.decision.initialize
        done = [each for each in asked if each not in failed]
        self.carry_out(states.initialized(self.group, done, list(failed), self.image))

    def joined(self, *member_ids, names=("ta",)):
        """All are members, and everything has a state."""
        for member_id in member_ids:
            self.join(member_id, names)
            self.initialized()
        for member_id in member_ids:
            self.beat(member_id, self.group.members[member_id].epoch)

    def records(self):
        """Types of the last decision's records."""
        return [key.record_type for key, _ in self.decision.records]

    def check(self):
        replay = GroupReplay(ShareGroup)
        for key, value in self.log:
            replay.apply(decode_record(key, value))
        replay.finish()
        found = replay.groups.get("g")
        if found is None:
            assert self.group.is_unwritten or not self.group.holds_anything
        else:
            assert stored(found) == stored(self.group)
        assert all(
            member.epoch <= max(self.group.assignment_epoch, self.group.epoch)
            for member in self.group.members.values()
        )
