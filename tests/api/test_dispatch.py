"""What `api/dispatch.py` promises: errors, waiting, order, unknown APIs; with a table of the
tests' own functions.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from tests.net.echo import MemoryListener
from twisted_broker.api.context import BrokerParts, Encoded, ListenerName
from twisted_broker.api.dispatch import Dispatcher
from twisted_broker.api.routes import ROUTES, Route
from twisted_broker.broker_config import BrokerConfig
from twisted_broker.interfaces import Marks
from twisted_broker.log.segment_file import FileSlice, OpenFiles, SegmentFile
from twisted_broker.security.acl import AllowAll
from twisted_broker.wire.errors import BrokerError, ErrorCode, WireError
from twisted_broker.wire.header import RequestHeader, decode_response_header, encode_request_header
from twisted_broker.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from twisted_broker.wire.messages.fetch import FetchRequest, FetchResponse, FetchTopic
from twisted_broker.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from twisted_broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from twisted_broker.wire.messages.transactions import ListTransactionsRequest
from twisted_broker.wire.schema import decode, encode

ROWS = {route.api_key: route for route in ROUTES}


class OwnRoute(Route):
    """A row of the real table with a function of the test's."""

    __slots__ = ("call",)

    def __init__(self, api_key: int, call: Any) -> None:
        row = ROWS[api_key]
        for name in Route.__slots__:
            setattr(self, name, getattr(row, name))
        self.call = call

    def function(self, on_controller: bool) -> Any:
        return self.call


class Server:
    """One listener with the given functions, and one client that speaks frames."""

    def __init__(self, **calls: Any) -> None:
        keys = {"produce": 0, "fetch": 1, "metadata": 3, "list_transactions": 66}
        routes: dict[int, Route] = {
            keys[name]: OwnRoute(keys[name], call) for name, call in calls.items()
        }
        routes[18] = ROWS[18]
        self.clock = Clock()
        runtime: Any = SimpleNamespace(clock=self.clock, marks=Marks())
        parts = BrokerParts(
            node_id=1,
            cluster_id="c",
            config=BrokerConfig({}),
            runtime=runtime,
            authorizer=AllowAll(),
        )
        self.dispatcher = Dispatcher(parts, ListenerName("PLAINTEXT"), routes)
        self.broker = MemoryListener(self.dispatcher)
        self.client = self.broker.client()
        self.correlation_id = 0

    def ask(self, request: Any, version: int) -> None:
        self.correlation_id += 1
        frame = encode_request_header(
            RequestHeader(request.api_key, version, self.correlation_id, "test")
        ) + encode(request, version)
        self.send(frame)

    def send(self, frame: bytes) -> None:
        self.client.transport.write(len(frame).to_bytes(4, "big") + frame)
        self.broker.run()

    def frames(self) -> list[bytes]:
        found, data = [], self.client.data
        while data:
            size = int.from_bytes(data[:4], "big")
            found.append(data[4 : 4 + size])
            data = data[4 + size :]
        return found

    def answers(self, response_class: Any, version: int) -> list[tuple[int, Any]]:
        found = []
        for frame in self.frames():
            correlation_id, offset = decode_response_header(frame, response_class.api_key, version)
            found.append((correlation_id, decode(response_class, frame, version, offset)))
        return found


async def metadata(context: Any, request: MetadataRequest) -> MetadataResponse:
    return MetadataResponse(cluster_id=context.client_id, controller_id=7)


def test_an_answer_carries_its_requests_id_and_version() -> None:
    """Both header layouts; what the function returns is what the client reads."""
    server = Server(metadata=metadata)
    server.ask(MetadataRequest(), 8)
    assert server.answers(MetadataResponse, 8)[0][1].controller_id == 7
    server.client.data = b""
    server.ask(MetadataRequest(), 12)
    ((correlation_id, answer),) = server.answers(MetadataResponse, 12)
    assert (correlation_id, answer.cluster_id) == (2, "test")


@pytest.mark.parametrize("version", [8, 12])
def test_an_answer_that_is_encoded_already_is_sent_as_it_is(version: int) -> None:
    """Both header layouts, in parts of any size."""

    async def encoded(context: Any, request: Any) -> Encoded:
        whole = encode(MetadataResponse(cluster_id="c" * 9000, controller_id=7), context.version)
        return Encoded([whole[:3], b"", whole[3:8000], whole[8000:]])

    server = Server(metadata=encoded)
    server.ask(MetadataRequest(), version)
    ((correlation_id, answer),) = server.answers(MetadataResponse, version)
    assert (correlation_id, answer.controller_id, len(answer.cluster_id)) == (1, 7, 9000)


