"""The handles by which a test strikes its cluster, and the evidence of the outcome.

Owns `ClusterBroker`, `Link`, `Disk`, `Fault`, `Snapshot`, `RequestFaults`, `ClusterClock`,
`ClusterTrace` and `ClusterVerbs`, for `Cluster`, `AsyncCluster` and `trial.Cluster` alike:
`Done_co` is None where a call has ended when it returns, and what is awaited otherwise.

1. A verb acts until it is healed; its participle is a context manager (`with`, or `async with`)
   that heals at its end.
2. A call returns when what it says holds on every machine that runs and is not frozen.

Source: our own. Not here: what they do (`running_cluster.py`).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

Done_co = TypeVar("Done_co", covariant=True)
Count_co = TypeVar("Count_co", covariant=True)
Found_co = TypeVar("Found_co", covariant=True)
Made_co = TypeVar("Made_co", covariant=True)
Told_co = TypeVar("Told_co", covariant=True)
Apis = str | Sequence[str] | None
_SECONDS = 30.0
CONTROLLER_NODE = 100


class Call(Protocol[Done_co]):
    """Of the cluster's process. Raises ClusterError, ClusterTimeout."""

    def __call__(self, name: str, /, **arguments: Any) -> Done_co: ...


def in_seconds(within: str | float) -> float:
    """Of `"10s"`, `"500ms"`, `"2m"`, or a number of seconds. Raises ValueError."""
    if not isinstance(within, str):
        if not within >= 0:
            raise ValueError(f"{within!r} is no duration: write a number of seconds from 0 on")
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

    def go_stale(self, within: str | float = _SECONDS) -> Done_co:
        """It does not follow the metadata any more: it answers with old leaders and old topics."""
        return self._call("go_stale", node=self.id, within=in_seconds(within))

    def catch_up(self, within: str | float = _SECONDS) -> Done_co:
        """It follows the metadata again; it knows what others know when this returns."""
        return self._call("catch_up", node=self.id, within=in_seconds(within))

    def fence(self, within: str | float = _SECONDS) -> Done_co:
        """It and the controller hear nothing of each other, and its session is over: others lead
        what it led, which it does not know.
        """
        return self._call("fence", node=self.id, within=in_seconds(within))

    def unfence(self, within: str | float = _SECONDS) -> Done_co:
        """The controller hears of it again. It is in the ISRs again when this returns."""
        return self._call("unfence", node=self.id, within=in_seconds(within))

    def stale(self) -> Struck:
        """Stale; it catches up at the end."""
        return Struck(self.go_stale, self.catch_up)

    def fenced(self) -> Struck:
        """Fenced; unfenced at the end."""
        return Struck(self.fence, self.unfence)

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

    @property
    def clock(self) -> MachineClock[Done_co]:
        """Its calendar."""
        return MachineClock(self._call, self.id)


class MachineClock(Generic[Done_co]):
    """The calendar of one machine; its timers go as those of all."""

    def __init__(self, call: Call[Done_co], node: int) -> None:
        self._call, self._node = call, node

    def skew(self, by: str | float) -> Done_co:
        """Its calendar is ahead of the others' by so much (`"+3s"`), or behind (`"-3s"`); 0: as
        they are.
        """
        text = by.strip() if isinstance(by, str) else f"{by:+}s"
        sign = -1 if text.startswith("-") else 1
        ms = sign * int(in_seconds(text.lstrip("+-")) * 1000)
        return self._call("skew_clock", node=self._node, ms=ms)

    def skewed(self, by: str | float) -> Struck:
        """Skewed; as the others at the end."""
        return Struck(lambda: self.skew(by), lambda: self.skew(0))


