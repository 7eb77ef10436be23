"""One streams group whose decisions are carried out at once, as bytes, and checked after each."""

from tests.coordinator.consumer.topics import image, topic
from twisted_broker.coordinator.consumer.metadata_hash import TopicHashes
from twisted_broker.coordinator.group_decision import GroupTimer
from twisted_broker.coordinator.record_codec import encode_record
from twisted_broker.coordinator.streams.decision import Environment, StreamsGroupSettings
from twisted_broker.coordinator.streams.group import StreamsGroup
from twisted_broker.coordinator.streams.heartbeat import delayed_target, heartbeat
from twisted_broker.coordinator.streams.leaving import leave, remove_members
from twisted_broker.coordinator.streams.records import decode_record
from twisted_broker.coordinator.streams.requests import HeartbeatRequest, check_request
from twisted_broker.wire.messages import group_records as messages
from twisted_broker.wire.schema import run_whole

STORED = (
    "epoch",
    "assignment_epoch",
    "assigned_at_ms",
    "metadata_hash",
    "validated_topology_epoch",
    "assignment_configs",
    "members",
    "targets",
    "topology",
    "_active",
    "_held",
)


def stored(group):
    """What a group's records say of it."""
    return {name: getattr(group, name) for name in STORED}


def topics(**partitions):
    """An image with topics of so many partitions; `_` stands for a hyphen."""
    return image(
        *(
            topic(name.replace("_", "-"), name.encode().ljust(16, b"."), [[None]] * count)
            for name, count in sorted(partitions.items())
        )
    )


def info(name, partitions=0, replication_factor=0, **configs):
    return messages.TopicInfo(
        name=name,
        partitions=partitions,
        replication_factor=replication_factor,
        topic_configs=[
            messages.TopicConfig(key=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ],
    )


def subtopology(
    id="0", sources=(), changelogs=(), sinks=(), repartition=(), copartition=(), regex=()
):
    """`changelogs` and `repartition`: names, or what `info` makes; `copartition`: pairs of lists of
    numbers.
    """
    return messages.Subtopology(
        subtopology_id=id,
        source_topics=list(sources),
        source_topic_regex=list(regex),
        state_changelog_topics=[info(e) if isinstance(e, str) else e for e in changelogs],
        repartition_sink_topics=list(sinks),
        repartition_source_topics=[info(e) if isinstance(e, str) else e for e in repartition],
        copartition_groups=[
            messages.CopartitionGroup(
                source_topics=list(one), source_topic_regex=[], repartition_source_topics=list(two)
            )
            for one, two in copartition
        ],
    )


def topology(*subtopologies, epoch=0):
    return messages.StreamsGroupTopologyValue(epoch=epoch, subtopologies=list(subtopologies))


def tasks(**numbers):
    """Tasks of subtopologies `s0`, `s1`, ..."""
    return frozenset((name[1:], number) for name, some in numbers.items() for number in some)


ONE = topology(subtopology("0", ["in"]))
"""Reads one topic and keeps nothing."""


class StreamsRun:
    """`batches` are the records of each decision that wrote some, as bytes."""

    def __init__(self, image=None, wall_ms=1_000_000, group_id="app", **settings):
        settings.setdefault("initial_rebalance_delay_ms", 0)
        settings.setdefault("assignment_interval_ms", 0)
        self.image = topics(**{"in": 4}) if image is None else image
        self.wall_ms = wall_ms
        self.settings = StreamsGroupSettings(**settings)
        self.group = StreamsGroup(group_id)
        self.hashes = TopicHashes()
        self.batches = []
        self.timers = {}
        self.is_delayed = False

    def environment(self):
        return Environment(self.image, self.hashes, self.wall_ms, self.settings, self.is_delayed)

    def send(self, member_id, epoch, owned=None, **fields):
        """A heartbeat; its answer. `owned`: active tasks alone, or three sets."""
        fields.setdefault("client_id", "st1")
        fields.setdefault("client_host", "/127.0.0.1")
        if owned is not None:
            lists = owned if isinstance(owned, tuple) else (owned, frozenset(), frozenset())
            fields["active"], fields["standby"], fields["warmup"] = lists
        request = HeartbeatRequest(self.group.group_id, member_id, epoch, **fields)
        check_request(request)
        decide = leave if epoch < 0 else heartbeat
        decision = run_whole(decide(self.group, request, self.environment()))
        self.carry_out(decision)
        return decision.answer

    def join(self, member_id, topology=ONE, **fields):
        fields.setdefault("process_id", f"p{member_id}")
        fields.setdefault("rebalance_timeout_ms", 10_000)
        return self.send(member_id, 0, frozenset(), topology=topology, **fields)

    def remove(self, *member_ids):
        self.carry_out(run_whole(remove_members(self.group, member_ids)))

    def expire(self, kind, member_id):
        """The timer fires."""
        epoch = self.timers.pop((kind, member_id))[1]
        if epoch is None or self.group.members[member_id].epoch == epoch:
            self.remove(member_id)

    def end_delay(self):
        self.is_delayed = False
        self.carry_out(run_whole(delayed_target(self.group, self.environment())))

    def change_topics(self, image):
        self.image = image
        self.group.metadata_changed()

    def delete(self):
        self.batches.append([encode_record(each) for each in self.group.tombstones()])

    def reload(self):
        """Another broker leads the partition."""
        self.group = self.replayed()
        self.is_delayed = False

    def carry_out(self, decision):
        epochs = self.group.epoch, self.group.assignment_epoch
        decision.records[:] = [decode_record(*encode_record(each)) for each in decision.records]
        if decision.records:
            self.batches.append([encode_record(each) for each in decision.records])
        decision.apply(self.group)
        self.is_delayed |= decision.delay_ms > 0
        for change in decision.timers:
            if change.delay_ms is None:
                self.timers.pop((change.kind, change.member_id), None)
            else:
                self.timers[change.kind, change.member_id] = change.delay_ms, change.epoch
        self.check(epochs)

    def check(self, epochs):
        """GN 6.29, 6.25."""
        group = self.group
        assert epochs <= (group.epoch, group.assignment_epoch), "epochs went back"
        assert group.assignment_epoch <= group.epoch
        for member in group.members.values():
            assert member.epoch <= group.epoch
            assert (GroupTimer.SESSION, member.member_id) in self.timers
        assert set(group._active.values()) <= {1}, "a task is active twice"
        assert set(group._held.values()) <= {1}, "a process has a task twice"
        if group.configured is None or not group.configured.is_ready:
            assert group.epoch > group.assignment_epoch or not any(map(any, group.targets.values()))
        assert {member_id for _, member_id in self.timers} <= group.members.keys()
        assert stored(self.replayed()) == stored(group), "a replay gives another group"

    def replayed(self, batches=None):
        group = StreamsGroup(self.group.group_id)
        for batch in self.batches if batches is None else batches:
            for key, value in batch:
                group.apply(decode_record(key, value))
        return group
