"""One consumer group whose decisions are carried out at once, as bytes, and checked after each."""

from dataclasses import replace

from twisted_broker.coordinator.consumer.classic_members import (
    classic_heartbeat,
    classic_join,
    classic_sync,
)
from twisted_broker.coordinator.consumer.decision import (
    ConsumerGroupSettings,
    Environment,
)
from twisted_broker.coordinator.consumer.group import ConsumerGroup
from twisted_broker.coordinator.consumer.heartbeat import heartbeat
from twisted_broker.coordinator.consumer.leaving import leave, remove_members
from twisted_broker.coordinator.consumer.metadata_hash import TopicHashes
from twisted_broker.coordinator.consumer.migration import Upgrade
from twisted_broker.coordinator.consumer.patterns import patterns_resolved, resolve_patterns
from twisted_broker.coordinator.consumer.records import decode_record
from twisted_broker.coordinator.consumer.requests import HeartbeatRequest
from twisted_broker.coordinator.group_decision import GroupTimer
from twisted_broker.coordinator.group_records import group_record
from twisted_broker.coordinator.group_requests import JoinRequest, SyncRequest
from twisted_broker.coordinator.record_codec import encode_record
from twisted_broker.wire.schema import run_whole

STORED = (
    "epoch",
    "assignment_epoch",
    "assigned_at_ms",
    "metadata_hash",
    "has_partition_metadata",
    "members",
    "static",
    "targets",
    "patterns",
    "_owners",
)


def stored(group):
    """What a group's records say of it."""
    counts = group.subscriptions
    return {name: getattr(group, name) for name in STORED} | {
        "counts": (counts.members, counts.names, counts.patterns, counts.assignors)
    }


class ConsumerRun:
    """`batches` are the records of each decision that wrote some, as bytes."""

    def __init__(self, image, wall_ms=1_000_000, group_id="g", **settings):
        self.image, self.wall_ms = image, wall_ms
        self.settings = ConsumerGroupSettings(**settings)
        self.group = ConsumerGroup(group_id)
        self.hashes = TopicHashes()
        self.topics_created_version = -1
        self.batches = []
        self.timers = {}
        self.refresh_wanted = False
        self.leading = []
        self.classic = None

    def environment(self):
        return Environment(
            self.image, self.hashes, self.wall_ms, self.settings, self.topics_created_version
        )

    def send(self, member_id, epoch, **fields):
        """A heartbeat; its answer."""
        fields.setdefault("client_id", "probe")
        fields.setdefault("client_host", "/127.0.0.1")
        request = HeartbeatRequest(self.group.group_id, member_id, epoch, **fields)
        decide = leave if epoch < 0 else heartbeat
        decision = run_whole(decide(self.group, request, self.environment()))
        self.carry_out(decision)
        self.refresh_wanted |= getattr(decision, "resolves_patterns", False)
        return decision.answer

    def join(self, member_id, names=("ta",), **fields):
        fields.setdefault("rebalance_timeout_ms", 10_000)
        fields.setdefault("owned", frozenset())
        return self.send(member_id, 0, names=None if names is None else tuple(names), **fields)

    # members of the classic protocol
    def upgrade(self, classic, member_id, **fields):
        """A heartbeat joins a classic group."""
        records = run_whole(Upgrade(classic).records(self.environment()))
        self.leading = [group_record(self.group.group_id, None), *map(encode_record, records)]
        for record in records:
            self.group.apply(record)
        for member in classic.members.values():
            self.timers[GroupTimer.SESSION, member.member_id] = member.session_timeout_ms, None
        return self.join(member_id, **fields)

    def join_classic(self, member_id, protocols, *, instance=None, new="", known=False):
        request = JoinRequest(
            member_id, new, instance, "probe", "/127.0.0.1", 10_000, 15_000, "consumer", protocols
        )
        if not known:
            request = replace(request, requires_known_member_id=False)
        return self.asked(classic_join(self.group, request, self.environment()))

    def sync(self, member_id, generation):
        request = SyncRequest(member_id, None, generation)
        return self.asked(classic_sync(self.group, request, self.environment())).assignment

    def beat(self, member_id, generation):
        return self.asked(
            classic_heartbeat(self.group, member_id, None, generation, self.environment())
        )

    def asked(self, steps):
        decision = run_whole(steps)
        self.carry_out(decision)
        return decision.answer

    def remove(self, *member_ids):
        self.carry_out(run_whole(remove_members(self.group, member_ids, self.environment())))

    def expire(self, kind, member_id):
        """The timer fires."""
        epoch = self.timers.pop((kind, member_id))[1]
        if epoch is None or self.group.members[member_id].epoch == epoch:
            self.remove(member_id)

    def resolve(self, may_describe=lambda name: True):
        """A refresh of the patterns, from begin to end."""
        refresh = self.group.pattern_refresh
        refresh.began_at_ms, refresh.version = self.wall_ms, self.image.offset
        self.refresh_wanted = False
        resolved = run_whole(
            resolve_patterns(
                self.group.subscriptions.patterns, self.image, may_describe, self.wall_ms
            )
        )
        self.carry_out(run_whole(patterns_resolved(self.group, resolved, self.environment())))

    def change_topics(self, image):
        self.image = image
        self.group.metadata_changed()

    def delete(self):
        self.batches.append([encode_record(each) for each in self.group.tombstones()])

    def carry_out(self, decision):
        epochs = self.group.epoch, self.group.assignment_epoch
        decision.records[:] = [decode_record(*encode_record(each)) for each in decision.records]
        if decision.records:
            batch = self.leading + [encode_record(each) for each in decision.records]
            self.leading = []
            if decision.successor is not None:
                self.classic = decision.successor
                batch.append(group_record(self.group.group_id, self.classic.metadata()))
            self.batches.append(batch)
        decision.apply(self.group)
        for change in decision.timers:
            if change.delay_ms is None:
                self.timers.pop((change.kind, change.member_id), None)
            elif not change.if_absent or (change.kind, change.member_id) not in self.timers:
                self.timers[change.kind, change.member_id] = change.delay_ms, change.epoch
        if decision.successor is None:
            self.check(epochs)
        else:
            assert not self.group.members and not self.group.targets and not self.timers
            assert stored(self.replayed()) == stored(self.group)

    def check(self, epochs):
        group = self.group
        assert epochs <= (group.epoch, group.assignment_epoch), "epochs went back"
        assert group.assignment_epoch <= group.epoch
        for member in group.members.values():
            assert member.epoch <= group.assignment_epoch
            assert not member.assigned.keys() & member.pending.keys()
            assert (GroupTimer.SESSION, member.member_id) in self.timers
        assert set(group._owners.values()) <= {1}, "a partition has two owners"
        assert {member_id for _, member_id in self.timers} <= group.members.keys()
        assert stored(self.replayed()) == stored(group), "a replay gives another group"

    def replayed(self, batches=None):
        group = ConsumerGroup(self.group.group_id)
        for batch in self.batches if batches is None else batches:
            for key, value in batch:
                record = decode_record(key, value)
                if record is not None:  # not of a classic group
                    group.apply(record)
        return group