class Link(Generic[Done_co]):
    """Between two machines, or between a machine and all clients (`"client"`), both directions."""

    def __init__(self, call: Call[Done_co], one: int | str, other: int | str) -> None:
        self._call, self._ends = call, {"one": one, "other": other}

    def cut(self, *, one_way: bool = False, on_heal: str = "deliver") -> Done_co:
        """What is sent over it is held until it is healed. `one_way`: only what goes from the
        first of its ends to the second; `on_heal`: what is held is delivered then, or "reset":
        the connections that it was sent over are.
        """
        return self._call("cut_link", **self._ends, one_way=one_way, on_heal=on_heal)

    def delay(self, by: str | float, *, jitter: str | float = 0) -> Done_co:
        """Each piece arrives so much later, and up to `jitter` more, in each direction; their
        order stays.
        """
        return self._call(
            "delay_link", **self._ends, seconds=in_seconds(by), jitter=in_seconds(jitter)
        )

    def narrow(self, bytes_per_second: float) -> Done_co:
        """So much gets over it, in each direction and for each connection."""
        return self._call("narrow_link", **self._ends, bytes_per_second=bytes_per_second)

    def drop_connections(self) -> Done_co:
        """Resets those that there are, at both ends."""
        return self._call("drop_connections", **self._ends)

    def heal(self, *, on_heal: str | None = None) -> Done_co:
        """As new; what it held arrives, unless `cut` said otherwise, or `on_heal` does."""
        return self._call("heal_link", **self._ends, on_heal=on_heal)

    def cut_off(self, *, one_way: bool = False, on_heal: str = "deliver") -> Struck:
        """Cut; healed at the end."""
        return Struck(lambda: self.cut(one_way=one_way, on_heal=on_heal), self.heal)

    def delayed(self, by: str | float, *, jitter: str | float = 0) -> Struck:
        """Delayed; healed at the end."""
        return Struck(lambda: self.delay(by, jitter=jitter), self.heal)

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

    def slow(self, by: str | float, operation: str = "any") -> Done_co:
        """What waits for the disk takes so long: a sync (`fsync`), a cold read or the load of a log
        (`read`), what deletes (`remove`), or `any` of it. Nobody waits for a `write`: it goes to
        the page cache.
        """
        return self._strike("slow", seconds=in_seconds(by), operation=operation)

    def stall(self) -> Done_co:
        """What waits for the disk waits on."""
        return self._strike("stall")

    def corrupt(self, topic: str, partition: int, offset: int) -> Done_co:
        """Flips a bit of the batch that has this offset. In memory only; nothing heals it."""
        return self._strike("corrupt", topic=topic, partition=partition, offset=offset)

    def heal(self, within: str | float = _SECONDS) -> Done_co:
        """As new; a broker that ended because of it is started again."""
        return self._call("heal_disk", node=self._node, within=in_seconds(within))

    def filled(self) -> Struck:
        """Full; healed at the end."""
        return Struck(self.full, self.heal)

    def failing(self, operation: str, error: str = "EIO", times: int | None = None) -> Struck:
        """It fails; healed at the end."""
        return Struck(lambda: self.fail(operation, error, times), self.heal)

    def slowed(self, by: str | float, operation: str = "any") -> Struck:
        """Slow; healed at the end."""
        return Struck(lambda: self.slow(by, operation), self.heal)

    def stalled(self) -> Struck:
        """It stalls; healed at the end."""
        return Struck(self.stall, self.heal)

    def _strike(self, verb: str, **how: Any) -> Done_co:
        return self._call("strike_disk", node=self._node, verb=verb, **how)


class Fault(Generic[Done_co, Count_co]):
    """A fault of requests that is in force. `Count_co`: as `Done_co`, of a number."""

    def __init__(self, call: Call[Any], number: int) -> None:
        self._call, self._number = call, number

    @property
    def hits(self) -> Count_co:
        """How many requests it struck."""
        return self._call("hits", number=self._number)  # type: ignore[no-any-return]

    def wait(self, count: int = 1, within: str | float = _SECONDS) -> Done_co:
        """Until it struck so many. Raises ClusterTimeout."""
        return self._call(  # type: ignore[no-any-return]
            "wait_for_hits", number=self._number, count=count, within=in_seconds(within)
        )

    def lift(self) -> Done_co:
        """It strikes no more."""
        return self._call("lift_fault", number=self._number)  # type: ignore[no-any-return]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.lift()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._call("lift_fault", number=self._number)


class Snapshot(Generic[Done_co]):
    """What a cluster was at a moment: a copy of its process, which sleeps."""

    def __init__(self, call: Call[Done_co], number: int) -> None:
        self._call, self.number = call, number

    def drop(self) -> Done_co:
        """Nobody goes back to it any more: its process ends."""
        return self._call("drop_snapshot", number=self.number)


