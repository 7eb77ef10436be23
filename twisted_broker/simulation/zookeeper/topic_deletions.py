"""How a simulated controller deletes topics.

Owns `DELETE_TOPICS`, the node under which an operator names them, and `TopicDeletions`.

1. A topic is gone when all its replicas said that they deleted it; those of a broker that is away
   are asked when it is back.

Source: KRAFT 2.2; Kafka 3.9's `TopicDeletionManager`. Not here: StopReplica on its way
(`simulation/zookeeper/controller_channels.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from twisted_broker.interfaces import TopicPartition
from twisted_broker.simulation.zookeeper.controller_context import TOPICS, ControllerContext
from twisted_broker.simulation.zookeeper.controller_events import ControllerEvents
from twisted_broker.zookeeper.cluster_state import EPOCH_DURING_DELETE, LEADER_DURING_DELETE
from twisted_broker.zookeeper.znodes import config_path

DELETE_TOPICS = "/admin/delete_topics"


class TopicDeletions:
    """`look_at_topics` is an event once a topic is gone: it may have been made again."""

    def __init__(
        self,
        context: ControllerContext,
        events: ControllerEvents,
        look_at_topics: Callable[[], Awaitable[None]],
    ) -> None:
        self._context, self._events = context, events
        self._look_at_topics = look_at_topics

    async def look(self) -> None:
        if not self._context.epoch:
            return
        found = await self._context.children(
            DELETE_TOPICS, lambda: self._events.put("delete", self.look)
        )
        for topic in found:
            if topic not in self._context.deleting:
                if not any(name.topic == topic for name in self._context.assigned):
                    await self._context.remove(f"{DELETE_TOPICS}/{topic}")
                    continue
                self._begin(topic)

    def _replicas_of(self, topic: str) -> set[tuple[TopicPartition, int]]:
        return {
            (name, replica)
            for name, each in self._context.assigned.items()
            if name.topic == topic
            for replica in each.replicas
        }

    def _begin(self, topic: str) -> None:
        self._context.note(f"deletes {topic}")
        self._context.deleting[topic] = self._replicas_of(topic)
        for name, state in self._context.states.items():
            if name.topic == topic:
                self._context.states[name] = state._replace(leader=LEADER_DURING_DELETE)
        self._context.update_metadata(
            self._context.live, [name for name in self._context.states if name.topic == topic]
        )
        self._stop_replicas_of(topic, stop_first=True)

    def _stop_replicas_of(self, topic: str, stop_first: bool = False) -> None:
        for node_id in self._context.live:
            stops = [
                (name, EPOCH_DURING_DELETE)
                for name, replica in self._context.deleting[topic]
                if replica == node_id
            ]
            if stops and stop_first:
                self._context.sender.stop_replicas(node_id, stops, False)
            if stops:
                self._context.sender.stop_replicas(
                    node_id, stops, True, self._deleted_by(topic, node_id)
                )

    def _deleted_by(self, topic: str, node_id: int) -> Callable[[Any], None]:
        def answered(answer: Any) -> None:
            if answer.error_code or not self._context.epoch:
                return
            for each in answer.partition_errors:
                name = TopicPartition(each.topic_name, each.partition_index)
                if not each.error_code:
                    self._context.counted("replica deleted by StopReplica")
                    self._context.deleting.get(topic, set()).discard((name, node_id))
            if topic in self._context.deleting and not self._context.deleting[topic]:
                self._events.put(None, lambda: self._end(topic))

        return answered

    def resume(self) -> None:
        for topic in self._context.deleting:
            self._stop_replicas_of(topic)

    async def _end(self, topic: str) -> None:
        if not self._context.epoch or topic not in self._context.deleting:
            return
        for path in (
            f"{TOPICS}/{topic}",
            config_path("topics", topic),
            f"{DELETE_TOPICS}/{topic}",
        ):
            await self._context.remove(path)
        self._context.note(f"deleted {topic}")
        self._context.counted("topic deleted")
        del self._context.deleting[topic]
        self._context.topic_ids.pop(topic, None)
        for name in [name for name in self._context.assigned if name.topic == topic]:
            del self._context.assigned[name]
            self._context.states.pop(name, None)
        self._events.put("topics", self._look_at_topics)
