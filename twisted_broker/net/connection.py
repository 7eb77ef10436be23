"""One client's connection: frames in, answers out in their order, and never more work at a time
than allowed.

Owns the order of one connection's requests.

1. Answers leave in the order of their requests.
2. Everything but Produce is a barrier: it starts when all before it are answered, and nothing
   starts until it is. Produce requests may start while earlier ones wait for replicas, once those
   are in the logs (`appended`): at most `PIPELINED` of them, and `PIPELINED_BYTES`.
3. A client that does not read is not read from: nothing starts while the transport is full, and at
   most one read's worth waits here.
4. Malformed input is one log line and the end of this connection. What a client calls itself is
   quoted.
5. When the connection goes, a waiting request that only reads is cancelled; one that has appended
   finishes unanswered.
6. A peer that hangs up while it is not read from ends its connection, where the request in progress
   only reads; what changes something is finished first, with what was sent behind it.

Source: docs/ARCHITECTURE.md 7 and 8. Not here: what a request means (`api/dispatch.py`), sockets
(`transport.py`).
"""

from __future__ import annotations

from collections import deque
from typing import Any
from typing import Protocol as Protocol_

from twisted.internet.protocol import Protocol, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure

from twisted_broker.interfaces import Runtime
from twisted_broker.net.frames import FrameReader
from twisted_broker.net.request_bytes import RequestBytes
from twisted_broker.net.send_queue import SendQueue
from twisted_broker.security.principal import ANONYMOUS
from twisted_broker.wire.errors import WireError

PIPELINED = 32
PIPELINED_BYTES = 8 << 20
_PRODUCE = b"\0\0"
_LONG = 32768

_log = Logger(namespace="replog.net")

Answer = bytes | list[Any] | None


class PendingResponse:
    """A request in progress whose answer is not out. `answer` counts once `done`."""

    __slots__ = ("answer", "done", "granted", "size")

    def __init__(self, answer: Answer = None, done: bool = True) -> None:
        self.answer = answer
        self.done = done
        self.size = self.granted = 0

    @property
    def appended(self) -> bool:
        """Whether the next Produce may start before this one is answered."""
        return self.done

    @property
    def only_reads(self) -> bool:
        """Whether nothing is lost but an answer when it is given up."""
        return False

    def abandon(self) -> None:
        """The client is gone."""
        discard(self.answer)
        self.answer = None

    def left(self) -> None:
        """Its answer was handed to the transport, after those of all requests before it."""


class Dispatch(Protocol_):
    """Starts one request: its answer with its length in front, None when there is none to give, or
    a PendingResponse that is done, or reports `turn_done` later.

    Raises WireError for a broken peer.
    """

    def __call__(
        self, connection: KafkaConnection, frame: bytes | memoryview
    ) -> Answer | PendingResponse: ...


class ListenerContext(Protocol_):
    """What a connection came in by."""

    runtime: Runtime
    frame_limit: int
    dispatch: Dispatch
    request_bytes: RequestBytes

    def opened(self, connection: KafkaConnection) -> None: ...

    def closed(self, connection: KafkaConnection) -> None: ...


