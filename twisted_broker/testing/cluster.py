"""A Kafka cluster for tests: `Cluster` and what it gives, for programs that block.

Owns the public interface; docs/TESTING.md shows its use.

1. A cluster is ready when its constructor returns, and gone when its process's end of a socket is
   closed: by `close`, by the end of `with`, or because this process ended, however it did.
2. Everything is in memory and on free ports of 127.0.0.1, unless `data` names a directory.
3. Any Kafka client works with `bootstrap`; `Topic` and `Group` need none.

Source: our own. Not here: the process (`template_client.py`), what is struck (`handles.py`), the
same for asyncio (`async_cluster.py`), fixtures of pytest (`pytest_plugin.py`).
"""

from __future__ import annotations

import base64
import copy
import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from twisted_broker.testing.conditions import Condition
from twisted_broker.testing.handles import (
    Apis,
    Call,
    ClusterBroker,
    ClusterTrace,
    ClusterVerbs,
    Exchange,
    Fault,
    RequestFaults,
    Snapshot,
    exchanges,
    in_seconds,
    refuse,
)
from twisted_broker.testing.template_client import ClusterError, Connection, template

Written = bytes | tuple[bytes | str | None, bytes | None] | Mapping[str, Any]
"""A record to write: its value; (key, value); or a mapping with `key`, `value`, `headers` (a list
of pairs), `timestamp` (ms) and `partition`, each of which may be left out.
"""
Position = tuple[str, int]
_SECONDS = 30.0