def test_a_waiting_function_goes_on_with_the_result() -> None:
    """Deferreds that have fired cost nothing; one that has not parks the request until it fires,
    errors included.
    """
    gate: Deferred[int] = Deferred()
    seen: list[Any] = []

    async def waits(context: Any, request: Any) -> MetadataResponse:
        seen.append(await succeed(3))
        try:
            await gate
        except ZeroDivisionError:
            seen.append("error")
        later: Deferred[int] = Deferred()
        seen.append(later)
        return MetadataResponse(controller_id=await later)

    server = Server(metadata=waits)
    server.ask(MetadataRequest(), 8)
    assert seen == [3] and not server.frames()
    gate.errback(ZeroDivisionError())
    server.broker.run()
    seen[2].callback(5)
    server.broker.run()
    assert server.answers(MetadataResponse, 8)[0][1].controller_id == 5


def test_a_refusal_becomes_the_apis_error_answer() -> None:
    """BrokerError mirrors the request: every partition carries the code, unknown offsets are -1
    (docs/ARCHITECTURE.md 8).
    """

    async def refuses(context: Any, request: Any) -> Any:
        raise BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    server = Server(produce=refuses)
    request = ProduceRequest(
        acks=1,
        topic_data=[TopicProduceData(name="t", partition_data=[PartitionProduceData(index=3)])],
    )
    server.ask(request, 7)
    ((_, answer),) = server.answers(ProduceResponse, 7)
    (partition,) = answer.responses[0].partition_responses
    assert (
        answer.responses[0].name,
        partition.index,
        partition.error_code,
        partition.base_offset,
    ) == ("t", 3, 29, -1)


def test_acks_0_is_never_answered() -> None:
    """Not even with an error."""

    async def refuses(context: Any, request: Any) -> Any:
        raise BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    server = Server(produce=refuses)
    server.ask(ProduceRequest(acks=0), 7)
    assert not server.frames() and not server.client.lost


def test_a_bug_is_an_error_answer_and_the_next_client_is_served(caplog: Any) -> None:
    """UNKNOWN_SERVER_ERROR for the client; the connection goes on (docs/ARCHITECTURE.md 8)."""

    async def fails(context: Any, request: Any) -> Any:
        raise KeyError("bug")

    server = Server(metadata=metadata, fetch=fails)
    server.ask(FetchRequest(topics=[FetchTopic(topic="t")]), 11)
    ((_, answer),) = server.answers(FetchResponse, 11)
    assert answer.error_code == -1
    server.client.data = b""
    server.ask(MetadataRequest(), 8)
    assert server.answers(MetadataResponse, 8)[0][1].controller_id == 7


def test_an_answer_that_cannot_be_written_is_no_success(caplog: Any) -> None:
    """UNKNOWN_SERVER_ERROR where the API has a place for it; elsewhere the connection closes,
    and the client asks again.
    """

    async def wrong(context: Any, request: Any) -> Any:
        return (
            FetchResponse(session_id="wrong")  # refused compiled, written by nobody plain
            if isinstance(request, FetchRequest)
            else MetadataResponse(controller_id=1 << 40)
        )

    server = Server(metadata=wrong, fetch=wrong)
    server.ask(FetchRequest(topics=[FetchTopic(topic="t")]), 11)
    ((_, answer),) = server.answers(FetchResponse, 11)
    assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR and not server.client.lost
    server.client.data = b""
    server.ask(MetadataRequest(), 8)
    assert server.client.data == b"" and server.client.lost


def test_texts_that_are_not_utf_8_are_served() -> None:
    """A Latin-1 client id and name are read with U+FFFD and go back so; one that grows beyond a
    string's length cannot.
    """

    async def echo(context: Any, request: Any) -> MetadataResponse:
        return MetadataResponse(cluster_id=f"{context.client_id} {request.topics[0].name}")

    server = Server(metadata=echo)
    ask = b"\0\3\0\x08\0\0\0\1\0\4caf\xe9\0\0\0\1"
    server.send(ask + b"\0\3\xe9t\xe9" + b"\1\0\0")
    assert server.answers(MetadataResponse, 8)[0][1].cluster_id == "caf\ufffd \ufffdt\ufffd"
    server.client.data = b""
    server.send(ask + b"\x4e\x20" + b"\xe9" * 20_000 + b"\1\0\0")
    assert server.client.lost and not server.client.data


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\0\3",
        b"\0\3\0\x08\0\0\0",
        encode_request_header(RequestHeader(3, 99, 1, "x")),
        encode_request_header(RequestHeader(2, 0, 1, "x")),
        b"\x7f\xff\0\0\0\0\0\1\xff\xff",
        b"\xff\xff\0\0\0\0\0\1\xff\xff",
        encode_request_header(RequestHeader(3, 8, 1, "x")) + b"\x7f\xff\xff\xff",
    ],
)
def test_what_is_not_served_or_not_kafka_closes_the_connection(frame: bytes) -> None:
    """Unknown API, unserved version, truncated or overlong request: no answer, a closed
    connection, as Kafka does.
    """
    server = Server(metadata=metadata)
    server.send(frame)
    assert server.client.lost and not server.client.data
    other = server.broker.client()
    assert not other.lost