class KafkaConnection(Protocol):
    """The protocol of an accepted connection. `active` is set by traffic and cleared by the idle
    watch; `asked`: whether a request ever came; `coming_bytes`: what was granted to a long request
    that is not all here yet; `held_since` is when the request that is started now had come, on the
    clock, if it had to wait for those before it, else 0.
    """

    def __init__(self, door: ListenerContext, client_host: str) -> None:
        self.door = door
        self.client_host = client_host
        self.principal = ANONYMOUS
        self.client_software = ("unknown", "unknown")
        self.active = True
        self.silent_rounds = 0
        self.asked = self.hung_up = False
        self.frames = FrameReader(door.frame_limit, ask=self._may_come)
        self.output: SendQueue = None  # type: ignore[assignment]
        self.closing = False
        self.held_since = 0.0
        self._dispatch = door.dispatch
        self._turns: deque[PendingResponse] = deque()
        self._held: bytes | memoryview | None = None
        self._in_progress_bytes = self._starting = self.coming_bytes = 0
        self._serving = False
        self._reading = True

    @property
    def busy(self) -> bool:
        """Whether a request waits for its answer."""
        return bool(self._turns)

    def logPrefix(self) -> str:
        return "replog"

    def connectionMade(self) -> None:
        transport: Any = self.transport
        self.output = SendQueue(transport, self.door.runtime, self)
        transport.registerProducer(self, True)
        self.door.opened(self)

    def receive_space(self) -> memoryview | None:
        """Where the transport may put bytes itself; then it calls `received`, else
        `dataReceived`.
        """
        return self.frames.space()

    def received(self, count: int) -> None:
        self.active = True
        self.frames.filled(count)
        self.serve()

    def dataReceived(self, data: bytes) -> None:
        self.active = True
        self.frames.feed(data)
        self.serve()

    def serve(self) -> None:
        """Starts every request that may start now."""
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
            self._read_or_not()

    def _start_requests(self) -> None:
        next_frame, dispatch, output = self.frames.next_frame, self._dispatch, self.output
        while not output.full and not self.closing:
            frame = self._held
            if frame is None:
                frame = next_frame()
                if frame is None:
                    return
                self.asked = True
                self.coming_bytes = 0
                self.held_since = 0.0
            else:
                self._held = None
            if self._turns and not self._may_start(frame):
                self._held = frame
                self.held_since = self.held_since or self.door.runtime.clock.seconds()
                return
            granted = len(frame) if type(frame) is memoryview and len(frame) > _LONG else 0
            self._starting = granted
            outcome = dispatch(self, frame)
            if isinstance(outcome, PendingResponse):
                outcome.granted, self._starting = granted, 0
                self._wait(outcome, len(frame))
                if outcome.done:
                    self.turn_done()
            elif self._turns:
                self._wait(PendingResponse(outcome), 0)
            elif outcome is not None:
                output.send(outcome)
            frame = outcome = None
            if self._starting:
                self._starting = 0
                self.door.request_bytes.give_back(granted)

    def _may_start(self, frame: bytes | memoryview) -> bool:
        turns = self._turns
        return (
            frame[:2] == _PRODUCE
            and turns[-1].appended
            and len(turns) < PIPELINED
            and self._in_progress_bytes + len(frame) <= PIPELINED_BYTES
        )

    def _may_come(self, size: int) -> bool:
        granted = self.door.request_bytes.take(size, self._come)
        self.coming_bytes = size if granted else 0
        return granted

    def _come(self) -> None:
        """There is room for long requests again."""
        if not self.closing:
            self.door.runtime.clock.callLater(0, self._come_now)

    def _come_now(self) -> None:
        if not self.closing:
            self.frames.waits = False
            self.serve()

    def _granted(self) -> int:
        """What is granted to this connection in all."""
        held = self._held
        waiting = len(held) if type(held) is memoryview and len(held) > _LONG else 0
        return (
            self.coming_bytes + waiting + self._starting + sum(turn.granted for turn in self._turns)
        )

    def _wait(self, turn: PendingResponse, size: int) -> None:
        turn.size = size
        self._in_progress_bytes += size
        self._turns.append(turn)

    def turn_done(self) -> None:
        """A turn has its answer: everything that is now first in order goes out."""
        turns = self._turns
        while turns and turns[0].done:
            turn = turns.popleft()
            self._in_progress_bytes -= turn.size
            if turn.granted:
                self.door.request_bytes.give_back(turn.granted)
            if turn.answer is not None:
                self.output.send(turn.answer)
                turn.left()
        self.serve()

    def _read_or_not(self) -> None:
        wanted = (
            self._held is None
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

    def pauseProducing(self) -> None:
        """The transport has enough to write."""
        self.output.pause()
        if not self._serving and not self.closing:
            self._read_or_not()

    def resumeProducing(self) -> None:
        """The transport can take more."""
        if not self.closing:
            self.output.resume()
            self.serve()

    def stopProducing(self) -> None:
        """The transport is lost; `connectionLost` follows."""

    def peer_hung_up(self) -> None:
        """It sends no more, and is not read from now: a request waits here behind one in
        progress.
        """
        self.hung_up = True
        if self._turns and self._turns[-1].only_reads:
            self.close()

    def broken(self, reason: Exception) -> None:
        """The peer, or what was announced to it, is broken: one line, and the end."""
        if not self.closing:
            _log.warn(
                "{client} is disconnected: {reason}",
                client=self.client_host,
                reason=one_line(reason),
            )
            self.close()

    def close(self) -> None:
        """Closes now; what was not sent is not sent."""
        if not self.closing:
            self.closing = True
            transport: Any = self.transport
            transport.abortConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.closing = True
        self.output.close()
        self.door.closed(self)
        granted, self._starting, self.coming_bytes = self._granted(), 0, 0
        if granted:
            self.door.request_bytes.give_back(granted)
        turns, self._turns = self._turns, deque()
        self._held = None
        for turn in turns:
            turn.granted = 0
            turn.abandon()


def discard(answer: Answer) -> None:
    """Gives back the slices of an answer that will not be sent."""
    if isinstance(answer, list):
        for part in answer:
            release = getattr(part, "release", None)
            if release is not None and not isinstance(part, memoryview):
                release()


def one_line(reason: object) -> str:
    """A text from outside as it may stand in a log: one line of printable characters, not long."""
    text = str(reason)
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text[:500])
