"""Two brokers that take the same steps, one of which reads every partition in every fetch: nobody
can tell which.
"""

from __future__ import annotations

from typing import Any

from hypothesis.stateful import RuleBasedStateMachine, invariant

from twisted_broker.replication.idle_partitions import idle_reads


class TwoWorlds(RuleBasedStateMachine):
    """`worlds`: the broker with idle partitions, and the other one; made by the first step."""

    worlds: list[Any]

    def do(self, action: str, *arguments: int) -> None:
        for world in self.worlds:
            world.do(action, *arguments)

    @invariant()
    def nobody_can_tell(self) -> None:
        if hasattr(self, "worlds"):
            idle, reading = (world.seen() for world in self.worlds)
            assert idle == reading

    @invariant()
    def a_read_of_idle_partitions_gives_nothing_new(self) -> None:
        if hasattr(self, "worlds"):
            assert all(
                idle.holds()
                for partition in self.worlds[0].fixture.replicas.partitions.values()
                for idle in idle_reads(partition)
            )