def test_api_versions_too_new_is_answered_in_version_0() -> None:
    """Error 35 with the range of ApiVersions itself, so that the client can ask again (KIP-511)."""
    server = Server()
    server.send(encode_request_header(RequestHeader(18, 77, 5, "new")) + b"\x01\x01\x00")
    ((correlation_id, answer),) = server.answers(ApiVersionsResponse, 0)
    assert (correlation_id, answer.error_code) == (5, 35)
    assert [(key.api_key, key.min_version, key.max_version) for key in answer.api_keys] == [
        (18, 0, 4)
    ]
    server.client.data = b""
    server.ask(ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3)
    assert server.answers(ApiVersionsResponse, 3)[0][1].error_code == 0


@pytest.mark.parametrize("name", ["", "a b", "-a", "a\n", "ä"])
def test_api_versions_refuses_strange_software_names(name: str) -> None:
    """A client's software is named in plain characters (KIP-511)."""
    server = Server()
    server.ask(ApiVersionsRequest(client_software_name=name, client_software_version="1"), 3)
    assert server.answers(ApiVersionsResponse, 3)[0][1].error_code == ErrorCode.INVALID_REQUEST


def test_api_versions_lists_what_is_served_and_no_more() -> None:
    """The keys of the listener's table; Produce from 0 on (KAFKA-18659)."""
    server = Server(produce=metadata)
    server.ask(ApiVersionsRequest(), 0)
    ((_, answer),) = server.answers(ApiVersionsResponse, 0)
    assert [key.api_key for key in answer.api_keys] == [0, 18]
    assert answer.api_keys[0].min_version == 0


def test_a_lost_client_cancels_what_only_reads_but_not_its_produce() -> None:
    """A parked fetch is given up, and so is a pattern over many ids, which others would pay for; a
    parked produce finishes, unanswered.
    """
    waiting: dict[str, Deferred[Any]] = {}
    ended: list[str] = []

    def parks(name: str, appended: bool) -> Any:
        async def call(context: Any, request: Any) -> Any:
            context.appended = appended
            waiting[name] = Deferred()
            try:
                await waiting[name]
            finally:
                ended.append(name)
            return ProduceResponse() if name == "produce" else FetchResponse()

        return call

    server = Server(
        produce=parks("produce", True),
        fetch=parks("fetch", False),
        list_transactions=parks("list", False),
    )
    clients = [server.client]
    server.ask(ProduceRequest(acks=-1), 7)
    for request, version in ((FetchRequest(), 11), (ListTransactionsRequest(), 2)):
        server.client = server.broker.client()
        clients.append(server.client)
        server.ask(request, version)
    for client in clients:
        client.transport.loseConnection()
    server.broker.run()
    assert ended == ["fetch", "list"]
    waiting["produce"].callback(None)
    server.broker.run()
    assert ended == ["fetch", "list", "produce"] and not clients[0].data


def test_produces_follow_each_other_once_appended() -> None:
    """`appended` lets the next Produce start; before it is set, nothing starts."""
    contexts: list[Any] = []
    gates: list[Deferred[Any]] = []

    async def produce(context: Any, request: Any) -> ProduceResponse:
        contexts.append(context)
        context.appended = len(contexts) != 2
        gates.append(Deferred())
        await gates[-1]
        return ProduceResponse()

    server = Server(produce=produce)
    for _ in range(3):
        server.ask(ProduceRequest(acks=-1), 7)
    assert len(contexts) == 2
    contexts[1].appended = True
    gates[0].callback(None)
    server.broker.run()
    assert len(contexts) == 3


