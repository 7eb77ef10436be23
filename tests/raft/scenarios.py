"""Stories with a given shape instead of random faults: Kafka's nine properties that a random run
does not make sure of (QU 7.3), and pre-votes.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.raft.simulation import Node, World
from twisted_broker.raft.leader_state import LeaderState


class Quorum:
    """`count` voters of kraft.version 1 that run, and have a leader with a high watermark."""

    def __init__(self, seed: int, count: int = 3, observers: int = 0, kraft_version: int = 1):
        self.world = World(seed, count, observers, kraft_version)
        for node in self.world.nodes.values():
            node.start()
        self.wait_for_leader()

    @property
    def leader(self) -> Node:
        return self.world.leaders()[-1]

    def rests(self, ms: float) -> None:
        self.world.run(self.world.now_ms + ms)

    def wait_for_leader(self, others_than: Iterable[int] = ()) -> Node:
        """Within ten election timeouts."""
        until = self.world.now_ms + 10_000
        while self.world.now_ms < until:
            self.rests(50)
            for node in self.world.leaders()[-1:]:
                assert node.core is not None
                state = node.core.quorum.state
                assert isinstance(state, LeaderState)
                if state.high_watermark is not None and node.id not in others_than:
                    return node
        raise AssertionError("no leader within ten election timeouts")

    def cut(self, *ways: tuple[int, int]) -> None:
        """Both ways between two nodes."""
        self.world.cut |= {*ways, *((b, a) for a, b in ways)}

    def proposes(self, count: int = 1) -> int:
        """The end of the log behind it."""
        node = self.leader
        assert node.core is not None
        node.core.propose(node.core.quorum.epoch, "data", count)
        node.carry_out(node.core.tick(node.now()))
        return node.core.node.log.end_offset

    def epoch(self, node_id: int) -> int:
        core = self.world.nodes[node_id].core
        assert core is not None
        return core.quorum.epoch
