"""A broker in memory that leads a topic, and members of share groups that speak to it."""

from tests.memory_broker import MemoryBroker
from twisted_broker.coordinator.share_state.values import SharePartitionKey
from twisted_broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from twisted_broker.wire.messages.share_fetch import (
    AcknowledgementBatch,
    ShareAcknowledgeRequest,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchTopic,
    ShareForgottenTopic,
)
from twisted_broker.wire.messages.topics import CreatableTopic, CreateTopicsRequest
from twisted_broker.wire.record_builder import BatchBuilder

KINDS = {"gap": 0, "accept": 1, "release": 2, "reject": 3, "renew": 4}


class ShareBroker(MemoryBroker):
    """Has topic `t` of two partitions, whose share partitions of group `g` begin at offset 0."""

    def __init__(self, **settings):
        super().__init__(share_coordinator_state_topic_num_partitions="1", **settings)
        self.start()
        created = self.ask(
            CreateTopicsRequest(
                topics=[CreatableTopic(name="t", num_partitions=2, replication_factor=1)],
                timeout_ms=10_000,
            ),
            7,
        )
        self.topic_id = created.topics[0].topic_id
        for partition in range(2):
            self.initialize("g", partition)

    @property
    def broker_server(self):
        return self.broker.broker_server

    @property
    def manager(self):
        return self.broker_server.share_partitions

    def key(self, group="g", partition=0):
        return SharePartitionKey(group, self.topic_id, partition)

    def initialize(self, group, partition=0, start=0, epoch=1):
        self.run(self.broker_server.persister.initialize(self.key(group, partition), epoch, start))

    def stored(self, group="g", partition=0):
        """What the share coordinator has: start offset, and batches as text."""
        state = self.run(self.broker_server.persister.read(self.key(group, partition), -1))
        words = {0: "free", 2: "ack", 4: "arch"}
        batches = ", ".join(
            f"{first}-{last} {words[kind]} x{count}" for first, last, kind, count in state.batches
        )
        return state.start_offset, batches

    def produce(self, *sizes, partition=0):
        """A batch for each number, of so many records."""
        for size in sizes:
            builder = BatchBuilder()
            for number in range(size):
                builder.append(self.runtime.wall_ms(), None, b"v%d" % number)
            answer = self.ask(
                ProduceRequest(
                    acks=-1,
                    timeout_ms=5000,
                    topic_data=[
                        TopicProduceData(
                            name="t",
                            partition_data=[
                                PartitionProduceData(index=partition, records=builder.build())
                            ],
                        )
                    ],
                ),
                9,
            )
            assert answer.responses[0].partition_responses[0].error_code == 0

    def settle(self):
        self.pass_time(0.05)


class Member:
    """A member with a connection of its own. `epoch` is that of its next request."""

    def __init__(self, broker, name="m1", group="g"):
        self.broker, self.name, self.group = broker, name, group
        self.connection = broker.connection()
        self.epoch = 0

    def _topics(self, partitions, acks=None):
        acks = acks or {}
        return [
            ShareFetchTopic(
                topic_id=self.broker.topic_id,
                partitions=[
                    ShareFetchPartition(
                        partition_index=partition,
                        acknowledgement_batches=[
                            AcknowledgementBatch(
                                first_offset=int(each.split()[0].split("-")[0]),
                                last_offset=int(each.split()[0].split("-")[-1]),
                                acknowledge_types=[KINDS[kind] for kind in each.split()[1:]],
                            )
                            for each in filter(None, acks.get(partition, "").split(","))
                        ],
                    )
                    for partition in sorted({*partitions, *acks})
                ],
            )
        ]

    def begin_fetch(self, *partitions, acks=None, epoch=None, version=2, forget=(), **more):
        epoch = self.epoch if epoch is None else epoch
        request = ShareFetchRequest(
            group_id=self.group,
            member_id=self.name,
            share_session_epoch=epoch,
            **{
                "max_wait_ms": 0,
                "min_bytes": 1,
                "max_bytes": 1_000_000,
                "max_records": 500,
                "batch_size": 500,
            }
            | more,
            topics=self._topics(partitions, acks) if partitions or acks else [],
            forgotten_topics_data=[
                ShareForgottenTopic(topic_id=self.broker.topic_id, partitions=list(forget))
            ]
            if forget
            else [],
        )
        self.epoch = epoch + 1
        return self.connection.send(request, version)

    def fetch(self, *partitions, **more):
        return Fetched(self.broker.run(self.begin_fetch(*partitions, **more)))

    def take(self, *partitions, **more):
        """What it acquires of partition 0, as text; the state is loaded by the first fetch."""
        return self.fetch(*partitions, max_wait_ms=100, **more).acquired.get(0, "")

    def acknowledge(self, acks, epoch=None, version=2, renew=False):
        epoch = self.epoch if epoch is None else epoch
        request = ShareAcknowledgeRequest(
            group_id=self.group,
            member_id=self.name,
            share_session_epoch=epoch,
            is_renew_ack=renew,
            topics=self._topics((), {0: acks} if isinstance(acks, str) else acks),
        )
        self.epoch = epoch + 1
        answer = self.broker.run(self.connection.send(request, version))
        return answer.error_code, {
            partition.partition_index: partition.error_code
            for topic in answer.responses
            for partition in topic.partitions
        }


class Fetched:
    """An answer: by partition what was acquired, the records' batches, the errors."""

    def __init__(self, answer):
        self.answer = answer
        self.error = answer.error_code
        partitions = [each for topic in answer.responses for each in topic.partitions]
        self.partitions = [each.partition_index for each in partitions]
        self.errors = {each.partition_index: each.error_code for each in partitions}
        self.acknowledged = {
            each.partition_index: each.acknowledge_error_code for each in partitions
        }
        self.acquired = {
            each.partition_index: " ".join(
                f"{one.first_offset}-{one.last_offset}x{one.delivery_count}"
                for one in each.acquired_records
            )
            for each in partitions
            if each.acquired_records
        }
        self.records = {each.partition_index: bytes(each.records or b"") for each in partitions}