@pytest.mark.parametrize("size", [100, 1 << 20])
def test_records_of_an_answer_reach_the_client(size: int) -> None:
    """A small slice goes with its header in one piece, a long one is sent as it is; either is
    released.
    """
    content = bytes(n % 253 for n in range(size))

    async def fetch(context: Any, request: Any) -> FetchResponse:
        from twisted_broker.wire.messages.fetch import FetchableTopicResponse, PartitionData

        part = PartitionData(
            partition_index=0, high_watermark=9, records=FileSlice(segment, 0, size)
        )
        return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[part])])

    server = Server(fetch=fetch)
    segment = SegmentFile(OpenFiles(server.broker.files), "/log")
    segment.create().write_at(0, [content])
    server.ask(FetchRequest(), 11)
    ((_, answer),) = server.answers(FetchResponse, 11)
    assert bytes(answer.responses[0].partitions[0].records) == content
    assert segment.references == 0


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_an_answer_that_cannot_be_written_gives_its_records_back(bad: int) -> None:
    """docs/ARCHITECTURE 2: a slice holds its file open: each is released, whichever part of the
    answer cannot be written.
    """

    async def fetch(context: Any, request: Any) -> FetchResponse:
        from twisted_broker.wire.messages.fetch import FetchableTopicResponse, PartitionData

        parts = [
            PartitionData(partition_index=each, high_watermark=9, records=FileSlice(segment, 0, 10))
            for each in range(3)
        ]
        parts[bad].high_watermark = 1 << 70
        return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=parts)])

    server = Server(fetch=fetch)
    segment = SegmentFile(OpenFiles(server.broker.files), "/log")
    segment.create().write_at(0, [bytes(10)])
    server.ask(FetchRequest(), 11)
    ((_, answer),) = server.answers(FetchResponse, 11)
    assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert segment.references == 0


def test_wire_errors_inside_a_function_close_the_connection() -> None:
    """What turns out later to be no Kafka is still a broken peer."""

    async def breaks(context: Any, request: Any) -> Any:
        raise WireError("late")

    server = Server(metadata=breaks)
    server.ask(MetadataRequest(), 8)
    assert server.client.lost and not server.client.data


def test_requests_are_counted_and_timed() -> None:
    """RL 1.13: requests and whole refusals by API and version; the wait of each that waits; of
    one in 64 its work, and its answer's way out.
    """
    waits: list[Deferred[None]] = []

    async def metadata(context: Any, request: Any) -> MetadataResponse:
        if request.topics:
            raise BrokerError(ErrorCode.INVALID_REQUEST)
        server.clock.advance(0.001)
        if context.correlation_id == 2:
            waits.append(Deferred())
            await waits[0]
        return MetadataResponse()

    server = Server(metadata=metadata)
    for _ in range(2):
        server.ask(MetadataRequest(topics=[]), 9)
    server.clock.advance(5)
    waits[0].callback(None)
    for _ in range(126):
        server.ask(MetadataRequest(topics=[]), 9)
    server.ask(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9)
    (bound,) = server.dispatcher.bound_routes
    assert (bound.requests, bound.errors) == (129, {ErrorCode.INVALID_REQUEST: 1})
    times = bound.times.all
    assert times.count == 65, "the first 64, and the 128th"
    assert times.sums == pytest.approx([0, 65, 5000, 0, 0, 5065])
    assert list(times.kept[2]).count(5000) == 1 and times.kept[2][0] == 0
    assert [correlation_id for correlation_id, _ in server.answers(MetadataResponse, 9)] == list(
        range(1, 130)
    )


def test_what_waits_behind_others_is_queued_and_what_is_answered_early_waits_to_leave() -> None:
    """RL 1.13: the 64th fetch was held behind a produce for 3 s; the answer of the second
    produce waited 2 s for the first one's.
    """
    waits: list[Deferred[None]] = []

    async def produce(context: Any, request: Any) -> ProduceResponse:
        context.appended = True
        waits.append(Deferred())
        await waits[-1]
        return ProduceResponse()

    async def metadata(context: Any, request: Any) -> MetadataResponse:
        return MetadataResponse()

    server = Server(produce=produce, metadata=metadata)

    def pass_time(seconds: float) -> None:
        for clock in (server.clock, server.broker.clock):
            clock.advance(seconds)

    pass_time(10)
    for _ in range(63):
        server.ask(MetadataRequest(topics=[]), 9)
    server.ask(ProduceRequest(acks=-1), 9)
    server.ask(ProduceRequest(acks=-1), 9)
    server.ask(MetadataRequest(topics=[]), 9)
    pass_time(1)
    waits[1].callback(None)
    pass_time(2)
    waits[0].callback(None)
    server.broker.run()
    found = {bound.route.api_key: bound for bound in server.dispatcher.bound_routes}
    assert (found[3].requests, found[3].times.all.count) == (64, 64)
    assert found[3].times.all.sums == pytest.approx([3000, 0, 0, 0, 0, 3000])
    first, second = zip(*found[0].times.all.kept, strict=True)
    assert first == pytest.approx((0, 0, 3000, 0, 0, 3000))
    assert second == pytest.approx((0, 0, 1000, 2000, 0, 3000)), "answered first, sent second"
    assert len(server.frames()) == 66
