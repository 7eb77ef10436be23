"""One client's connection: frames in, answers out in order, and a bounded amount of work at a time.

Owns the order of one connection's requests.

1. Answers leave in the order of their requests.
2. Every request except Produce and AppendMirrored is a barrier: it starts when all before it are
   answered, and nothing starts until it is answered. These two may start while earlier ones wait
   for replicas, once those are in the logs (`appended`): at most `PIPELINED` of them, and
   `PIPELINED_BYTES`.
3. A client that does not read its answers is not read from: nothing starts while the transport is
   full, and at most one read's worth of bytes waits here. A client that sends many requests at once
   has `SHARE_SECONDS` of a turn; the next one begins in a turn of its own, after other connections.
4. Malformed input is one log line and the end of this connection. Text from the client is quoted.
5. When the connection ends, a waiting request that only reads is cancelled; one that has appended
   finishes without an answer.
6. A peer that hangs up while it is not read from ends its connection if the request in progress
   only reads; a request that changes something is finished first, with those sent behind it.
7. A client over its quota is answered at once; until its wait is over it is not read from, and no
   request of it starts (`throttle`).

Source: docs/ARCHITECTURE.md 7 and 8; Kafka's `SocketServer` mutes a channel the same way; KIP-219.
Not here: what a request means (`api/dispatch.py`), sockets (`net/transport.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from typing import Protocol as Protocol_

from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure

from twisted_broker.event_lines import EventLines
from twisted_broker.interfaces import IDelayedCall, Runtime
from twisted_broker.net.frames import FrameReader
from twisted_broker.net.request_bytes import Booking, RequestBytes
from twisted_broker.net.send_queue import SendQueue
from twisted_broker.security.principal import ANONYMOUS, Principal
from twisted_broker.security.security_protocol import SecurityProtocol
from twisted_broker.subclassed import mypyc_attr
from twisted_broker.wire.errors import WireError
from twisted_broker.wire.header import APPEND_MIRRORED

if TYPE_CHECKING:
    from twisted_broker.net.sasl_gate import SaslGate, SaslListener

# Enough for a producer with many requests in flight; each one that waits holds an answer here.
PIPELINED = 32
PIPELINED_BYTES = 8 << 20
SHARE_SECONDS = 0.005
"""A read may bring a thousand requests that are short, and long to answer."""
_APPENDING = (b"\0\0", APPEND_MIRRORED.to_bytes(2, "big"))


Answer = bytes | list[Any] | None


@mypyc_attr(allow_interpreted_subclasses=True)
class PendingResponse:
    """A request whose answer is not sent yet. `answer` is valid once `done`."""

    __slots__ = ("answer", "booking", "done", "size")

    def __init__(self, answer: Answer = None, done: bool = True) -> None:
        self.answer = answer
        self.done = done
        self.size = 0
        self.booking: Booking | None = None

    @property
    def appended(self) -> bool:
        """Whether the next Produce may start before this one is answered, whose bytes are not held
        any more.
        """
        return self.done

    def release_booking(self) -> None:
        """Its bytes are not held any more."""
        booking, self.booking = self.booking, None
        if booking is not None:
            booking.release()

    @property
    def only_reads(self) -> bool:
        """Whether it can be cancelled: it changes nothing."""
        return False

    def abandon(self) -> None:
        """The client is gone."""
        discard(self.answer)
        self.answer = None

    def on_sent(self) -> None:
        """Its answer was given to the transport, after those of all requests before it."""


class Dispatch(Protocol_):
    """Starts one request: its answer with its length in front, None when there is none to give, or
    a PendingResponse that is done, or reports `response_ready` later.

    Raises WireError for a broken peer.
    """

    def __call__(
        self, connection: KafkaConnection, frame: bytes | memoryview
    ) -> Answer | PendingResponse: ...


class ListenerContext(Protocol_):
    """What a connection needs of its listener."""

    name: str
    protocol: SecurityProtocol
    runtime: Runtime
    frame_limit: int
    dispatch: Dispatch
    request_bytes: RequestBytes
    lines: EventLines
    sasl: SaslListener | None

    def opened(self, connection: KafkaConnection) -> None: ...

    def closed(self, connection: KafkaConnection) -> None: ...


class KafkaConnection(Protocol):
    """The protocol of an accepted connection.

    `active`: a whole request came, or an answer was read, since the idle watch last looked, which
    keeps `idle_rounds` and `seen_bytes`; `has_requested`: a request ever came; `held_since`: when
    the present request arrived, in seconds, if it waited for earlier ones, else 0; `is_follower`: a
    follower fetched; `throttled`: its client waits for its quota; `sasl`: the gate of a listener
    with SASL; `is_stranger`: it has not authenticated there yet.
    """

    is_follower = False
    is_stranger = False
    _on_lost: tuple[Callable[[KafkaConnection], None], ...] = ()
    sasl: SaslGate | None = None

    def __init__(self, listener: ListenerContext, client_host: str) -> None:
        self.listener = listener
        self.client_host = client_host
        self.principal = ANONYMOUS
        self.client_software = ("unknown", "unknown")
        self.active = True
        self.idle_rounds = self.seen_bytes = 0
        self.has_requested = self.hung_up = False
        self.frames = FrameReader(listener.frame_limit, may_receive=self._take_memory)
        self.output: SendQueue = None  # type: ignore[assignment]
        self.closing = False
        self.held_since = 0.0
        self._dispatch: Dispatch = listener.dispatch
        if listener.sasl is not None:
            self._dispatch = self.sasl = listener.sasl.gate(self, listener.dispatch)
            self.is_stranger = True
        self._pending: deque[PendingResponse] = deque()
        self._held: bytes | memoryview | None = None
        self._booking: Booking | None = None
        """of the request that is under way, held or being started"""
        self._in_progress_bytes = 0
        self._serving = self._will_serve = False
        self._reading = True
        self.throttled = False
        self._throttle_end: IDelayedCall | None = None
        self._throttled_until = 0.0

    @property
    def busy(self) -> bool:
        """Whether a request waits for its answer."""
        return bool(self._pending)

    @property
    def is_unused(self) -> bool:
        """Whether nobody logged in; where nobody has to, whether no request ever came."""
        return self.is_stranger or not self.has_requested

    @property
    def is_request_queued(self) -> bool:
        """Whether a request that has come waits for those before it."""
        return self._held is not None

    @property
    def answers_queued(self) -> int:
        """Answers that are there and not with the transport."""
        return sum(each.done for each in self._pending) + self.output.full

    def is_next(self, response: PendingResponse) -> bool:
        """Whether no answer is to be sent before this one."""
        return bool(self._pending) and self._pending[0] is response

    def logPrefix(self) -> str:
        return "replog"

    def connectionMade(self) -> None:
        transport: Any = self.transport
        self.output = SendQueue(transport, self.listener.runtime, self)
        transport.registerProducer(self, True)
        self.listener.opened(self)
        if self.sasl is not None:
            self.sasl.opened()

    def receive_space(self) -> memoryview | None:
        """Where the transport may put bytes itself; then it calls `received`, else
        `dataReceived`.
        """
        return self.frames.space()

    def received(self, count: int) -> None:
        self.frames.filled(count)
        self.serve()

    def dataReceived(self, data: bytes) -> None:
        self.frames.feed(data)
        self.serve()

    def serve(self) -> None:
        """Starts every request that may start now."""
        # A request that is answered at once, or a transport that drains, calls back into here: the
        # loop below goes on by itself.
        if self._serving or self.closing:
            return
        self._serving = True
        try:
            self._start_requests()
        except WireError as reason:
            self.broken(reason)
        finally:
            self._serving = False
        if not self.closing:
            self._update_reading()

    def _start_requests(self) -> None:
        frames, dispatch, output = self.frames, self._dispatch, self.output
        is_first, share_ends = True, 0.0
        while not output.full and not self.closing and not self.throttled:
            frame = self._held
            if frame is None:
                frame = frames.next_frame()
                if frame is None:
                    return
                self.has_requested = self.active = True
                self.held_since = 0.0
                if self._booking is not None:
                    self._booking.arrived()
            else:
                self._held = None
            if is_first:  # as a rule a read brings one: that one costs no look at the clock
                is_first = False
            else:
                now = self.listener.runtime.clock.seconds()
                if not share_ends:
                    share_ends = now + SHARE_SECONDS
                elif now >= share_ends:
                    self._held = frame
                    self.held_since = self.held_since or now
                    self._serve_soon()
                    return
            # Held outside of `frames`: the frame was taken already, and goes first when its turn
            # comes.
            if self._pending and not self._may_start(frame):
                self._held = frame
                self.held_since = self.held_since or self.listener.runtime.clock.seconds()
                return
            # Until dispatch returns, a booking belongs to no response: a connection that ends
            # meanwhile must release it all the same.
            outcome = dispatch(self, frame)
            if isinstance(outcome, PendingResponse):
                if self._booking is not None and not outcome.appended:
                    outcome.booking, self._booking = self._booking, None
                self._wait(outcome, len(frame))
                if outcome.done:
                    self.response_ready()
            elif self._pending:
                # Answered at once, but earlier Produce requests wait: answers keep their order.
                self._wait(PendingResponse(outcome), 0)
            elif outcome is not None:
                output.send(outcome)
            frame = outcome = None  # a view of the frame would keep its buffer out of the pool
            if self._booking is not None:
                self._release_booking()
        self.frames.give_back()

    def _serve_soon(self) -> None:
        """Goes on in a turn of its own, once, whoever calls `serve` before."""
        if not self._will_serve:
            self._will_serve = True
            self.listener.runtime.clock.callLater(0, self._next_turn)

    def _next_turn(self) -> None:
        self._will_serve = False
        self.serve()

    def _may_start(self, frame: bytes | memoryview) -> bool:
        pending = self._pending
        # Two Produce requests keep their order when the first one is in the log; any other request
        # may depend on the answer of the one before it.
        return (
            frame[:2] in _APPENDING
            and pending[-1].appended
            and len(pending) < PIPELINED
            and self._in_progress_bytes + len(frame) <= PIPELINED_BYTES
        )

    def _take_memory(self, more: int) -> bool:
        if self._booking is None:
            request_bytes = self.listener.request_bytes
            pool = request_bytes.strangers if self.is_stranger else request_bytes
            self._booking = Booking(pool, self.frames.size, self)
        return self._booking.take(more)

    def _release_booking(self) -> None:
        booking, self._booking = self._booking, None
        if booking is not None:
            booking.release()

    def bytes_arrived(self) -> int | None:
        """Of the request that is under way (`request_bytes.Owner`)."""
        if self.throttled and not self.output.full:
            return None
        return self.frames.pending

    def room_given(self) -> None:
        """A long request may be read again; in a turn of its own, so that waiters do not nest."""
        self.frames.room_given()
        self.listener.runtime.clock.callLater(0, self._read_again)

    def _read_again(self) -> None:
        if not self.closing:
            self.active = True  # it was not read from: its time begins anew
            self.serve()

    def too_slow(self) -> None:
        """Others wait for the memory of a request that does not come."""
        self.listener.lines.warn(
            "closing the connection",
            client=self.client_host,
            reason="a request comes so slowly that others wait for its memory",
        )
        self.close()

    def _wait(self, response: PendingResponse, size: int) -> None:
        response.size = size
        self._in_progress_bytes += size
        self._pending.append(response)

    def response_ready(self) -> None:
        """A response has its answer: sends all answers whose turn has come."""
        if self.closing:
            return  # its end abandons it
        pending = self._pending
        while pending and pending[0].done:
            response = pending.popleft()
            # Released before the answer is sent: sending may call back into `serve`.
            self._in_progress_bytes -= response.size
            response.release_booking()
            if response.answer is not None:
                self.output.send(response.answer)
                response.on_sent()
        self.serve()

    def _update_reading(self) -> None:
        # While a request waits for its turn, or for memory, more bytes would only pile up here.
        wanted = (
            self._held is None
            and not self.throttled
            and not self.frames.waits
            and not (self.output.full and self.frames.pending)
        )
        if wanted == self._reading:
            return
        self._reading = wanted
        transport: Any = self.transport
        if wanted:
            transport.resumeProducing()
        else:
            transport.pauseProducing()

    def throttle(self, wait_ms: int) -> None:
        """Reads nothing, and starts no request, for so long from now; a wait that ends later
        stays. Answers leave all the same.
        """
        clock = self.listener.runtime.clock
        until = clock.seconds() + wait_ms / 1000
        if self.closing or until <= max(self._throttled_until, clock.seconds()):
            return
        if self._throttle_end is not None:
            self._throttle_end.cancel()
        self.throttled, self._throttled_until = True, until
        self._throttle_end = clock.callLater(wait_ms / 1000, self._throttle_over)
        if not self._serving:
            self._update_reading()

    def _throttle_over(self) -> None:
        self.throttled, self._throttle_end = False, None
        self.serve()

    def pauseProducing(self) -> None:
        """The transport has enough to write."""
        self.output.pause()
        if not self._serving and not self.closing:
            self._update_reading()

    def resumeProducing(self) -> None:
        """The transport can take more."""
        if not self.closing:
            self.active = True  # its client has read: a long answer may take long
            self.output.resume()
            self.serve()

    def stopProducing(self) -> None:
        """The transport is lost; `connectionLost` follows."""

    def peer_hung_up(self) -> None:
        """The peer sends no more, and is not read from: a request waits behind one in progress."""
        self.hung_up = True
        # The last one is the barrier, and only Produce requests stand before a Produce: one look
        # says whether something is being changed.
        if self._pending and self._pending[-1].only_reads:
            self.close()

    def broken(self, reason: Exception) -> None:
        """Logs one line and closes: what the peer sent is malformed, or an answer cannot be sent as
        announced.
        """
        if self.closing:
            return
        if self.sasl is not None and self.is_stranger:
            self.sasl.broken(reason)  # anybody can come here at any rate: its lines are bounded
        else:
            self.listener.lines.warn(
                "closing the connection", client=self.client_host, reason=one_line(reason)
            )
        self.close()

    def close(self) -> None:
        """Takes and answers nothing more. What was given to the transport is sent, and the peer
        sees the end of the stream; the transport bounds how long that may take.
        """
        if not self.closing:
            self.closing = True
            self.output.close()
            self.frames.close()
            self._release_booking()
            transport: Any = self.transport
            transport.loseConnection()

    def give_way(self, reason: str) -> None:
        """Closes, and waits for nothing: its place is wanted."""
        self.listener.lines.warn("closing the connection", client=self.client_host, reason=reason)
        self.close()
        end_now = getattr(self.transport, "end_now", None)
        if end_now is not None:
            end_now()

    def authenticated(self, principal: Principal, dispatch: Dispatch | None) -> None:
        """Who the client is, from now on; `dispatch`: what serves it without looking again."""
        self.principal = principal
        self.has_requested = True
        self.is_stranger = False
        self.frames.limit = self.listener.frame_limit
        if dispatch is not None:
            self._dispatch = dispatch

    def tell_when_lost(self, on_lost: Callable[[KafkaConnection], None]) -> None:
        """Calls it once, when the connection is gone, however often it was given."""
        if on_lost not in self._on_lost:
            self._on_lost = (*self._on_lost, on_lost)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.closing = True
        if self._throttle_end is not None:
            self._throttle_end.cancel()
            self._throttle_end = None
        if self.sasl is not None:
            self.sasl.closed()
        self.output.close()
        self.frames.close()
        self._release_booking()
        self.listener.closed(self)
        for on_lost in self._on_lost:
            on_lost(self)
        pending, self._pending = self._pending, deque()
        self._held = None
        for response in pending:
            response.release_booking()
            response.abandon()


def discard(answer: Answer) -> None:
    """Releases the slices of an answer that will not be sent."""
    if isinstance(answer, list):
        for part in answer:
            release = getattr(part, "release", None)
            if release is not None and not isinstance(part, memoryview):
                release()


def one_line(reason: object) -> str:
    """A text from outside as it may stand in a log: one line of printable characters, not long."""
    text = str(reason)
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text[:500])
