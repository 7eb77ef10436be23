"""Runs of the quorum's simulation: proposals, faults and changes of membership for some seconds,
then rest, in which all must come together again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tests.raft.simulation import Node, World
from twisted_broker.raft.leader_state import LeaderState
from twisted_broker.raft.messages import AddRaftVoter, Answer, RemoveRaftVoter
from twisted_broker.raft.voter_set import VoterNode
from twisted_broker.wire.errors import ErrorCode

FAULTS_MS, REST_MS = 20_000, 15_000


class Run:
    """One seed."""

    def __init__(self, seed: int) -> None:
        # The kind of a run comes from its number, so that a few hundred have every kind.
        voters = (3, 3, 5, 1, 2, 4, 3)[seed % 7]
        kraft_version = 0 if seed % 4 == 1 else 1
        self.world = World(seed, voters, observers=seed % 3, kraft_version=kraft_version)
        self.random = self.world.random
        self.founders = voters
        self._proposed = 0
        self._disk_lost = False
        self._acknowledged: dict[int, int] = {}
        self._waiting: list[tuple[int, int, int]] = []
        world = self.world
        world.drops = self.random.choice([0.0, 0.02, 0.1])
        world.repeats = self.random.choice([0.0, 0.05])
        world.latency_ms = self.random.choice([1.0, 5.0, 30.0])
        for node in world.nodes.values():
            node.disk_ms = self.random.choice([1.0, 5.0, 60.0])
            node.auto_join = seed % 5 == 2

    def run(self) -> Counter[str]:
        world = self.world
        for node in world.nodes.values():
            world.after(self.random.uniform(0, 200), node.start)
        self._propose_soon()
        self._fault_soon()
        world.run(FAULTS_MS)
        self._rest()
        self._check_rest()
        return world.reach

    # load

    def _propose_soon(self) -> None:
        self.world.after(self.random.expovariate(1 / 120), self._propose)

    def _propose(self) -> None:
        self._propose_soon()
        leaders = self.world.leaders()
        if not leaders:
            return
        node = self.random.choice(leaders)  # an old one that does not know it may be among them
        assert node.core is not None
        self._proposed += 1
        epoch, count = node.core.quorum.epoch, self.random.choice([1, 1, 3])
        if node.core.propose(epoch, self._proposed, count) >= 0:
            self.world.reach["proposed"] += 1
        node.carry_out(node.core.tick(node.now()))
        if self.random.random() < 0.05:
            self._anybody(lambda each: each.snapshot())

    def _anybody(self, act: Callable[[Node], None]) -> None:
        running = [each for each in self.world.nodes.values() if each.core is not None]
        if running:
            act(self.random.choice(running))

    # faults

    def _fault_soon(self) -> None:
        self.world.after(self.random.expovariate(1 / 900), self._fault)

    def _fault(self) -> None:
        if self.world.now_ms > FAULTS_MS:
            return
        self._fault_soon()
        faults = [
            self._crash,
            self._crash,
            self._stop_in_order,
            self._cut_off,
            self._cut_off,
            self._cut_one_way,
            self._resign,
            self._add_voter,
            self._add_voter,
            self._remove_voter,
            self._upgrade,
            self._lose_disk,
        ]
        self.random.choice(faults)()

    def _restart_later(self, node: Node) -> None:
        self.world.after(self.random.choice([50.0, 500.0, 4000.0]), node.start_again)

    def _victim(self) -> Node:
        leaders = self.world.leaders()
        if leaders and self.random.random() < 0.5:
            return leaders[-1]
        return self.random.choice(list(self.world.nodes.values()))

    def _crash(self) -> None:
        node = self._victim()
        if node.core is not None:
            self.world.reach["crash"] += 1
            node.crash()
            self._restart_later(node)

    def _stop_in_order(self) -> None:
        node = self._victim()
        if node.core is not None:
            node.carry_out(node.core.stop(node.now(), 3000))

    def _cut_off(self) -> None:
        """A few from the others, both ways."""
        ids = list(self.world.nodes)
        some = set(self.random.sample(ids, self.random.randint(1, len(ids))))
        self._cut({(a, b) for a in ids for b in ids if (a in some) != (b in some)})

    def _cut_one_way(self) -> None:
        ids = list(self.world.nodes)
        some = set(self.random.sample(ids, self.random.randint(1, len(ids))))
        self._cut({(a, b) for a in ids for b in ids if a in some and b not in some})

    def _cut(self, ways: set[tuple[int, int]]) -> None:
        self.world.reach["cut"] += 1
        self.world.cut |= ways
        heal = self.random.choice([300.0, 2500.0, 6000.0])
        self.world.after(heal, lambda: self.world.cut.difference_update(ways))

    def _resign(self) -> None:
        for node in self.world.leaders()[-1:]:
            assert node.core is not None
            node.carry_out(node.core.resign(node.core.quorum.epoch, node.now()))

    # membership

    def _asks(self, request: AddRaftVoter | RemoveRaftVoter, word: str) -> None:
        for node in self.world.leaders()[-1:]:
            assert node.core is not None

            def answered(answer: Answer) -> None:
                if answer.error is ErrorCode.NONE:
                    self.world.reach[word] += 1
                self.world.reach[f"{word}: {answer.error.name}"] += 1

            node.carry_out(node.core.request(answered, request, node.now()))

    def _leader_voters(self) -> tuple[VoterNode, ...]:
        for node in self.world.leaders()[-1:]:
            assert node.core is not None
            return node.core.node.history.voters.nodes
        return ()

    def _add_voter(self) -> None:
        known = {each.id for each in self._leader_voters()}
        others = [node for node in self.world.nodes.values() if node.id not in known]
        if others:
            voter = self.world.voter(self.random.choice(others).key)
            self._asks(AddRaftVoter(voter, self.random.random() < 0.5), "voter added")

    def _remove_voter(self) -> None:
        voters = self._leader_voters()
        lost = [each for each in voters if self.world.nodes[each.id].key != each.key]
        if len(voters) == 2:
            # Not the leader, of two: if it dies before that is committed it may not be elected, and
            # has what the other lacks. So it is in Apache Kafka.
            leading = {each.id for each in self.world.leaders()}
            voters = tuple(each for each in voters if each.id not in leading)
        if self._disk_lost:
            voters = tuple(each for each in lost if each.key.has_directory)
        if voters:
            self._asks(RemoveRaftVoter(self.random.choice(voters).key), "voter removed")

    def _upgrade(self) -> None:
        for node in self.world.leaders()[-1:]:
            assert node.core is not None
            before = node.core.node.history.kraft_version
            answer, found = node.core.upgrade_kraft_version(1, False, node.now())
            if answer.error is ErrorCode.NONE and not before:
                self.world.reach["kraft.version upgraded"] += 1
            node.carry_out(found)

    def _lose_disk(self) -> None:
        """Once, of one of three voters at least, which then is another voter."""
        voters = self._leader_voters()
        is_dynamic = voters and all(each.key.has_directory for each in voters)
        if self._disk_lost or not is_dynamic or len(voters) < 3:
            return
        uncommitted = any(
            (node.core.node.history.voters_offset or 0) >= self.world.check.committed_end
            for node in self.world.nodes.values()
            if node.core is not None
        )
        if uncommitted or any(node.core is None for node in self.world.nodes.values()):
            return
        self._disk_lost = True
        self.world.reach["disk lost"] += 1
        node = self.world.nodes[self.random.choice(voters).id]
        node.lose_disk(2)
        self._restart_later(node)

    # the rest

    def _rest(self) -> None:
        world = self.world
        world.cut.clear()
        world.drops = world.repeats = 0.0
        world.latency_ms = 2.0
        for node in world.nodes.values():
            node.disk_ms = 2.0
            node.start_again()
        world.run(world.now_ms + REST_MS)

    def _check_rest(self) -> None:
        """15: a leader, and everybody at its end."""
        world = self.world
        leaders = world.leaders()
        assert leaders, "15: no leader"
        leader = leaders[-1]
        assert leader.core is not None
        state = leader.core.quorum.state
        assert isinstance(state, LeaderState)
        assert state.high_watermark is not None, "15: nothing is committed"
        epochs = set()
        for node in world.nodes.values():
            assert node.core is not None
            world.check.full_check(node)
            epochs.add(node.core.quorum.epoch)
            behind = leader.core.node.log.end_offset - node.core.node.log.end_offset
            assert behind < 100, f"15: node {node.id} is {behind} behind"
        assert len(epochs) == 1, f"15: epochs {epochs}"


def run_seed(seed: int) -> Counter[str]:
    return Run(seed).run()
