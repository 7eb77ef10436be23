"""Dispatch: from a frame to the function that answers it, and from its result to bytes.

Owns the steps between a connection and a request function: header, route, permission for the
cluster, decode, run, encode.

1. A request function is stepped by hand: if it awaits nothing, its answer is there when
   `send(None)` returns. Only one that awaits a Deferred is suspended (`SuspendedResponse`).
2. An expected refusal (`BrokerError`) is the API's error answer; a malformed request (`WireError`)
   closes its connection; anything else is a bug: UNKNOWN_SERVER_ERROR for the client, a traceback
   in the log.
3. An API or version that is not served closes the connection, as Kafka does; ApiVersions alone is
   answered in version 0 with UNSUPPORTED_VERSION, so that a newer client can try again.
4. A request of many elements is decoded, processed and answered in slices (`turns.py`); so is the
   answer of one that turned out long.
5. A small slice of records is read here and sent with its header in one piece; a long one leaves as
   a slice, and so does one that would have to come from the disk.

Source: Kafka's `SocketServer.Processor`, `KafkaApis`, KIP-511; docs/ARCHITECTURE.md 7. Not here:
the order of answers (`net/connection.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from struct import Struct
from struct import error as struct_error
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from twisted_broker.api import audit
from twisted_broker.api.context import (
    REFUSAL_ELEMENTS,
    BrokerParts,
    Encoded,
    ListenerName,
    RequestContext,
)
from twisted_broker.api.refusals import refusal_in_steps
from twisted_broker.api.request_times import ALWAYS_TIMED, ApiTimes, Timing
from twisted_broker.api.routes import Route, routes_for
from twisted_broker.api.slow_requests import SlowRequests
from twisted_broker.api.throttling import Metered, charge
from twisted_broker.interfaces import Buffer
from twisted_broker.log.segment_file import FileSlice, SliceGone
from twisted_broker.net.connection import (
    Answer,
    KafkaConnection,
    PendingResponse,
    discard,
    one_line,
)
from twisted_broker.security.acl import Operation
from twisted_broker.subclassed import mypyc_attr
from twisted_broker.wire.errors import BrokerError, ErrorCode, ManyElements, WireError
from twisted_broker.wire.header import (
    decode_request_header,
    request_header_version,
    response_header_version,
)
from twisted_broker.wire.schema import (
    READ_ERRORS,
    Reader,
    compile_reader,
    compile_writer,
    decode_in_slices,
    emptied_in_steps,
    encode,
    join_bytes,
    run_whole,
    wire_error,
)

_HEAD = Struct(">hhih")
_LENGTH_AND_ID = Struct(">ii")
# Bytes. Up to _SMALL a read costs less than a `sendfile` of its own; _READ_AT_ONCE bounds the reads
# of one answer; up to _JOINED one copy costs less than several sends.
_SMALL, _READ_AT_ONCE, _JOINED = 16384, 262144, 65536
_FETCH, _API_VERSIONS = 1, 18

_logger = Logger(namespace="replog.api")

Steps = Coroutine[Any, Any, Any]


class BoundRoute:
    """One API at one version on one listener, ready to run. Counts its requests, and has the times
    of its API. `untimed`: a mask; a request is timed where its count has none of these bits.
    """

    __slots__ = (
        "at_once",
        "call",
        "errors",
        "has_records",
        "has_tags",
        "has_throttle_time",
        "header_end",
        "on_controller",
        "read",
        "refused_as_a_whole",
        "request_class",
        "requests",
        "response_class",
        "route",
        "throttle_time_first",
        "times",
        "untimed",
        "version",
        "write",
    )

    def __init__(
        self, route: Route, version: int, on_controller: bool, times: ApiTimes | None = None
    ) -> None:
        self.route = route
        self.version = version
        self.on_controller = on_controller
        self.requests = self.untimed = 0
        self.times = times or ApiTimes()
        self.errors: dict[ErrorCode, int] = {}
        self.call: Callable[[RequestContext, Any], Any] = route.function(on_controller)
        self.at_once = route.at_once(self.call)
        self.request_class = route.request_class()
        self.response_class = route.response_class()
        self.read: Reader | None = None
        self.write: Callable[[Any, list[Any]], None] | None = None
        self.has_records = _holds_records(self.response_class)
        self.refused_as_a_whole = any(
            field.name == "error_code" and field.is_in(version)
            for field in self.response_class.FIELDS
        )
        fields = [field.name for field in self.response_class.FIELDS if field.is_in(version)]
        self.has_throttle_time = "throttle_time_ms" in fields
        self.throttle_time_first = fields[:1] == ["throttle_time_ms"]
        self.has_tags = request_header_version(route.api_key, version) == 2
        self.header_end = b"\0" * response_header_version(route.api_key, version)

    def reader(self) -> Reader:
        """Compiled when the first request is read. What stands behind a request is not looked at
        (`wire/structs.py`).
        """
        self.read = self.request_class.readers.get(self.version) or compile_reader(
            self.request_class, self.version
        )
        return self.read

    def writer(self) -> Callable[[Any, list[Any]], None]:
        """Compiled when the first answer is written."""
        self.write = self.response_class.writers.get(self.version) or compile_writer(
            self.response_class, self.version
        )
        return self.write

    def read_header(self, frame: bytes | memoryview, length: int) -> tuple[str | None, int]:
        """(client id, offset of the body); `length` is that of the client id. The usual header
        is read here, any other by its own reader.
        """
        end = 10 + length
        # No client id, a frame too short, or tagged fields.
        if length < 0 or end >= len(frame) or (self.has_tags and frame[end]):
            header, end = decode_request_header(frame)
            return header.client_id, end
        return str(frame[10:end], "utf-8", "replace"), end + self.has_tags

    def unwritable(self) -> list[Any]:
        """The body for an answer that cannot be written: never one that looks like success.

        Raises WireError where the API has no error of its own.
        """
        if not self.refused_as_a_whole:
            raise WireError(f"the answer of {self.route.name} v{self.version} cannot be written")
        parts: list[Any] = []
        self.writer()(self.response_class(error_code=ErrorCode.UNKNOWN_SERVER_ERROR), parts)
        return parts

    def refuse(self, request: Any, code: ErrorCode, message: str | None) -> Any:
        """The API's own error answer; None where the client waits for none."""
        return run_whole(self.refuse_in_steps(request, code, message))

    def refuse_in_steps(
        self, request: Any, code: ErrorCode, message: str | None
    ) -> Generator[None, None, Any]:
        """As `refuse`, pausing after every element."""
        self.errors[code] = self.errors.get(code, 0) + 1
        # A Produce with acks=0 has no answer: one would be taken for the next request's.
        if self.route.api_key == 0 and request.acks == 0:
            return None
        return (
            yield from refusal_in_steps(request, self.response_class, self.version, code, message)
        )


