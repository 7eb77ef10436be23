"""The administrator of a cluster in ZooKeeper mode: writes to ZooKeeper, as Kafka's tools did.

Owns `ZooKeeperAdmin`. What leaders are sent (DeleteRecords) is as everywhere.

Not here: what the controller makes of it (`simulation/zookeeper/controller.py`).
"""

from __future__ import annotations

import json
from typing import Any

from twisted_broker.interfaces import TopicPartition
from twisted_broker.simulation.admin import Admin
from twisted_broker.simulation.run_options import Options, Topic
from twisted_broker.simulation.zookeeper.cluster import ZooKeeperCluster
from twisted_broker.simulation.zookeeper.controller import ELECT
from twisted_broker.simulation.zookeeper.controller_channels import Assigned
from twisted_broker.simulation.zookeeper.controller_context import TOPICS, topic_json
from twisted_broker.simulation.zookeeper.reassignments import REASSIGN
from twisted_broker.simulation.zookeeper.topic_deletions import DELETE_TOPICS
from twisted_broker.zookeeper.znodes import config_path

_DELETED_WITHIN = 60


class ZooKeeperAdmin(Admin):
    """`cluster` is set before it works."""

    cluster: ZooKeeperCluster

    @property
    def _tree(self) -> Any:
        return self.cluster.ensemble.tree

    def _put(self, path: str, value: Any) -> None:
        data = json.dumps(value).encode()
        if path in self._tree.nodes:
            self._tree.set(path, data)
        else:
            self._tree.create(path, data)

    async def create(self, topic: Topic) -> None:
        brokers = [int(name[1:]) for name in self.cluster.brokers]
        path = f"{TOPICS}/{topic.name}"
        if path in self._tree.nodes:
            return
        assigned = {}
        for number in range(topic.partitions):
            first = self.random.randrange(len(brokers))
            ring = brokers[first:] + brokers[:first]
            assigned[TopicPartition(topic.name, number)] = Assigned(tuple(ring[: topic.replicas]))
        topic_id = self.random.randbytes(16) if self.cluster.protocol.topic_ids else None
        self._put(config_path("topics", topic.name), {"version": 1, "config": topic.settings})
        self._tree.create(path, topic_json(assigned, topic_id))
        self.note(f"creates {topic.name}")

    async def change(self, topic: str, name: str, value: str) -> None:
        path = config_path("topics", topic)
        if path not in self._tree.nodes:
            return
        settings = json.loads(self._tree.node(path).data)["config"] | {name: value}
        self._put(path, {"version": 1, "config": settings})
        entity = {"version": 2, "entity_path": f"topics/{topic}"}
        self._tree.create(
            "/config/changes/config_change_", json.dumps(entity).encode(), sequence=True
        )
        self.note(f"{topic} {name}={value}")

    async def act(self, what: str, options: Options) -> None:
        own = {
            "remake a topic": self.remake,
            "reassign": self.reassign,
            "elect preferred leaders": self.elect,
        }.get(what)
        if own is None:
            await super().act(what, options)
        else:
            await own(options)

    async def remake(self, options: Options) -> None:
        topic = self.random.choice(options.churn)
        path = f"{TOPICS}/{topic.name}"
        if path not in self._tree.nodes:
            return
        self.note(f"deletes {topic.name}")
        self._put(f"{DELETE_TOPICS}/{topic.name}", {})
        for _ in range(_DELETED_WITHIN * 2):
            if path not in self._tree.nodes:
                await self.create(topic)
                return
            await self.pause(0.5)

    async def reassign(self, options: Options) -> None:
        topic = self.random.choice(options.topics)
        target = self.random.sample(options.broker_ids, topic.replicas)
        partition = self.random.randrange(topic.partitions)
        path = f"{REASSIGN}/{topic.name}-{partition}"
        if path not in self._tree.nodes:
            self._put(path, target)
            self.note(f"reassigns {topic.name}-{partition} to {target}")

    async def elect(self, options: Options) -> None:
        if ELECT not in self._tree.nodes:
            self._tree.create(ELECT, b"{}")
            self.note("elects preferred leaders")
