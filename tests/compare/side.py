"""One of the two brokers: its connections, and what of its answers must differ.

1. Requests are plain dictionaries; what the version does not carry is left out, so one case serves
   all versions.
2. Values that a broker makes up itself (ids, addresses) are `hide`d: in comparisons they are the
   token under which both brokers know them.
3. What a case prepares (topics, records) is not compared, only what it asks with `ask`.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from typing import Any

from twisted_broker.api.routes import ROUTES
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.header import (
    RequestHeader,
    decode_response_header,
    encode_request_header,
)
from twisted_broker.wire.records import BatchBuilder
from twisted_broker.wire.schema import Struct, decode, encode

WAIT_SECONDS = 8.0
CLOSED, SILENT = "(the connection was closed)", "(no answer)"
ROUTE_OF = {route.name: route for route in ROUTES}
METADATA_PARTITION = {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}
# What no string of ours can be, in place of what one can: bytes that are not UTF-8.
STANDS_FOR_LATIN_1, LATIN_1 = b"(latin-1)", b"caf\xe9-\xe8\xff.."
# Kafka lists these only where a plugin takes metrics, and serves them anyway.
NOT_LISTED = {71: (0, 0), 72: (0, 0)}
_HIDDEN_TYPES = (str, bytes, int)


def built(cls: Any, version: int, fields: dict[str, Any]) -> Any:
    """A message from nested dictionaries. KeyError for a name that it does not have at all."""
    by_name = {field.name: field for field in cls.FIELDS}
    made = cls()
    for name, value in fields.items():
        field = by_name[name]
        if not field.is_in(version):
            continue
        if isinstance(value, dict):
            value = built(field.element, version, value)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            value = [built(field.element, version, each) for each in value]
        setattr(made, name, value)
    return made


class Line:
    """A connection that is made when it is first used. Requests may wait for answers of others:
    `send` and `receive` are apart.
    """

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self._socket: socket.socket | None = None
        self._correlation = 0
        self.frame = b""  # of the last request
        self._due: list[tuple[str, int, int]] = []

    def send(self, api: str, version: int, fields: dict[str, Any]) -> None:
        """OSError where nobody takes it."""
        route = ROUTE_OF[api]
        body = encode(built(route.request_class(), version, fields), version)
        body = body.replace(STANDS_FOR_LATIN_1, LATIN_1)
        self._correlation += 1
        head = encode_request_header(
            RequestHeader(route.api_key, version, self._correlation, "compare")
        )
        self.frame = head + body
        self._connection().sendall(struct.pack(">i", len(self.frame)) + self.frame)
        self._due.append((api, version, self._correlation))

    def receive(self) -> Any:
        """The decoded answer to the oldest request that has none yet, CLOSED or SILENT."""
        api, version, number = self._due.pop(0)
        try:
            frame = self._exactly(struct.unpack(">i", self._exactly(4))[0])
        except TimeoutError:
            self.hang_up()
            return SILENT
        except OSError:
            self.hang_up()
            return CLOSED
        route = ROUTE_OF[api]
        correlation, offset = decode_response_header(frame, route.api_key, version)
        assert correlation == number
        return decode(route.response_class(), frame, version, offset)

    def call(self, api: str, version: int, fields: dict[str, Any]) -> Any:
        try:
            self.send(api, version, fields)
        except OSError:
            self.hang_up()
            return CLOSED
        return self.receive()

    def hang_up(self) -> None:
        self._due.clear()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connection(self) -> socket.socket:
        if self._socket is None:
            self._socket = socket.create_connection((self.host, self.port), WAIT_SECONDS)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._socket

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            more = self._connection().recv(size - len(data))
            if not more:
                raise ConnectionError("closed")
            data += more
        return bytes(data)


class Side:
    """`kind` is `kafka` or `ours`; `now_ms` the time of the run, the same for both."""

    def __init__(self, kind: str, host: str, port: int, now_ms: int) -> None:
        self.kind, self.host, self.port, self.now_ms = kind, host, port, now_ms
        self.answers: list[tuple[str, Any]] = []
        self.topic_ids: dict[str, bytes] = {}
        self._hidden: dict[tuple[type, Any], str] = {}
        self.line = Line(host, port)
        self.api, self.version, self.prefix = "", 0, ""
        self.frames: list[bytes] = []  # of requests of the API under test
        self.hide(host, "(host)")
        self.hide(port, "(port)")
        found: Any = self.call("ApiVersions", 0, {})
        assert found not in (CLOSED, SILENT), f"nobody answers at {host}:{port}: {found}"
        self.hide(self.cluster_id(), "(cluster)")
        self.versions = NOT_LISTED | {
            each.api_key: (each.min_version, each.max_version) for each in found.api_keys
        }

    def cluster_id(self) -> str:
        found: str = self.latest("DescribeCluster").cluster_id
        return found

    # -- what differs by nature

    def hide(self, value: Any, token: str) -> Any:
        self._hidden[type(value), value] = token
        return value

    def normal(self, value: Any) -> Any:
        """The value, or its token."""
        return (
            self._hidden.get((type(value), value), value)
            if isinstance(value, _HIDDEN_TYPES)
            else value
        )

    # -- requests

    def begin(self, api: str, version: int) -> None:
        """The next answers are of this API at this version."""
        self.api, self.version = api, version
        self.prefix = f"{api.lower()}-{version}"
        self.answers, self.frames = [], []

    def ask(self, label: str, tidy: Callable[[Any], None] | None = None, **fields: Any) -> Any:
        """Sends the API's request, keeps its answer for the comparison, and gives it back. `tidy`
        overwrites numbers in it that a broker makes up.
        """
        answer = self.call(self.api, self.version, fields)
        if tidy is not None and isinstance(answer, Struct):
            tidy(answer)
        self.answers.append((label, answer))
        return answer

    def note(self, label: str, value: Any) -> None:
        """Compares a value that is no answer."""
        self.answers.append((label, value))

    def call(self, api: str, version: int, fields: dict[str, Any]) -> Any:
        """The decoded answer, CLOSED or SILENT."""
        answer = self.line.call(api, version, fields)
        if api == self.api and version == self.version:
            self.frames.append(self.line.frame)
        return answer

    def latest(self, api: str, **fields: Any) -> Any:
        """The newest version of another API, to prepare or to look."""
        before = len(self.frames)
        answer = self.call(api, ROUTE_OF[api].broker.max, fields)
        del self.frames[before:]  # how often a case looks is no case
        assert isinstance(answer, Struct), f"{self.kind}: {api}: {answer}"
        return answer

    # -- what cases prepare

    def name(self, suffix: str = "t") -> str:
        """A name of its own for this API and version."""
        return f"{self.prefix}-{suffix}"

    def topic(self, suffix: str = "t", partitions: int = 1, **configs: str) -> str:
        """A new topic, once all its partitions are served; settings with `_` for `.`."""
        name = self.name(suffix)
        settings = [{"name": k.replace("_", "."), "value": v} for k, v in configs.items()]
        wanted = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": 1,
            "configs": settings,
        }
        made = self.latest("CreateTopics", topics=[wanted], timeout_ms=20_000).topics[0]
        assert not made.error_code, f"{self.kind}: {name}: {made}"
        self.topic_ids[name] = self.hide(bytes(made.topic_id), f"(id of {name})")
        self.wait_served(name, partitions)
        return name

    def wait_served(self, name: str, partitions: int) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            asked = [
                {
                    "name": name,
                    "partitions": [
                        {"partition_index": number, "timestamp": -1} for number in range(partitions)
                    ],
                }
            ]
            found = self.latest("ListOffsets", replica_id=-1, topics=asked)
            if not any(p.error_code for p in found.topics[0].partitions):
                return
            assert time.monotonic() < deadline, f"{self.kind}: {found}"
            time.sleep(0.01)

    def id_of(self, name: str) -> bytes:
        return self.topic_ids.get(name, bytes(15) + b"\7")

    def batch(self, *values: bytes, **fields: Any) -> bytes:
        """A batch with a time a second apart for each record."""
        key = fields.pop("key", b"k")
        stamps = fields.pop("stamps", None) or [self.now_ms + 1000 * n for n in range(len(values))]
        builder = BatchBuilder(**fields)
        for stamp, value in zip(stamps, values, strict=True):
            builder.append(stamp, key, value)
        return builder.build()

    def write(self, topic: str, *batches: bytes, partition: int = 0) -> None:
        for data in batches:
            part = {"index": partition, "records": data}
            wanted = {"topic_id": self.id_of(topic), "partition_data": [part]}
            answer = self.latest("Produce", acks=-1, timeout_ms=10_000, topic_data=[wanted])
            code = answer.responses[0].partition_responses[0].error_code
            assert code == ErrorCode.NONE, f"{self.kind}: {answer}"

    def settled(self, api: str, done: Any, **fields: Any) -> Any:
        """The newest version's answer once `done(answer)` holds; AssertionError if never."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            answer = self.latest(api, **fields)
            if done(answer):
                return answer
            assert time.monotonic() < deadline, (
                f"{self.kind}: not within {WAIT_SECONDS} s: {answer}"
            )
            time.sleep(0.02)


class ControllerSide(Side):
    """The controller's listener of the same node: the API under test goes there, all else to the
    broker's.
    """

    def __init__(self, broker: Side) -> None:
        (node,) = broker.latest("DescribeQuorum", topics=[METADATA_PARTITION]).nodes
        self.broker = broker
        listener = node.listeners[0]
        super().__init__(broker.kind, listener.host, listener.port, broker.now_ms)
        self._hidden.update(broker._hidden)
        self.hide(listener.port, "(controller's port)")

    def call(self, api: str, version: int, fields: dict[str, Any]) -> Any:
        if api == self.api or ROUTE_OF[api].broker.max < 0 or not self.api:
            return self.line.call(api, version, fields)
        return self.broker.call(api, version, fields)

    def cluster_id(self) -> str:
        return self.broker.cluster_id()

    def begin(self, api: str, version: int) -> None:
        super().begin(api, version)
        self.prefix = f"c-{self.prefix}"