class TimedResponse(PendingResponse):
    """A timed request that was answered at once: measures the time until its answer is with the
    transport. `is_next`: no answer is to be sent before it.
    """

    __slots__ = ("_is_next", "_seconds", "_since", "_timing")

    def __init__(
        self,
        timing: Timing,
        answer: Answer,
        since: float,
        seconds: Callable[[], float],
        is_next: bool,
    ) -> None:
        PendingResponse.__init__(self, answer)
        self._timing, self._since, self._seconds, self._is_next = timing, since, seconds, is_next

    def on_sent(self) -> None:
        took = self._seconds() - self._since
        self._timing.record(0.0, *((0.0, took) if self._is_next else (took, 0.0)))


class EncodedAnswer:
    """The result of the steps that encode a long answer."""

    __slots__ = ("answer",)

    def __init__(self, answer: Answer) -> None:
        self.answer = answer


class SuspendedResponse(PendingResponse):
    """A request function that waits for a Deferred.

    Many may wait: the request is dropped unless a refusal mirrors it, its bytes unless they are
    passed on.
    """

    __slots__ = (
        "_bound",
        "_connection",
        "_context",
        "_deferred",
        "_dispatcher",
        "_gone",
        "_is_next",
        "_remote",
        "_request",
        "_since",
        "_steps",
        "_timing",
    )

    def __init__(
        self,
        dispatcher: Dispatcher,
        connection: KafkaConnection,
        bound: BoundRoute,
        context: RequestContext,
        request: Any,
        steps: Steps,
        timing: Timing | None = None,
    ) -> None:
        PendingResponse.__init__(self, None, False)
        self._dispatcher = dispatcher
        self._connection = connection
        self._bound = bound
        self._context = context
        # Thousands of fetches may wait: a request, and its frame, are kept only when something
        # still needs them.
        self._request = None if bound.refused_as_a_whole else request
        self._steps = steps
        if not bound.route.forward:
            context.raw_request = b""
        self._since = dispatcher.seconds()
        self._timing = timing
        self._gone = False
        self._deferred: Deferred[Any] | None = None

    @property
    def appended(self) -> bool:
        return self.done or self._context.appended

    @property
    def only_reads(self) -> bool:
        return self._bound.route.cancel and not self.done

    def wait(self, deferred: Deferred[Any]) -> None:
        self._deferred = deferred
        deferred.addBoth(self._go_on)

    def abandon(self) -> None:
        self._gone = True
        PendingResponse.abandon(self)
        if self._bound.route.cancel and self._deferred is not None and not self.done:
            self._deferred.cancel()

    def _go_on(self, result: Any) -> None:
        """The awaiting function takes a result out of the Deferred itself; a failure is thrown
        into it.
        """
        failed = result.value if isinstance(result, Failure) else None
        self._dispatcher.marks.what = self._bound
        if self._context.metered is not None:
            self._context.metered.began = self._dispatcher.seconds()
        try:
            outcome = self._dispatcher.step(
                self._bound, self._context, self._request, self._steps, failed
            )
            # The function ended with a long answer: its encoding is a coroutine of its own.
            if isinstance(outcome, Coroutine):
                self._steps = outcome
                outcome = self._dispatcher.step(self._bound, self._context, self._request, outcome)
        except WireError as reason:
            self._connection.broken(reason)
            outcome = None
        if isinstance(outcome, Deferred):
            self.wait(outcome)
            if self.booking is not None and self._context.appended:
                self.release_booking()
            return
        self.done = True
        self._deferred = None
        now = self._dispatcher.seconds()
        took = now - self._since
        if self._timing is not None:
            self._since, self._remote = now, took
            self._is_next = self._connection.is_next(self)
        dispatcher = self._dispatcher
        if took >= dispatcher.slow.seconds:
            on_controller = dispatcher.listener.is_controller
            dispatcher.slow.waited(self._bound.route, self._context, took, on_controller)
        if self._gone:
            discard(outcome)  # nobody reads it, but its slices hold files open
            return
        self.answer = outcome
        self._connection.response_ready()

    def on_sent(self) -> None:
        if self._timing is not None:
            took = self._dispatcher.seconds() - self._since
            self._timing.record(self._remote, *((0.0, took) if self._is_next else (took, 0.0)))


