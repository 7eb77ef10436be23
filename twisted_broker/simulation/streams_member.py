"""A member of a streams group (KIP-1071): one process with its tasks, one for each partition of
each source topic.

Owns `StreamsMember` and `STREAMS_GROUP`.

1. Each topic is the source of a subtopology of its own, so an active task is named by its
   partition. The first may have a state: its changelog topic is made by the broker, and there are
   standbys then.
2. Every heartbeat says which tasks it has. An answer names them only when they change: after one
   that was lost it joins anew.

Not here: joining, commits and what must hold of active tasks, which are a consumer group's
(`simulation/consumer_member.py`, `simulation/checks/consumer_groups.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from twisted_broker.interfaces import Runtime, TopicPartition
from twisted_broker.simulation.checks.consumer_groups import ConsumerGroupChecker
from twisted_broker.simulation.classic_consumer import comes_and_goes
from twisted_broker.simulation.client import Address
from twisted_broker.simulation.client_notes import Notes
from twisted_broker.simulation.consumer_member import ConsumerMember
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages import streams_groups
from twisted_broker.wire.messages.group_records import Subtopology, TaskIds, TopicInfo

STREAMS_GROUP = "k0"
CHANGELOG = f"{STREAMS_GROUP}-store-changelog"
_REBALANCE_MS = 4_000


class StreamsMember(ConsumerMember):
    """Of `STREAMS_GROUP`. `replicas`: of the changelog topic; 0: there is no state."""

    group = STREAMS_GROUP
    _version = 0

    def __init__(
        self,
        runtime: Runtime,
        name: str,
        brokers: Sequence[Address],
        notes: Notes,
        places: Sequence[TopicPartition],
        checker: ConsumerGroupChecker,
        replicas: int,
    ) -> None:
        super().__init__(runtime, name, brokers, notes, places, checker)
        self._replicas = replicas
        self._active = self._standby = frozenset[TopicPartition]()

    @property
    def _listed(self) -> frozenset[TopicPartition]:
        return self._active if self._generation >= 0 else frozenset()

    def _heartbeat(self, epoch: int, listed: frozenset[TopicPartition]) -> Any:
        joins = epoch == 0
        if joins:
            self._active = self._standby = frozenset()
        return streams_groups.StreamsGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self._member_id,
            member_epoch=epoch,
            rebalance_timeout_ms=_REBALANCE_MS,
            topology=self._topology() if joins else None,
            active_tasks=self._task_ids(listed),
            standby_tasks=self._task_ids(self._standby),
            warmup_tasks=[],
            process_id=self.name,
        )

    def _topology(self) -> streams_groups.StreamsGroupHeartbeatTopology:
        changelogs = [TopicInfo(name=CHANGELOG, partitions=0, replication_factor=self._replicas)]
        return streams_groups.StreamsGroupHeartbeatTopology(
            epoch=0,
            subtopologies=[
                Subtopology(
                    subtopology_id=name,
                    source_topics=[name],
                    state_changelog_topics=[] if number or not self._replicas else changelogs,
                )
                for number, name in enumerate(self._names)
            ],
        )

    @staticmethod
    def _task_ids(places: Iterable[TopicPartition]) -> list[TaskIds]:
        found: dict[str, list[int]] = {}
        for place in sorted(places):
            found.setdefault(place.topic, []).append(place.partition)
        return [TaskIds(subtopology_id=name, partitions=numbers) for name, numbers in found.items()]

    def _given(self, answer: Any) -> frozenset[TopicPartition] | None:
        if answer.status:
            self.notes.reached("streams group had to wait")
        if answer.active_tasks is None:
            return None
        active, standby = _tasks(answer.active_tasks), _tasks(answer.standby_tasks)
        self._checker.standbys(self._member_id, active, standby)
        if active:
            self.notes.reached("task given to a streams member")
        if standby:
            self.notes.reached("standby task given to a streams member")
        if self._active - active:
            self.notes.reached("task revoked")
        self._active, self._standby = active, standby
        return active

    def _unanswered(self) -> None:
        self._checker.fenced(self._member_id)
        self.owned, self._generation = {}, -1

    async def _work(self) -> None:
        comes_and_goes(self)
        await super()._work()
        if self._generation >= 0 and self._active - self.owned.keys():
            await self._take(self._active)  # what was committed last was not answered before

    def _refused(self, code: ErrorCode) -> None:
        super()._refused(code)
        if self._generation < 0:
            self._active = self._standby = frozenset()


def _tasks(tasks: Any) -> frozenset[TopicPartition]:
    return frozenset(
        TopicPartition(each.subtopology_id, number)
        for each in tasks or ()
        for number in each.partitions
    )