class Record(NamedTuple):
    """A record that was read. `timestamp`: ms since 1970."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class Member(NamedTuple):
    """A member of a group."""

    id: str
    client_id: str
    assigned: list[Position]
    """(topic, partition)"""


def _text(content: bytes | str | None) -> str | None:
    if content is None:
        return None
    return base64.b64encode(content.encode() if isinstance(content, str) else content).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def written(record: Written) -> dict[str, Any]:
    """As the call has it. Raises TypeError."""
    if isinstance(record, Mapping):
        unknown = record.keys() - {"key", "value", "headers", "timestamp", "partition"}
        if unknown:
            raise TypeError(f"a record has no {sorted(unknown)[0]}")
        found: dict[str, Any] = dict(record)
        if "headers" in found:
            found["headers"] = [(name, _text(value)) for name, value in found["headers"]]
    elif isinstance(record, tuple):
        found = dict(zip(("key", "value"), record, strict=True))
    else:
        found = {"value": record}
    return found | {name: _text(found[name]) for name in ("key", "value") if name in found}


def read(topic: str, found: Iterable[dict[str, Any]]) -> list[Record]:
    """From the answer of the call."""
    return [
        Record(
            topic,
            each["partition"],
            each["offset"],
            each["timestamp"],
            _bytes(each["key"]),
            _bytes(each["value"]),
            [(name, _bytes(value)) for name, value in each["headers"]],
        )
        for each in found
    ]


def members(found: dict[str, Any]) -> list[Member]:
    """From the answer of the call `group`."""
    return [
        Member(
            each["id"], each["client_id"], [(topic, number) for topic, number in each["assigned"]]
        )
        for each in found["members"]
    ]


def settings_text(settings: Mapping[str, object] | None) -> dict[str, str]:
    """Kafka's settings, as a properties file has them. Raises TypeError."""
    found = {}
    for name, value in (settings or {}).items():
        if not isinstance(value, str | int | float):
            raise TypeError(f"the setting {name} takes text, a number or a bool, not {value!r}")
        found[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return found


def start_arguments(
    brokers: int,
    settings: Mapping[str, object] | None,
    topics: Mapping[str, int] | None,
    data: str | os.PathLike[str] | None,
    seed: int | None = None,
) -> dict[str, Any]:
    """Of the call `start`. Raises TypeError."""
    if not isinstance(brokers, int):
        raise TypeError(f"brokers takes a number, not {brokers!r}")
    if topics is not None and not isinstance(topics, Mapping):
        raise TypeError(f'topics takes partitions by name, as {{"orders": 1}}, not {topics!r}')
    return {
        "brokers": brokers,
        "settings": settings_text(settings),
        "topics": dict(topics or {}),
        "data": None if data is None else os.path.abspath(data),
        "seed": seed,
    }


def wait_arguments(condition: Condition, within: str | float) -> dict[str, Any]:
    """Of the call `wait_until`. Raises TypeError, ValueError."""
    if not isinstance(condition, Condition):
        raise TypeError(f'{condition!r} is no condition, as isr("orders", 0) == {{1, 2}} is one')
    return {"condition": condition.form, "within": in_seconds(within)}


class Cluster(RequestFaults[Fault[None, int]], ClusterVerbs[None, list[str]]):
    """`brokers` of them, each with Kafka's `settings`; `topics`: names, and how many partitions of
    each, that are there from the beginning; `data`: a directory that keeps their files, None:
    nothing is kept; `seed`: of the chances of what is struck, None: another one each time.

    Topics have as many replicas as there are brokers, three at most, unless something says
    otherwise. Raises ClusterError: they cannot start.
    """

    def __init__(
        self,
        brokers: int = 1,
        settings: Mapping[str, object] | None = None,
        *,
        topics: Mapping[str, int] | None = None,
        data: str | os.PathLike[str] | None = None,
        seed: int | None = None,
    ) -> None:
        arguments = start_arguments(brokers, settings, topics, data, seed)
        self._names, self._keeps = 0, data is not None
        self._connection: Connection = template().fork()
        try:
            started = self._connection.call("start", **arguments)
        except BaseException:
            self._connection.close()
            raise
        self.bootstrap: str = started["bootstrap"]
        """HOST:PORT of each broker, with commas: what clients call bootstrap servers"""
        self.brokers: list[int] = started["brokers"]
        """their ids"""
        self.pid: int = started["pid"]
        """of the process that they are in"""
        self._log_began = 0

    @property
    def _call(self) -> Call[Any]:
        return self._connection.call

    @property
    def _ids(self) -> list[int]:
        return self.brokers

    def __str__(self) -> str:
        return self.bootstrap

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        replicas: int | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> Topic:
        """A topic, which is made if it is missing: when this returns every broker knows it, and
        every partition has a leader. Raises ClusterError, also where it has another number of
        partitions.
        """
        self._connection.call(
            "make_topic",
            name=name,
            partitions=partitions,
            replicas=replicas,
            settings=settings_text(settings),
        )
        return Topic(self._connection, name)

    def name(self, of: str) -> str:
        """One that nobody had of this cluster, as `orders-1`, for tests that share it."""
        self._names += 1
        return f"{of}-{self._names}"

    def group(self, name: str) -> Group:
        """A consumer group, which need not be there yet."""
        return Group(self._connection, name)

    def leader(self, topic: str, partition: int) -> ClusterBroker[None]:
        """The broker that leads a partition. Raises ClusterError, ClusterTimeout."""
        found = self._connection.call("leader", topic=topic, partition=partition)
        return self.broker(found)

    def _strike(self, action: str, api: Apis, how: dict[str, Any]) -> Fault[None, int]:
        call = self._connection.call
        return Fault(call, call("strike_requests", action=action, api=api, **how))

    @property
    def trace(self) -> ClusterTrace[list[Exchange], None]:
        """What clients sent and were answered."""
        return ClusterTrace(self._connection.call, exchanges)

    def _check(self, kind: str, topic: str) -> None:
        refuse(self._connection.call("anomalies", kind=kind, topic=topic))

    def wait_until(self, condition: Condition, within: str | float = _SECONDS) -> None:
        """Returns when it holds at every broker that runs. Raises ClusterTimeout, which says what
        holds instead, and why.
        """
        self._connection.call("wait_until", **wait_arguments(condition, within))

    def snapshot(self) -> Snapshot[None]:
        """What it is now, for `restore`; all of its machines must run. Raises ClusterError."""
        return Snapshot(self._connection.call, self._connection.call("snapshot"))

    def restore(self, snapshot: Snapshot[None]) -> None:
        """Takes it back to what it was, as often as wanted. Its clients' connections are reset;
        clients go on, on the same ports. Raises ClusterError.
        """
        self.pid = self._connection.call("restore", number=snapshot.number)["pid"]

    def handed_on(self, snapshot: Snapshot[None]) -> Cluster | None:
        """As it was at that snapshot, for somebody else, with nothing that was since. This
        one is closed. None: a client of it may come back.
        """
        connection = self._connection.handed_on()
        if connection is None:
            return None
        try:
            if connection.call("is_left"):
                made = copy.copy(self)
                made._connection, made._log_began = connection, connection.log_size
                again = connection.call("restore", number=snapshot.number, for_another=True)
                made.pid = again["pid"]
                return made
        except ClusterError:  # it died
            pass
        connection.close()
        return None

    @property
    def log(self) -> str:
        """What the brokers logged."""
        return self.log_of(0)

    @property
    def log_size(self) -> int:
        """How many bytes that is."""
        return self._connection.log_size - self._log_began

    def log_of(self, since: int) -> str:
        """What they logged from that byte on."""
        return self._connection.log(self._log_began + since)

    def close(self) -> None:
        """Ends it; with `data` in order, so that its files are as after a clean shutdown. A second
        time does nothing.
        """
        if self._connection.socket.fileno() < 0:
            return
        try:
            if self._keeps:
                self._connection.call("stop")
        finally:
            self._connection.close()


class Topic:
    """A topic of a cluster."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection, self.name = connection, name

    def produce(
        self,
        records: Iterable[Written],
        within: str | float = _SECONDS,
        *,
        transaction: str | None = None,
    ) -> list[tuple[int, int]]:
        """Writes them with acks=all; partition and offset of each. `transaction`: all of them are
        one, and it is "commit", "abort", or "open": as its time-out of a minute ends it. Raises
        ClusterError, ClusterTimeout.
        """
        found = self._connection.call(
            "produce",
            topic=self.name,
            records=[written(record) for record in records],
            within=in_seconds(within),
            transaction=transaction,
        )
        return [(partition, offset) for partition, offset in found]

    def records(
        self,
        at_least: int = 0,
        *,
        isolation: str = "read_uncommitted",
        within: str | float = 10.0,
    ) -> list[Record]:
        """What is in it, by partition and offset; once there are `at_least` so many. Raises
        ClusterTimeout.
        """
        found = self._connection.call(
            "records",
            topic=self.name,
            at_least=at_least,
            isolation=isolation,
            within=in_seconds(within),
        )
        return read(self.name, found)


class Group:
    """A consumer group of a cluster. Each property asks its coordinator. Raises ClusterError."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection, self.name = connection, name

    def _found(self) -> dict[str, Any]:
        found: dict[str, Any] = self._connection.call("group", name=self.name)
        return found

    @property
    def state(self) -> str:
        """Kafka's word: Stable, Empty, PreparingRebalance, CompletingRebalance or Dead."""
        return str(self._found()["state"])

    @property
    def members(self) -> list[Member]:
        return members(self._found())

    @property
    def offsets(self) -> dict[Position, int]:
        """(topic, partition) -> what was committed."""
        return {(topic, number): at for topic, number, at in self._found()["offsets"]}

    @property
    def lag(self) -> int:
        """Records behind what was committed, over all of its partitions."""
        return int(self._found()["lag"])

    def set_offsets(self, offsets: Mapping[Position, int]) -> None:
        """Commits them; the group must have no members."""
        wanted = [(topic, number, at) for (topic, number), at in offsets.items()]
        self._connection.call("set_offsets", name=self.name, positions=wanted)