class RequestFaults(ABC, Generic[Made_co]):
    """What a cluster does to its clients' requests. `Made_co`: a `Fault`, or what is awaited for
    one.

    `api`: Kafka's names, one or several; None: all. `where`: `broker`, `topic`, `partition`,
    `group`, `transactional_id`, `client_id`, which go together; `times`: so many requests, None:
    until it is lifted; `skip`: so many pass before; `probability` under `seed`. Raises
    ClusterError: a wrong name, with the right ones.
    """

    @abstractmethod
    def _strike(self, action: str, api: Apis, how: dict[str, Any]) -> Made_co:
        """Puts a fault in force."""

    def fail(self, api: Apis, error: str, *, applied: bool = False, **where: Any) -> Made_co:
        """Answers `error`, before any work: for the partitions that `where` names, the rest of the
        request is served. `applied`: after the work was done.
        """
        return self._strike("fail", api, {"error": error, "applied": applied, **where})

    def lose_request(self, api: Apis = None, **where: Any) -> Made_co:
        """Resets the connection instead of doing what is asked."""
        return self._strike("lose_request", api, where)

    def lose_answer(self, api: Apis = None, **where: Any) -> Made_co:
        """Resets the connection when the work is done, before the answer."""
        return self._strike("lose_answer", api, where)

    def silence(self, api: Apis = None, **where: Any) -> Made_co:
        """Never answers; what comes behind it on its connection waits."""
        return self._strike("silence", api, where)

    def delay(self, api: Apis, by: str | float, **where: Any) -> Made_co:
        """Begins to work on it so much later."""
        return self._strike("delay", api, {"seconds": in_seconds(by), **where})

    def throttle(self, by: str | float, api: Apis = None, **where: Any) -> Made_co:
        """Answers with that throttle time, and does not read from its connection meanwhile, as over
        a quota.
        """
        return self._strike("throttle", api, {"seconds": in_seconds(by), **where})


class Exchange(NamedTuple):
    """A request of a client, and what it was answered. `at`: seconds of the cluster's clock;
    `seconds`: until the answer, None: there is none. `request` and `answer` are Kafka's messages as
    JSON has them: bytes in base64, records by their size.
    """

    at: float
    seconds: float | None
    machine: str
    client_id: str | None
    port: int
    api: str
    version: int
    request: dict[str, Any]
    answer: dict[str, Any] | None

    def __str__(self) -> str:
        """A line for people: when, who, what, and the errors that it was answered."""
        codes = ", ".join(map(str, dict.fromkeys(_errors(self.answer)))) or "ok"
        took = (
            "no answer" if self.seconds is None else f"{codes} after {self.seconds * 1000:.0f} ms"
        )
        topics = ", ".join(dict.fromkeys(_topics(self.request)))
        return (
            f"{self.at:9.3f} {self.client_id or '-'} to {self.machine}: {self.api} "
            f"v{self.version}{' ' + topics if topics else ''}: {took}"
        )


def _errors(message: Any) -> Iterator[str]:
    """Names of Kafka's errors in an answer."""
    from twisted_broker.wire.errors import error_of

    if isinstance(message, dict):
        for name, value in message.items():
            if name == "error_code" and value:
                yield error_of(value).name
            else:
                yield from _errors(value)
    elif isinstance(message, list):
        for each in message:
            yield from _errors(each)


def _topics(request: dict[str, Any]) -> Iterator[str]:
    for name, value in request.items():
        if "topic" in name and isinstance(value, list):
            for each in value:
                found = each.get("name") or each.get("topic") if isinstance(each, dict) else each
                if found:
                    yield str(found)


class ClusterTrace(Generic[Found_co, Done_co]):
    """What clients sent and were answered; the last 64 MiB of it. `Found_co`: the list of
    exchanges, or what is awaited for it.
    """

    def __init__(self, call: Call[Any], read: Callable[[Any], Found_co]) -> None:
        self._call, self._read = call, read

    def requests(
        self,
        api: str | None = None,
        *,
        topic: str | None = None,
        group: str | None = None,
        client_id: str | None = None,
    ) -> Found_co:
        """Those of which all that is given holds."""
        return self._read(
            self._call("exchanges", api=api, topic=topic, group=group, client_id=client_id)
        )

    def save(self, path: str | os.PathLike[str]) -> Done_co:
        """Writes `path`.jsonl, an exchange a line, and `path`.pcap, for Wireshark."""
        return self._call("save_trace", path=os.path.abspath(path))  # type: ignore[no-any-return]


