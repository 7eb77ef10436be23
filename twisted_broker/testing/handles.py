"""What a test strikes: machines, links, disks and the clock of its cluster.

Owns `ClusterBroker`, `Link`, `Disk` and `ClusterClock`, for `Cluster`, `AsyncCluster` and
`trial.Cluster` alike: `Done_co` is None where a call has ended when it returns, and what is awaited
otherwise.

1. A verb acts until it is healed; its participle is a context manager (`with`, or `async with`)
   that heals at its end.
2. A call returns when what it says holds on every machine that runs and is not frozen.

Source: our own. Not here: what they do (`running_cluster.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

Done_co = TypeVar("Done_co", covariant=True)
_SECONDS = 30.0


class Call(Protocol[Done_co]):
    """Of the cluster's process. Raises ClusterError, ClusterTimeout."""

    def __call__(self, name: str, /, **arguments: Any) -> Done_co: ...


def in_seconds(within: str | float) -> float:
    """Of `"10s"`, `"500ms"`, `"2m"`, or a number of seconds. Raises ValueError."""
    if not isinstance(within, str):
        return float(within)
    for unit, factor in (("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("d", 86400.0)):
        number = within.removesuffix(unit).strip()
        if within.endswith(unit) and number.replace(".", "", 1).isdigit():
            return float(number) * factor
    raise ValueError(f"{within!r} is no duration: write a number of seconds, or 500ms, 10s, 2m")


class Struck:
    """What heals at the end of a `with` or an `async with`."""

    def __init__(self, strike: Callable[[], Any], heal: Callable[[], Any]) -> None:
        self._strike, self._heal = strike, heal

    def __enter__(self) -> None:
        self._strike()

    def __exit__(self, *error: object) -> None:
        self._heal()

    async def __aenter__(self) -> None:
        await self._strike()

    async def __aexit__(self, *error: object) -> None:
        await self._heal()


class ClusterBroker(Generic[Done_co]):
    """A broker of a cluster, or its controller: a machine with a process on it."""

    def __init__(self, call: Call[Done_co], id: int) -> None:
        self._call, self.id = call, id

    def stop(self, within: str | float = _SECONDS) -> Done_co:
        """A controlled shutdown, after which its port refuses; others lead what it led, where they
        can. Nothing for one that is stopped.
        """
        return self._call("stop_broker", node=self.id, within=in_seconds(within))

    def restart(self, within: str | float = _SECONDS) -> Done_co:
        """Starts it, on its port and with its files; stops it before, where it runs. It is in the
        ISRs again when this returns.
        """
        return self._call("restart_broker", node=self.id, within=in_seconds(within))

    def kill(self) -> Done_co:
        """Ends its process as SIGKILL does: nothing is handed over, its connections are reset, its
        port refuses. Others lead once its session is over (`clock.advance("10s")`).
        """
        return self._call("kill", node=self.id)

    def crash(self, *, lose_unsynced: bool = True, torn: bool = False) -> Done_co:
        """Its machine loses power: nobody hears of it, connections are silent. `lose_unsynced`:
        what was not synced is lost; `torn`: some of that, and the last write may be cut. In memory
        only.
        """
        return self._call("crash", node=self.id, lose_unsynced=lose_unsynced, torn=torn)

    def freeze(self) -> Done_co:
        """Nothing of it runs, nothing is closed, as by SIGSTOP."""
        return self._call("freeze", node=self.id)

    def thaw(self, within: str | float = _SECONDS) -> Done_co:
        """What fell due meanwhile runs, late. It is in the ISRs again when this returns."""
        return self._call("thaw", node=self.id, within=in_seconds(within))

    def stopped(self) -> Struck:
        """Stopped; started again at the end."""
        return Struck(self.stop, self.restart)

    def killed(self) -> Struck:
        """Killed; started again at the end."""
        return Struck(self.kill, self.restart)

    def crashed(self, *, lose_unsynced: bool = True, torn: bool = False) -> Struck:
        """Without power; started again at the end."""
        return Struck(lambda: self.crash(lose_unsynced=lose_unsynced, torn=torn), self.restart)

    def frozen(self) -> Struck:
        """Frozen; thawed at the end."""
        return Struck(self.freeze, self.thaw)


class Link(Generic[Done_co]):
    """Between two machines, or between a machine and all clients (`"client"`), both directions."""

    def __init__(self, call: Call[Done_co], one: int | str, other: int | str) -> None:
        self._call, self._ends = call, {"one": one, "other": other}

    def cut(self, *, one_way: bool = False) -> Done_co:
        """What is sent over it is held until it is healed. `one_way`: only what goes from the
        first of its ends to the second.
        """
        return self._call("cut_link", **self._ends, one_way=one_way)

    def delay(self, by: str | float) -> Done_co:
        """Each piece arrives so much later, in each direction; their order stays."""
        return self._call("delay_link", **self._ends, seconds=in_seconds(by))

    def narrow(self, bytes_per_second: float) -> Done_co:
        """So much gets over it, in each direction and for each connection."""
        return self._call("narrow_link", **self._ends, bytes_per_second=bytes_per_second)

    def drop_connections(self) -> Done_co:
        """Resets those that there are, at both ends."""
        return self._call("drop_connections", **self._ends)

    def heal(self) -> Done_co:
        """As new; what it held arrives."""
        return self._call("heal_link", **self._ends)

    def cut_off(self, *, one_way: bool = False) -> Struck:
        """Cut; healed at the end."""
        return Struck(lambda: self.cut(one_way=one_way), self.heal)

    def delayed(self, by: str | float) -> Struck:
        """Delayed; healed at the end."""
        return Struck(lambda: self.delay(by), self.heal)

    def narrowed(self, bytes_per_second: float) -> Struck:
        """Narrowed; healed at the end."""
        return Struck(lambda: self.narrow(bytes_per_second), self.heal)


class Disk(Generic[Done_co]):
    """Of a broker or the controller."""

    def __init__(self, call: Call[Done_co], node: int) -> None:
        self._call, self._node = call, node

    def full(self) -> Done_co:
        """No file grows any more (ENOSPC). In memory only."""
        return self._strike("fill")

    def fail(self, operation: str, error: str = "EIO", times: int | None = None) -> Done_co:
        """The next `times` calls of `operation` (`any`, `create`, `fsync`, `open`, `read`,
        `remove`, `rename`, `truncate`, `write`) raise `error`; None: all. In memory only.
        """
        return self._strike("fail", operation=operation, error=error, times=times)

    def slow(self, by: str | float) -> Done_co:
        """What waits for the disk (a sync, a cold read) takes so long."""
        return self._strike("slow", seconds=in_seconds(by))

    def stall(self) -> Done_co:
        """What waits for the disk waits on."""
        return self._strike("stall")

    def heal(self, within: str | float = _SECONDS) -> Done_co:
        """As new; a broker that ended because of it is started again."""
        return self._call("heal_disk", node=self._node, within=in_seconds(within))

    def filled(self) -> Struck:
        """Full; healed at the end."""
        return Struck(self.full, self.heal)

    def failing(self, operation: str, error: str = "EIO", times: int | None = None) -> Struck:
        """It fails; healed at the end."""
        return Struck(lambda: self.fail(operation, error, times), self.heal)

    def slowed(self, by: str | float) -> Struck:
        """Slow; healed at the end."""
        return Struck(lambda: self.slow(by), self.heal)

    def stalled(self) -> Struck:
        """It stalls; healed at the end."""
        return Struck(self.stall, self.heal)

    def _strike(self, verb: str, **how: Any) -> Done_co:
        return self._call("strike_disk", node=self._node, verb=verb, **how)


class ClusterClock(Generic[Done_co]):
    """The time of all machines: timers, and the calendar. Clients have their own."""

    def __init__(self, call: Call[Done_co]) -> None:
        self._call = call

    def advance(self, by: str | float) -> Done_co:
        """Moves it on, ten minutes at most: all that falls due by then has happened when this
        returns. A member of a group that sends no heartbeat meanwhile may expire: clients' time
        does not move.
        """
        return self._call("advance", seconds=in_seconds(by))