@mypyc_attr(allow_interpreted_subclasses=True)
class Dispatcher:
    """The way in of one listener.

    Called with a connection and a frame; see `net.connection.Dispatch`.
    """

    def __init__(
        self, broker: BrokerParts, listener: ListenerName, routes: dict[int, Route] | None = None
    ) -> None:
        self.broker = broker
        self.listener = listener
        self.routes = routes_for(listener.is_controller) if routes is None else routes
        self.seconds = broker.runtime.clock.seconds
        self.marks = broker.runtime.marks
        self.quotas = broker.controller_quotas if listener.is_controller else broker.quotas
        self.slow = SlowRequests(broker.config, broker.runtime.clock)
        self._bound: dict[int, BoundRoute] = {}
        self._times: dict[int, ApiTimes] = {}

    @property
    def bound_routes(self) -> list[BoundRoute]:
        """What has been requested so far."""
        return list(self._bound.values())

    def __call__(
        self, connection: KafkaConnection, frame: bytes | memoryview
    ) -> Answer | PendingResponse:
        try:
            api_key, version, correlation_id, length = _HEAD.unpack_from(frame)
        except struct_error:
            raise WireError(f"a frame of {len(frame)} bytes is too short for a request") from None
        bound = self._bound.get(api_key << 16 | version) or self.find(api_key, version)
        if bound is None:
            return self._answer_newer_api_versions(correlation_id)
        count = bound.requests = bound.requests + 1
        self.marks.what = bound
        began = 0.0 if count & bound.untimed else self.seconds()
        client_id, offset = bound.read_header(frame, length)
        context = RequestContext(
            self.broker,
            self.listener,
            api_key,
            version,
            correlation_id,
            client_id,
            connection.client_host,
            connection.principal,
            connection,
            frame,
            self,
        )
        # A client that has yet to authenticate has no user: nobody's quota may be charged for it.
        if self.quotas.active and not connection.is_stranger:
            context.metered = Metered(len(frame), self.seconds())
        try:
            request, _ = (bound.read or bound.reader())(frame, offset, len(frame))
        except READ_ERRORS:
            raise wire_error(bound.request_class, version) from None
        except ManyElements:
            # Found while decoding: only the decoder counts the elements of nested arrays.
            return self._start_long(connection, bound, context, frame, offset)
        if bound.route.cluster_action and not context.may_on_cluster(Operation.CLUSTER_ACTION):
            return self.answer(
                bound,
                context,
                bound.refuse(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, None),
            )
        steps: Any = None
        outcome: Any
        if bound.at_once is None:
            steps = bound.call(context, request)
            outcome = self.step(bound, context, request, steps)
        else:
            try:
                steps = bound.at_once(context, request)
            except Exception as error:
                outcome = self.failed(bound, context, request, error)
            else:
                if type(steps) is bound.response_class:
                    outcome = self.answer(bound, context, steps)
                else:
                    outcome = self.step(bound, context, request, steps)
        if not count & bound.untimed:
            return self._timed(connection, bound, context, request, steps, began, outcome)
        # The usual answers first: Deferred is an abstract base class, whose `isinstance` costs
        # as much as five calls.
        if type(outcome) is bytes or type(outcome) is list:
            return outcome
        if isinstance(outcome, Deferred):
            response = SuspendedResponse(self, connection, bound, context, request, steps)
            response.wait(outcome)
            return response
        return outcome  # type: ignore[no-any-return]

    def _start_long(
        self,
        connection: KafkaConnection,
        bound: BoundRoute,
        context: RequestContext,
        frame: bytes | memoryview,
        offset: int,
    ) -> Answer | PendingResponse:
        """Decodes, runs and encodes in slices. There is no request yet that a refusal could
        mirror.
        """
        if bound.route.cluster_action and not context.may_on_cluster(Operation.CLUSTER_ACTION):
            audit.denied(context)
            raise WireError(f"{bound.route.name} is for nodes of the cluster only")
        steps = self._in_slices(bound, context, frame, offset)
        outcome: Any = self.step(bound, context, None, steps)
        if not isinstance(outcome, Deferred):
            return outcome  # type: ignore[no-any-return]
        response = SuspendedResponse(self, connection, bound, context, None, steps)
        response.wait(outcome)
        return response

    async def _in_slices(
        self, bound: BoundRoute, context: RequestContext, frame: bytes | memoryview, offset: int
    ) -> Any:
        request: Any = await context.in_slices(
            decode_in_slices(bound.request_class, frame, context.version, offset)
        )
        frame = b""  # else its bytes are held while the request waits
        code, message = ErrorCode.UNKNOWN_SERVER_ERROR, None
        try:
            return await bound.call(context, request)
        except BrokerError as error:
            code, message = error.code, error.message
        except (WireError, CancelledError):
            # For `step`: one ends the connection, the other says that the client has gone.
            raise
        except Exception:
            self._log_failure(bound, context)
        return await context.in_slices(
            bound.refuse_in_steps(request, code, message), REFUSAL_ELEMENTS
        )

    async def _written_in_slices(
        self, bound: BoundRoute, context: RequestContext, response: Any
    ) -> EncodedAnswer:
        """The answer of a long request."""
        if context.denials is not None:
            audit.denied(context)
        if context.metered is not None:
            response = charge(self, bound, context, response)
        if response is None:
            return EncodedAnswer(None)
        if response.__class__ is Encoded:
            return EncodedAnswer(self.answer(bound, context, response))
        parts: list[Any] = []
        try:
            await context.encode(response, parts)
        except Exception:
            _logger.failure(
                "the answer of {name} v{version} cannot be written",
                name=bound.route.name,
                version=bound.version,
            )
            discard(parts)
            parts = bound.unwritable()
        else:
            # Its bytes are there: to free a million objects at a stroke takes 0.1 s.
            context.broker.turns.start(emptied_in_steps(response))
        # In pieces also where it has no records: to join 30 MB takes some 20 ms.
        return EncodedAnswer(_in_pieces(parts, context.correlation_id, bound.header_end))

    def _log_failure(self, bound: BoundRoute, context: RequestContext) -> None:
        _logger.failure(
            "{name} v{version} from {client} failed",
            name=bound.route.name,
            version=bound.version,
            client=_client_text(context),
        )

    def _timed(
        self,
        connection: KafkaConnection,
        bound: BoundRoute,
        context: RequestContext,
        request: Any,
        steps: Steps,
        began: float,
        outcome: Any,
    ) -> Answer | PendingResponse:
        """The answer of a request that is timed: as that of any other, but it is recorded."""
        now = self.seconds()
        if bound.requests >= ALWAYS_TIMED:
            bound.untimed = ALWAYS_TIMED - 1
        held = connection.held_since
        # Who fetches from a controller is a node.
        by = (
            connection.is_follower or bound.on_controller if bound.route.api_key == _FETCH else None
        )
        timing = Timing(bound.times, by, began - held if held else 0.0, now - began)
        if isinstance(outcome, Deferred):
            response = SuspendedResponse(self, connection, bound, context, request, steps, timing)
            response.wait(outcome)
            return response
        if outcome is None:
            timing.record(0.0, 0.0, 0.0)
            return None
        return TimedResponse(timing, outcome, now, self.seconds, not connection.busy)

    def find(self, api_key: int, version: int) -> BoundRoute | None:
        """What serves it; None for an ApiVersions that is too new. Raises WireError for what is
        not served here.
        """
        route = self.routes.get(api_key)
        on_controller = self.listener.is_controller
        if route is None or not route.versions(on_controller).holds(version):
            if route is not None and api_key == _API_VERSIONS:
                return None
            raise WireError(
                f"API {api_key} version {version} is not served on listener {self.listener.name}"
            )
        times = self._times.setdefault(api_key, ApiTimes())
        found = BoundRoute(route, version, on_controller, times)
        self._bound[api_key << 16 | version] = found
        return found

    def step(
        self,
        bound: BoundRoute,
        context: RequestContext,
        request: Any,
        steps: Steps,
        failed: BaseException | None = None,
    ) -> Any:
        """Runs the function until it waits (its Deferred) or ends (its answer; of a long request
        the steps that write it).

        `failed`: the exception of the Deferred that it waited for, if it failed.
        """
        try:
            waits_for = steps.send(None) if failed is None else steps.throw(failed)
        except StopIteration as stop:
            # A long request may have a long answer: it is written in slices, too.
            if context.sliced:
                done = stop.value
                return (
                    done.answer
                    if type(done) is EncodedAnswer
                    else self._written_in_slices(bound, context, done)
                )
            return self.answer(bound, context, stop.value)
        except Exception as error:
            return self.failed(bound, context, request, error)
        assert isinstance(waits_for, Deferred), waits_for
        if context.metered is not None:
            context.metered.pause(self.seconds())
        return waits_for

    def failed(
        self, bound: BoundRoute, context: RequestContext, request: Any, error: Exception
    ) -> Answer:
        """The answer of a function that raised; called where it is caught.

        Raises it when the peer is broken.
        """
        if isinstance(error, BrokerError):
            return self.answer(bound, context, bound.refuse(request, error.code, error.message))
        if isinstance(error, WireError):
            raise error
        if isinstance(error, CancelledError):
            return self.answer(bound, context, None)  # as with `SuspendedResponse.abandon`
        self._log_failure(bound, context)
        return self.answer(
            bound, context, bound.refuse(request, ErrorCode.UNKNOWN_SERVER_ERROR, None)
        )

    def answer(self, bound: BoundRoute, context: RequestContext, response: Any) -> Answer:
        """A message as the connection sends it.

        Raises WireError when its records are gone, or cannot be written.
        """
        if context.denials is not None:
            audit.denied(context)
        if context.metered is not None:
            response = charge(self, bound, context, response)
        if response is None:
            return None
        if response.__class__ is Encoded:
            return _in_pieces(response.parts, context.correlation_id, bound.header_end)
        parts: list[Any] = []
        try:
            (bound.write or bound.writer())(response, parts)
        except Exception:
            _logger.failure(
                "the answer of {name} v{version} cannot be written",
                name=bound.route.name,
                version=bound.version,
            )
            # `parts` may hold some of the slices already: the message has all of them.
            if bound.has_records:
                _release_slices(response)
            parts = bound.unwritable()
        return _whole(bound, context, parts)

    def _answer_newer_api_versions(self, correlation_id: int) -> Answer:
        from twisted_broker.api.api_versions import too_new

        body = encode(too_new(self.routes, self.listener.is_controller), 0)
        return _LENGTH_AND_ID.pack(4 + len(body), correlation_id) + body