class ClusterVerbs(ABC, Generic[Done_co, Told_co]):
    """What a cluster has, what is done to it as Kafka's tools do it, and what must hold of what its
    clients were told, compared with what is in a topic (AssertionError, with the records).
    """

    @property
    @abstractmethod
    def _call(self) -> Call[Any]:
        """Of its process. Raises ClusterError, ClusterTimeout."""

    @property
    @abstractmethod
    def _ids(self) -> list[int]:
        """Of its brokers."""

    @abstractmethod
    def _check(self, kind: str, topic: str) -> Done_co:
        """Raises AssertionError for each anomaly of that kind."""

    def broker(self, node: int) -> ClusterBroker[Done_co]:
        """One of its brokers, by its id. Raises ValueError."""
        if node not in self._ids:
            known = ", ".join(map(str, self._ids))
            raise ValueError(f"there is no broker {node!r}: there are {known}")
        return ClusterBroker(self._call, node)

    @property
    def controller(self) -> ClusterBroker[Done_co]:
        """A machine of its own, beside several brokers; of one, that broker."""
        return ClusterBroker(self._call, self._ids[0] if len(self._ids) == 1 else CONTROLLER_NODE)

    def link(self, one: int | str, other: int | str) -> Link[Done_co]:
        """Between two machines, by their ids (100: the controller), or of `"client"` and one."""
        return Link(self._call, one, other)

    def disk(self, node: int) -> Disk[Done_co]:
        """Of a machine, by its id."""
        return Disk(self._call, node)

    @property
    def clock(self) -> ClusterClock[Done_co, Told_co]:
        """The time of all machines."""
        return ClusterClock(self._call)

    def heal(self) -> Told_co:
        """All that is struck: machines run, links and disks are as new, faults of requests are
        lifted. What it was, a sentence each.
        """
        told: Told_co = self._call("heal")
        return told

    def move_leader(self, topic: str, partition: int, to: int | None = None) -> Done_co:
        """Another replica leads, `to` or one that is in sync; its order of replicas begins with it
        then.
        """
        done: Done_co = self._call("move_leader", topic=topic, partition=partition, to=to)
        return done

    def move_coordinator(
        self,
        group: str | None = None,
        *,
        transactional_id: str | None = None,
        to: int | None = None,
    ) -> Done_co:
        """Another broker coordinates that group, or that transactional id."""
        done: Done_co = self._call(
            "move_coordinator", group=group, transactional_id=transactional_id, to=to
        )
        return done

    def remove_member(self, group: str, member: str) -> Done_co:
        """Of a group, by client id or member id: as if its session had ended."""
        done: Done_co = self._call("remove_member", group=group, member=member)
        return done

    def elect_uncleanly(self, topic: str, partition: int) -> Done_co:
        """Of a partition without a leader: a replica that lives leads, in sync or not."""
        done: Done_co = self._call("elect_uncleanly", topic=topic, partition=partition)
        return done

    def rebalance(self, group: str) -> Done_co:
        """As if a member had joined that group, and left. Its members join anew when they hear of
        it, with their next heartbeat.
        """
        done: Done_co = self._call("rebalance", group=group)
        return done

    def save(self, directory: str | os.PathLike[str]) -> Done_co:
        """Writes the files of all machines to a new directory, with which `data` begins."""
        done: Done_co = self._call("save", directory=os.path.abspath(directory))
        return done

    def assert_nothing_lost(self, topic: str) -> Done_co:
        """Each acknowledged record is where its client was told, unless it was deleted."""
        return self._check("lost", topic)

    def assert_no_duplicates(self, topic: str) -> Done_co:
        """No record is there more often than it was acknowledged, by key, value and partition; one
        that was not may be there once.
        """
        return self._check("repeated", topic)

    def assert_order_kept(self, topic: str) -> Done_co:
        """The records of each producer are in the order in which it sent them first."""
        return self._check("reordered", topic)


def refuse(anomalies: list[str]) -> None:
    """Raises AssertionError where there are any."""
    if anomalies:
        raise AssertionError("; ".join(anomalies))


def exchanges(found: list[dict[str, Any]]) -> list[Exchange]:
    """From the answer of the call."""
    return [Exchange(**each) for each in found]


class ClusterClock(Generic[Done_co, Told_co]):
    """The time of all machines: timers, and the calendar. Clients have their own. `Told_co`: the
    list of sentences, or what is awaited for it.
    """

    def __init__(self, call: Call[Any]) -> None:
        self._call = call

    def advance(self, by: str | float, *, members: str | Sequence[str] = "alive") -> Told_co:
        """Moves it on; what came of it, a sentence each. All that falls due by then has happened:
        up to ten minutes timer by timer, before those the calendar alone.

        `members`: those of groups stay while their connections stand; `"silent"`: they expire as
        they would without a heartbeat; a list: these client ids or member ids do.
        """
        silent = members if isinstance(members, str) else list(members)
        told: Told_co = self._call("advance", seconds=in_seconds(by), members=silent)
        return told

    def calendar(self, how: str, at: str | int | datetime | None = None) -> Done_co:
        """`"fix"`: the calendar of all machines stands, and moves by `advance` alone; `at`: there,
        a date as ISO 8601 has it (UTC where it says nothing), or ms since 1970. `"run"`: it goes
        as outside again, ahead by what was advanced. Timers always go.
        """
        if isinstance(at, str):
            at = datetime.fromisoformat(at)
        if isinstance(at, datetime):
            at = int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)
        done: Done_co = self._call("calendar", how=how, at_ms=at)
        return done
