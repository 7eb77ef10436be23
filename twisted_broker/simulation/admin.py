"""The administrator of a simulated cluster: makes topics, and changes what is there under load.

Owns `Admin` and `ACTS`, what it may do. Each act is one try: it may have been done when no answer
came.

1. An offset is noted before DeleteRecords is sent with it: from then on nobody is owed what lies
   below.
2. A topic is deleted only by its id: a request that comes late deletes no topic of the same name.

Not here: which acts a seed has (`simulation/workload.py`).
"""

from __future__ import annotations

from typing import Any

from twisted_broker.interfaces import TopicPartition
from twisted_broker.simulation.client import REQUEST_TIMEOUT_MS, Client
from twisted_broker.simulation.options import Options, Topic
from twisted_broker.simulation.replica_acts import MOVE, THROTTLE, move_replica, throttle
from twisted_broker.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from twisted_broker.wire.errors import ErrorCode, error_of
from twisted_broker.wire.messages import configs, reassignment, topics
from twisted_broker.wire.messages import list_offsets as offsets

_ANY_OFFSET = 1 << 62


class Admin(Client):
    """See the module's card."""

    async def create(self, topic: Topic) -> None:
        """Tries until it is there."""
        while not self.stopped:
            code = await self._create(topic)
            if code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                return
            await self.pause(0.3)

    async def _create(self, topic: Topic) -> ErrorCode:
        wanted = topics.CreatableTopic(
            name=topic.name,
            num_partitions=topic.partitions,
            replication_factor=topic.replicas,
            configs=[
                topics.CreatableTopicConfig(name=key, value=value)
                for key, value in sorted(topic.settings.items())
            ],
        )
        answer = await self.send_to_any(
            topics.CreateTopicsRequest(topics=[wanted], timeout_ms=REQUEST_TIMEOUT_MS), 7
        )
        code = (
            ErrorCode.REQUEST_TIMED_OUT if answer is None else error_of(answer.topics[0].error_code)
        )
        self.note(f"create {topic.name}: {code.name}")
        return code

    async def change(self, topic: str, name: str, value: str) -> None:
        """A setting of a topic."""
        resource = configs.IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=2,
            resource_name=topic,
            configs=[
                configs.IncrementalAlterConfigsRequestAlterableConfig(
                    name=name, config_operation=0, value=value
                )
            ],
        )
        answer = await self.send_to_any(
            configs.IncrementalAlterConfigsRequest(resources=[resource]), 1
        )
        code = "no answer" if answer is None else error_of(answer.responses[0].error_code).name
        self.note(f"{topic} {name}={value}: {code}")

    # acts under load

    async def work(self, options: Options) -> None:
        """Makes the topics, then does one act after another."""
        for topic in (*options.topics, *options.churn, *options.compacted):
            await self.create(topic)
        while (
            options.acts
            and not self.stopped
            and await self.next_action(lambda random: random.expovariate(1 / options.act_seconds))
        ):
            if not self.stopped:
                act = self.random.choice(options.acts)
                self.actor.acts(act)
                await self.act(act, options)

    async def act(self, what: str, options: Options) -> None:
        """One of `ACTS`."""
        await ACTS[what](self, options)

    async def change_min_isr(self, options: Options) -> None:
        topic = self.random.choice(options.topics)
        most = min(topic.replicas, 2)
        await self.change(topic.name, "min.insync.replicas", str(self.random.randint(1, most)))

    async def change_log(self, options: Options) -> None:
        """Settings that logs obey at once; now and then that groups' commits roll."""
        if options.members and self.random.random() < 0.2:
            await self.change(OFFSETS_TOPIC, "internal.segment.bytes", "2000")
            return
        topic = self.random.choice([*options.topics, *options.churn])
        name, values = self.random.choice(options.log_changes)
        await self.change(topic.name, name, self.random.choice(values))

    async def shrink_internal(self, options: Options) -> None:
        """The logs of coordinators roll, and are cleaned."""
        topic = self.random.choice((OFFSETS_TOPIC, TRANSACTIONS_TOPIC))
        await self.change(topic, "internal.segment.bytes", self.random.choice(("600", "2000")))

    async def delete_records(self, options: Options) -> None:
        """Up to the high watermark, or to some offset below the end."""
        topic = self.random.choice(options.topics)
        partition = TopicPartition(topic.name, self.random.randrange(topic.partitions))
        upto = -1
        if self.random.random() < 0.7:
            upto = self.random.randint(0, max(0, await self._end(partition)))
        self.notes.deleting(partition, upto if upto >= 0 else _ANY_OFFSET)
        deleted = topics.DeleteRecordsPartition(partition_index=partition.partition, offset=upto)
        wanted = topics.DeleteRecordsTopic(name=partition.topic, partitions=[deleted])
        request = topics.DeleteRecordsRequest(topics=[wanted], timeout_ms=REQUEST_TIMEOUT_MS)
        await self.epoch_of_leader(partition)
        answer = await self.send_to_leader(partition, request, 2)
        if answer is None or answer.topics[0].partitions[0].error_code:
            self.forget_leader(partition)

    async def _end(self, partition: TopicPartition) -> int:
        await self.epoch_of_leader(partition)
        wanted = offsets.ListOffsetsPartition(
            partition_index=partition.partition, current_leader_epoch=-1, timestamp=-1
        )
        topic = offsets.ListOffsetsTopic(name=partition.topic, partitions=[wanted])
        answer = await self.send_to_leader(
            partition, offsets.ListOffsetsRequest(replica_id=-1, topics=[topic]), 5
        )
        return -1 if answer is None else int(answer.topics[0].partitions[0].offset)

    async def remake(self, options: Options) -> None:
        """Deletes a topic that is written to, and makes it again."""
        topic = self.random.choice(options.churn)
        await self.refresh(topic.name)
        known = self.topic_ids.get(topic.name)
        if known is None:
            return
        state = topics.DeleteTopicState(name=None, topic_id=known)
        request = topics.DeleteTopicsRequest(topics=[state], timeout_ms=REQUEST_TIMEOUT_MS)
        answer = await self.send_to_any(request, 6)
        code = "no answer" if answer is None else error_of(answer.responses[0].error_code).name
        self.note(f"delete {topic.name}: {code}")
        await self.pause(self.random.choice((0.0, 0.0, 1.0)))
        await self.create(topic)

    async def reassign(self, options: Options) -> None:
        """A partition gets other replicas, or others of the same in another order."""
        topic = self.random.choice(options.topics)
        count = self.random.randint(min(2, len(options.broker_ids)), topic.replicas)
        target = self.random.sample(options.broker_ids, count)
        if options.liveness:
            target = list(dict.fromkeys([*target, *options.broker_ids[:2]]))
        partition = reassignment.ReassignablePartition(
            partition_index=self.random.randrange(topic.partitions),
            replicas=target if self.random.random() < 0.9 else None,
        )
        request = reassignment.AlterPartitionReassignmentsRequest(
            timeout_ms=REQUEST_TIMEOUT_MS,
            topics=[reassignment.ReassignableTopic(name=topic.name, partitions=[partition])],
        )
        answer = await self.send_to_any(request, 1)
        self.note(f"reassign {topic.name}-{partition.partition_index} to {target}: {_code(answer)}")

    async def elect(self, options: Options) -> None:
        """The preferred leaders of all partitions."""
        request = reassignment.ElectLeadersRequest(
            election_type=0, topic_partitions=None, timeout_ms=REQUEST_TIMEOUT_MS
        )
        self.note(f"elect preferred leaders: {_code(await self.send_to_any(request, 2))}")


def _code(answer: Any) -> str:
    return "no answer" if answer is None else error_of(answer.error_code).name


ACTS = {
    "change min.insync.replicas": Admin.change_min_isr,
    "change log settings": Admin.change_log,
    "delete records": Admin.delete_records,
    "remake a topic": Admin.remake,
    "reassign": Admin.reassign,
    "elect preferred leaders": Admin.elect,
    MOVE: move_replica,
    THROTTLE: throttle,
    "shrink internal segments": Admin.shrink_internal,
}