def _whole(bound: BoundRoute, context: RequestContext, parts: list[Any]) -> Answer:
    if bound.has_records:
        return _in_pieces(parts, context.correlation_id, bound.header_end)
    body = b"".join(parts)
    end = bound.header_end
    return _LENGTH_AND_ID.pack(4 + len(end) + len(body), context.correlation_id) + end + body


def _holds_records(struct: Any) -> bool:
    return any(
        field.kind == "record_bytes"
        or (isinstance(field.element, type) and _holds_records(field.element))
        for field in struct.FIELDS
    )


def _release_slices(message: Any) -> None:
    """Releases the slices of a message that will not be sent."""
    for field in message.FIELDS:
        value = getattr(message, field.name)
        if type(value) is FileSlice:
            value.release()
        elif isinstance(field.element, type) and _holds_records(field.element):
            for each in value if isinstance(value, list) else [value]:
                _release_slices(each)


def _in_pieces(parts: list[Any], correlation_id: int, header_end: bytes) -> Answer:
    """The answer's pieces.

    Small slices are read here, up to a limit, so that many partitions are not many system calls.
    """
    total = len(header_end) + 4
    budget = _READ_AT_ONCE
    whole = True
    for index, part in enumerate(parts):
        length = len(part)
        total += length
        if type(part) is FileSlice:
            if length <= _SMALL and length <= budget:
                data = _loaded(part, parts)
                if data is None:
                    whole = False
                    continue
                budget -= length
                parts[index] = data
            else:
                whole = False
    head = _LENGTH_AND_ID.pack(total, correlation_id) + header_end
    if whole and total <= _JOINED:
        return b"".join((head, *parts))
    parts.insert(0, head)
    return join_bytes(parts)


def _loaded(part: FileSlice, parts: list[Any]) -> Buffer | None:
    """Its bytes; None when they must come from a disk: then it is sent as a slice."""
    try:
        data = part.read_resident()
    except (SliceGone, OSError) as reason:
        discard(parts)
        raise WireError(f"the records of an answer cannot be read any more: {reason}") from None
    if data is not None:
        part.release()
    return data


def _client_text(context: RequestContext) -> str:
    return one_line(f"{context.client_host} ({context.client_id!r})")
