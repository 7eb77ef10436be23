"""The data-plane APIs over a real replica manager on memory twins: requests and answers pass
through bytes of their version.
"""

from __future__ import annotations

from twisted.internet.defer import Deferred, succeed

from tests.net.echo import MemoryListener, framed
from tests.replication.fixtures import Fixture
from twisted_broker.api.context import BrokerParts, ListenerName, RequestContext
from twisted_broker.api.dispatch import Dispatcher
from twisted_broker.security.acl import AllowAll
from twisted_broker.wire.header import RequestHeader, encode_request_header
from twisted_broker.wire.schema import decode, encode, encode_parts


class DenyList:
    """Refuses the (operation, resource name) pairs it holds, and notes what it was asked."""

    def __init__(self, *denied: tuple[str, str]) -> None:
        self.denied = set(denied)
        self.asked: list[tuple[str, str]] = []

    @property
    def rules(self) -> object:
        return self.denied  # another set is another object

    def authorize(self, principal, host, operation, resource, name) -> bool:
        self.asked.append((operation.name, name))
        return (operation.name, name) not in self.denied

    def authorize_by_resource_type(self, principal, host, operation, resource) -> bool:
        """Any resource is asked for by the name `*`."""
        return self.authorize(principal, host, operation, resource, "*")


def bytes_of(parts) -> bytes:
    out = []
    for part in parts:
        if hasattr(part, "release"):
            out.append(part.read())
            part.release()
        else:
            out.append(bytes(part))
    return b"".join(out)


class Wire:
    """A client of the real dispatcher, over the network in memory."""

    def __init__(self, api: Api) -> None:
        self._api, self._dispatcher = api, Dispatcher(api.parts, api.listener)
        self._buffers: list[bytearray] = []
        self.broker = MemoryListener(self._dispatch, request_bytes=1 << 20)
        self.client = self.broker.client()

    def _dispatch(self, connection, frame):
        self._buffers.append(frame.obj)
        return self._dispatcher(connection, frame)

    def send(self, request, version: int) -> None:
        """In pieces: it is a long one."""
        header = encode_request_header(RequestHeader(type(request).api_key, version, 1, "c"))
        frame = framed(header + encode(request, version))
        for start in range(0, len(frame), 40_000):
            self.client.transport.write(frame[start : start + 40_000])
        self.run()

    def run(self) -> None:
        self.broker.run()
        for _ in range(100):  # turns of a request that is served in slices
            self._api.fixture.advance(0.001)
            self.broker.run()

    def check_nothing_held(self) -> None:
        """Of the one request that came."""
        assert self.broker.factory.request_bytes.used == 0
        (buffer,) = self._buffers
        buffer.append(0)  # BufferError where a view of it is alive


class Api:
    """`ask` gives a list that gets the decoded answer (None: no answer) or the failure once it
    is there.
    """

    def __init__(self, fixture: Fixture | None = None, authorizer=None, **more) -> None:
        self.fixture = fixture or Fixture()
        parts = BrokerParts(
            node_id=1,
            cluster_id="c",
            config=self.fixture.config,
            runtime=self.fixture.runtime,
            authorizer=authorizer or AllowAll(),
            replica_manager=self.fixture.replicas,
            metadata=self.fixture,
            **more,
        )
        self.parts = parts
        self.client_id = "test"
        self.listener = ListenerName("PLAINTEXT")

    def ask(self, call, response_class, request, version: int) -> list:
        context = RequestContext(
            self.parts, self.listener, type(request).api_key, version, 1, self.client_id
        )
        self.context = context
        seen = decode(type(request), encode(request, version), version)
        answers: list = []
        outcome = call(context, seen)
        # A compiled coroutine is none to `inspect`.
        waits = hasattr(outcome, "send")
        done = Deferred.fromCoroutine(outcome) if waits else succeed(outcome)
        done.addCallbacks(
            lambda response: answers.append(self._through_bytes(response, response_class, version)),
            answers.append,
        )
        self.last = done
        return answers

    def now(self, call, response_class, request, version: int):
        """The answer, which must be there at once."""
        (answer,) = self.ask(call, response_class, request, version)
        if hasattr(answer, "raiseException"):
            answer.raiseException()
        return answer

    @staticmethod
    def _through_bytes(response, response_class, version: int):
        return (
            None
            if response is None
            else decode(response_class, bytes_of(encode_parts(response, version)), version)
        )
