"""The faults of the machines of a simulated run, and when they strike.

Owns `DrawnFaults` and the table of kinds.

1. Each fault has a generator of its own, of the seed and its number: left out, the others stay what
   they are (`simulation/schedule.py`). Which machine is hit is drawn from those that are there.
2. One broker is hit at a time, until it is in the ISRs again: this is what Kafka promises to
   survive without the loss of an acknowledged record. Programs and links are hit beside it.
3. At the end all is healed, and every machine runs.

Source: our own. Not here: what a fault does to a machine (`testing/machine.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Self

from twisted_broker.simulation.schedule import Actor
from twisted_broker.testing.cluster_calls import CallFailed
from twisted_broker.testing.handles import CONTROLLER_NODE
from twisted_broker.testing.live_network import LiveNetwork
from twisted_broker.testing.running_cluster import machine_name, node_title
from twisted_broker.testing.simulated.program import Note

if TYPE_CHECKING:
    from twisted_broker.testing.simulated.cluster import SimulatedCluster

_BACK_SECONDS = 60.0
_Strike = tuple[str, Coroutine[Any, Any, None]]


class DrawnFaults:
    """From `async with` to its end. `mean_seconds`: between two."""

    def __init__(
        self,
        kafka: SimulatedCluster,
        network: LiveNetwork,
        actor: Actor,
        kinds: Sequence[str],
        mean_seconds: float,
        note: Note,
    ) -> None:
        self._kafka, self._network, self._actor = kafka, network, actor
        self._kinds, self._mean_seconds, self._note = kinds, mean_seconds, note
        self._over = asyncio.Event()
        self._strikes: list[asyncio.Task[None]] = []
        self._struck_broker = False

    async def __aenter__(self) -> Self:
        self._drawing = asyncio.create_task(self._draw())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._over.set()
        await self._drawing
        await asyncio.gather(*self._strikes)
        self._note("faults", "end: all is healed")

    async def _draw(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            following = self._actor.next(
                loop.time(), lambda random: random.expovariate(1 / self._mean_seconds)
            )
            if following is None or await self._ends_within(following[0]):
                return
            self._strike(following[1])

    def _strike(self, random: Random) -> None:
        kinds = self._kinds or [each for each in KINDS if self._is_harmless(each)]
        made = KINDS[random.choice(kinds)](self, random)
        if made is not None:
            self._actor.acts(made[0])
            self._note("fault", made[0])
            self._strikes.append(asyncio.create_task(made[1]))

    def _is_harmless(self, kind: str) -> bool:
        """A cluster of this size promises to survive it."""
        return kind != "crash broker" or len(self._kafka.brokers) >= _CAN_LOSE_ONE

    async def _ends_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._over.wait(), seconds)
        except TimeoutError:
            return False
        return True

    # brokers

    def _broker(self, random: Random, verb: str) -> _Strike | None:
        return self._node(random.choice(self._kafka.brokers), random, verb)

    def _controller(self, random: Random) -> _Strike | None:
        if len(self._kafka.brokers) == 1:  # it is the broker, then
            return None
        return self._node(CONTROLLER_NODE, random, "kill")

    def _node(self, node: int, random: Random, verb: str) -> _Strike | None:
        seconds = 1 + random.random() * 15
        if self._struck_broker:
            return None
        self._struck_broker = True
        return f"{verb} {node_title(node)} for {seconds:.1f} s", self._struck(node, verb, seconds)

    async def _struck(self, node: int, verb: str, seconds: float) -> None:
        call = self._kafka._call
        if verb == "crash":
            await call("crash", node=node, lose_unsynced=True, torn=False)
        elif verb == "stop":
            await self._patiently("stop_broker", node)
        else:
            await call(verb, node=node)
        await self._ends_within(seconds)
        await self._patiently("thaw" if verb == "freeze" else "restart_broker", node)
        self._note("fault", f"{node_title(node)} is back")
        self._struck_broker = False

    async def _patiently(self, verb: str, node: int) -> None:
        """Until it holds on every machine: links may be cut meanwhile."""
        while True:
            try:
                await self._kafka._call(verb, node=node, within=_BACK_SECONDS)
            except (CallFailed, TimeoutError) as error:
                self._note("fault", f"{error}; tries again")
                await asyncio.sleep(1)
            else:
                return

    # programs

    def _kill_program(self, random: Random) -> _Strike | None:
        running = [each for each in self._kafka.programs.values() if each.is_running]
        chosen, seconds = random.random(), random.random() * 10
        if not running:
            return None
        program = running[int(chosen * len(running))]

        async def killed() -> None:
            program.kill()
            await self._ends_within(seconds)
            program.start()

        return f"kill {program.name} for {seconds:.1f} s", killed()

    # links

    def _ends(self, random: Random) -> tuple[str, str]:
        brokers = [machine_name(node) for node in self._kafka.brokers]
        one = random.choice(brokers)
        others = [each for each in (*brokers, *self._kafka.programs) if each != one]
        return one, random.choice(others or ["test"])

    def _cut_link(self, random: Random) -> _Strike:
        one, other = self._ends(random)
        seconds, is_one_way = random.random() * 8, random.random() < _ONE_WAY
        ways = [(one, other)] if is_one_way else [(one, other), (other, one)]

        async def cut() -> None:
            for way in ways:
                self._network.block(*way)
            await self._ends_within(seconds)
            self._network.heal_ways(ways)

        kind = "one way" if is_one_way else "both ways"
        return f"cut the link from {one} to {other}, {kind}, for {seconds:.1f} s", cut()

    def _slow(self, random: Random) -> _Strike:
        one, other = self._ends(random)
        seconds, delay = random.random() * 10, random.random()
        ways = [(one, other), (other, one)]

        async def slow() -> None:
            for way in ways:
                self._network.delays[way] = delay
            await self._ends_within(seconds)
            self._network.heal_ways(ways)

        what = f"delay the link of {one} and {other} by {delay * 1000:.0f} ms"
        return f"{what} for {seconds:.1f} s", slow()

    def _drop(self, random: Random) -> _Strike:
        one, other = self._ends(random)

        async def drop() -> None:
            self._network.drop(one, other)

        return f"reset the connections of {one} and {other}", drop()


_ONE_WAY, _CAN_LOSE_ONE = 0.3, 3
KINDS: dict[str, Callable[[DrawnFaults, Random], _Strike | None]] = {
    "kill program": DrawnFaults._kill_program,
    "kill broker": lambda faults, random: faults._broker(random, "kill"),
    "crash broker": lambda faults, random: faults._broker(random, "crash"),
    "freeze broker": lambda faults, random: faults._broker(random, "freeze"),
    "stop broker": lambda faults, random: faults._broker(random, "stop"),
    "kill controller": DrawnFaults._controller,
    "cut link": DrawnFaults._cut_link,
    "slow link": DrawnFaults._slow,
    "reset connections": DrawnFaults._drop,
}
"""By the names that `kafka.faults()` takes."""
