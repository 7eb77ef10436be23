"""The view on which the controller decides: the image with everything decided so far, and the
settings in force.

Owns `ClusterView` and the records by which a broker leaves or joins the leadership and the ISRs of
its partitions.

1. A view never changes; each decision is taken on the newest one and yields records, nothing else.
2. A broker that leaves is taken out of every ISR it is in; one that comes may lead partitions that
   nobody leads.

Source: Kafka's `ReplicationControlManager.generateLeaderAndIsrUpdates`,
`ConfigurationControlManager`; `RL 8.2`, `RL 8.3`. Not here: when a broker leaves or comes
(`broker_registry.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from itertools import islice

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.cluster.election import Election
from twisted_broker.cluster.partition_change import ELR_FEATURE, PartitionRules, change_partition
from twisted_broker.cluster.placement import default_directory
from twisted_broker.cluster.records import SHRINK_LEVEL
from twisted_broker.image.entries import NO_LEADER, PartitionRegistration, TopicImage
from twisted_broker.image.metadata_image import BROKER_RESOURCE, TOPIC_RESOURCE, MetadataImage
from twisted_broker.log_config import stored_topic_value
from twisted_broker.settings import Value
from twisted_broker.wire.schema import Record

NOBODY = -1
# Kafka's bound for one check; the next one goes on.
MAX_GIVEN_BACK = 1000
# some milliseconds of one turn: to look at a partition takes a microsecond, to decide on it twenty
LOOKED_AT_PER_STEP, PARTITIONS_PER_STEP = 2000, 100


class ClusterView:
    """`image`: as decided so far; `config`: the controller's settings, overridden by the dynamic
    ones of the cluster and of its own node.
    """

    __slots__ = ("_of_topics", "config", "image")

    def __init__(self, image: MetadataImage, config: BrokerConfig) -> None:
        self.image = image
        self.config = config
        self._of_topics: dict[str, tuple[int, bool]] = {}

    @property
    def elr(self) -> bool:
        return self.image.features.get(ELR_FEATURE, 0) > 0

    def topic_setting(self, topic: str, name: str) -> Value:
        """The value in force for a topic: its own, else the cluster's default, else this
        controller's.
        """
        return stored_topic_value(name, self.config, self.image.config(TOPIC_RESOURCE, topic))

    def may_lead(self, broker_id: int) -> bool:
        broker = self.image.brokers.get(broker_id)
        return broker is not None and broker.may_be_in_isr

    def rules(
        self,
        topic: str,
        partition: PartitionRegistration,
        *,
        leaving: int = NOBODY,
        coming: int = NOBODY,
    ) -> PartitionRules:
        """The rules for one partition while a broker leaves or comes."""

        def acceptable(broker_id: int) -> bool:
            if broker_id == leaving or not (broker_id == coming or self.may_lead(broker_id)):
                return False
            return self.image.brokers[broker_id].has_online_directory(
                partition.directory_of(broker_id)
            )

        minimum, unclean = self._of_topics.get(topic) or self._rules_of_topic(topic)
        return PartitionRules(
            acceptable,
            self.elr,
            minimum,
            unclean,
            self._new_directory,
            0 < self.image.metadata_version < SHRINK_LEVEL,
        )

    def _rules_of_topic(self, topic: str) -> tuple[int, bool]:
        minimum = self.topic_setting(topic, "min.insync.replicas")
        assert isinstance(minimum, int)
        found = self._of_topics[topic] = (minimum, self.elects_unclean(topic))
        return found

    def elects_unclean(self, topic: str) -> bool:
        return bool(self.topic_setting(topic, "unclean.leader.election.enable"))

    def _new_directory(self, broker_id: int) -> bytes:
        return default_directory(self.image.brokers.get(broker_id))

    def leads_any(self, broker_id: int) -> Generator[None, None, bool]:
        """Pauses after every `LOOKED_AT_PER_STEP`."""
        for number, some in enumerate(self._looked_at_together()):
            if number:
                yield
            if any(partition.leader == broker_id for partition in some):
                return True
        return False

    def _looked_at_together(self) -> Iterator[list[PartitionRegistration]]:
        """All partitions, in no order, `LOOKED_AT_PER_STEP` at a time."""
        topics = self.image.topics_by_id.values()
        left = (partition for topic in topics for partition in topic.partitions.values())
        while some := list(islice(left, LOOKED_AT_PER_STEP)):
            yield some

    def concerned_in_steps(
        self,
        wanted: Callable[[PartitionRegistration], bool],
        topics: Collection[str] | None = None,
    ) -> Generator[None, None, list[tuple[TopicImage, int, PartitionRegistration]]]:
        """Partitions (of `topics`; None: of all) for which `wanted` holds, by topic name and
        number. Pauses after every `LOOKED_AT_PER_STEP`.
        """
        found, looked_at = [], 0
        for name in sorted(self.image.topics_by_name if topics is None else topics):
            topic = self.image.topics_by_name.get(name)
            if topic is None:
                continue
            for number in sorted(topic.partitions):
                looked_at += 1
                if looked_at % LOOKED_AT_PER_STEP == 0:
                    yield
                partition = topic.partitions[number]
                if wanted(partition):
                    found.append((topic, number, partition))
        return found

    def changes_without_broker(
        self, broker_id: int, *, unclean: bool = False, directories: Collection[bytes] | None = None
    ) -> Generator[None, None, list[Record]]:
        """The records that take a broker out of its ISRs. Pauses after every
        `PARTITIONS_PER_STEP`.

        `unclean`: it may have lost data and is no longer eligible anywhere. `directories`: only
        these failed; what lay there may be gone with them, and the broker is not eligible for it.
        """
        unclean = unclean or directories is not None

        def concerned(partition: PartitionRegistration) -> bool:
            if directories is not None and partition.directory_of(broker_id) not in directories:
                return False
            return (
                broker_id in partition.isr
                or (unclean and broker_id in partition.elr)
                or partition.leader == broker_id
            )

        found: list[Record] = []
        chosen = yield from self.concerned_in_steps(concerned)
        for count, (topic, number, partition) in enumerate(chosen, 1):
            if count % PARTITIONS_PER_STEP == 0:
                yield
            rules = self.rules(topic.name, partition, leaving=broker_id)
            isr = [member for member in partition.isr if member != broker_id]
            gone = (broker_id,) if unclean else ()
            change = change_partition(
                partition, topic.id, number, rules, isr=isr, unclean_shutdown=gone
            )
            if change is not None:
                found.append(change)
        return found

    def elections_with_broker(self, broker_id: int) -> Generator[None, None, list[Record]]:
        """The records that elect leaders for partitions without one, now that a broker may lead.
        Pauses after every `PARTITIONS_PER_STEP`.
        """

        def concerned(partition: PartitionRegistration) -> bool:
            return partition.leader == NO_LEADER and broker_id in partition.replicas

        found: list[Record] = []
        chosen = yield from self.concerned_in_steps(concerned)
        for count, (topic, number, partition) in enumerate(chosen, 1):
            if count % PARTITIONS_PER_STEP == 0:
                yield
            change = change_partition(
                partition, topic.id, number, self.rules(topic.name, partition, coming=broker_id)
            )
            if change is not None:
                found.append(change)
        return found

    def electing_uncleanly(self, topics: Iterable[str]) -> dict[str, int]:
        """Those of `topics` that are there and may elect anyone, with how many partitions."""
        found = {}
        for name in topics:
            topic = self.image.topics_by_name.get(name)
            if topic is not None and self.elects_unclean(name):
                found[name] = len(topic.partitions)
        return found

    def unclean_leaders(
        self, topics: Collection[str] | None = None
    ) -> Generator[None, None, list[Record]]:
        """Elects anyone for those partitions without a leader whose topics (of `topics`; None: of
        all) allow it. Pauses after every `PARTITIONS_PER_STEP`.
        """
        found: list[Record] = []
        leaderless = yield from self.concerned_in_steps(
            lambda each: each.leader == NO_LEADER, topics
        )
        for count, (topic, number, partition) in enumerate(leaderless, 1):
            if count % PARTITIONS_PER_STEP == 0:
                yield
            _, unclean = self._of_topics.get(topic.name) or self._rules_of_topic(topic.name)
            if unclean:
                self._add_unclean_leader(found, topic, number, partition)
        return found

    def _add_unclean_leader(
        self, found: list[Record], topic: TopicImage, number: int, partition: PartitionRegistration
    ) -> None:
        change = change_partition(partition, topic.id, number, self.rules(topic.name, partition))
        if change is not None:
            found.append(change)

    def preferred_leaders(self, allowed_percentage: int) -> Generator[None, None, list[Record]]:
        """Moves leadership back to preferred leaders: for each broker that may lead and of whose
        preferred partitions more than `allowed_percentage` have another leader. At most
        `MAX_GIVEN_BACK`. Pauses after every `PARTITIONS_PER_STEP`.
        """
        theirs: Counter[int] = Counter()
        elsewhere: Counter[int] = Counter()
        for number, some in enumerate(self._looked_at_together()):
            if number:
                yield
            for partition in some:
                theirs[partition.replicas[0]] += 1
                elsewhere[partition.replicas[0]] += partition.leader != partition.replicas[0]
        short = {
            broker
            for broker, count in elsewhere.items()
            if count * 100 > theirs[broker] * allowed_percentage and self.may_lead(broker)
        }
        found: list[Record] = []
        chosen = yield from self.concerned_in_steps(
            lambda each: each.replicas[0] in short and each.leader != each.replicas[0]
        )
        for count, (topic, number, partition) in enumerate(chosen, 1):
            if count % PARTITIONS_PER_STEP == 0:
                yield
            change = change_partition(
                partition,
                topic.id,
                number,
                self.rules(topic.name, partition),
                election=Election.PREFERRED,
            )
            if change is not None and change.leader == partition.replicas[0]:
                found.append(change)
                if len(found) == MAX_GIVEN_BACK:
                    break
        return found


def with_dynamic_defaults(
    config: BrokerConfig, image: MetadataImage
) -> tuple[BrokerConfig, list[str]]:
    """A controller's settings, overridden by the dynamic ones of the cluster and of its own node;
    and a line for each stored value that is refused.
    """
    return config.with_stored(
        image.config(BROKER_RESOURCE, ""), image.config(BROKER_RESOURCE, str(config.node_id))
    )
