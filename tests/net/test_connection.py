"""What `net/connection.py`, `send_queue.py` and `connection_limits.py` promise, on the network in
memory.
"""

from __future__ import annotations

from typing import Any

import pytest
from twisted.logger import capturedLogs, formatEvent
from twisted.python.failure import Failure

from tests.net.echo import DelayedOperation, Far, MemoryListener, framed
from twisted_broker.broker_config import BrokerConfig
from twisted_broker.log.segment_file import FileSlice, OpenFiles, SegmentFile
from twisted_broker.net import connection_limits
from twisted_broker.net.connection_limits import (
    LEAST_RATE,
    ConnectionCounts,
    DescriptorShares,
)
from twisted_broker.wire.errors import WireError
from twisted_broker.wire.header import APPEND_MIRRORED

PRODUCE, FETCH, METADATA = b"\0\0", b"\0\1", b"\0\3"


class Script:
    """Parks what begins with a key of `parked`, echoes the rest; produces may follow one another
    once appended.
    """

    def __init__(self, parked: tuple[bytes, ...] = (), can_follow: bool = True) -> None:
        self.parked, self.can_follow = parked, can_follow
        self.started: list[bytes] = []
        self.turns: list[DelayedOperation] = []

    def __call__(self, connection: Any, frame: bytes) -> Any:
        self.started.append(bytes(frame))
        if bytes(frame) == b"garbage":
            raise WireError("garbage")
        if frame[:2] in self.parked:
            turn = DelayedOperation(connection, frame, self.can_follow and frame[:2] == PRODUCE)
            self.turns.append(turn)
            return turn
        return framed(bytes(frame))


def test_answers_keep_the_order_of_requests() -> None:
    """Produces that finish in another order are answered in the order in which they came."""
    script = Script(parked=(PRODUCE,))
    broker = MemoryListener(script)
    client = broker.client()
    client.transport.write(b"".join(framed(PRODUCE + bytes([n])) for n in range(4)))
    broker.run()
    assert len(script.turns) == 4
    for n in (2, 0, 3, 1):
        script.turns[n].finish(framed(bytes([n])))
    broker.run()
    assert client.data == b"".join(framed(bytes([n])) for n in range(4))


def test_anything_but_produce_is_a_barrier() -> None:
    """A fetch waits for the produces before it, and everything behind a fetch waits for the
    fetch.
    """
    script = Script(parked=(PRODUCE, FETCH))
    broker = MemoryListener(script)
    client = broker.client()
    client.transport.write(framed(PRODUCE) + framed(FETCH) + framed(PRODUCE + b"2"))
    broker.run()
    assert script.started == [PRODUCE]
    script.turns[0].finish(framed(b"p"))
    broker.run()
    assert script.started == [PRODUCE, FETCH]
    script.turns[1].finish(framed(b"f"))
    broker.run()
    assert script.started == [PRODUCE, FETCH, PRODUCE + b"2"]


def test_mirrored_records_follow_each_other_as_produces_do() -> None:
    """A mirror's requests wait for the replicas together."""
    appended = APPEND_MIRRORED.to_bytes(2, "big")
    script = Script(parked=(PRODUCE, appended))
    broker = MemoryListener(script)
    client = broker.client()
    client.transport.write(framed(PRODUCE) + framed(appended) + framed(appended) + framed(FETCH))
    broker.run()
    assert script.started == [PRODUCE, appended]
    script.turns[0].finish(framed(b"p"))
    script.turns[1].finish(framed(b"a"))
    broker.run()
    assert script.started == [PRODUCE, appended, appended]


def test_a_produce_that_waits_before_its_append_is_a_barrier() -> None:
    """Until its records are in the logs nothing may overtake it."""
    script = Script(parked=(PRODUCE,), can_follow=False)
    broker = MemoryListener(script)
    client = broker.client()
    client.transport.write(framed(PRODUCE) + framed(PRODUCE))
    broker.run()
    assert len(script.started) == 1


def test_at_most_32_produces_wait_at_a_time() -> None:
    """The 33rd starts when the first is answered; meanwhile the client is not read from."""
    script = Script(parked=(PRODUCE,))
    broker = MemoryListener(script)
    client = broker.client()
    for n in range(40):
        client.transport.write(framed(PRODUCE + bytes([n])))
    broker.run()
    assert len(script.started) == 32
    script.turns[0].finish(framed(b""))
    broker.run()
    assert len(script.started) == 33


def test_waiting_produces_are_bounded_in_bytes() -> None:
    """Large produces wait even when few."""
    script = Script(parked=(PRODUCE,))
    broker = MemoryListener(script, frame_limit=16 << 20)
    client = broker.client()
    for _ in range(4):
        client.transport.write(framed(PRODUCE + bytes(3 << 20)))
    broker.run()
    assert len(script.started) == 2


def test_a_client_that_never_reads_is_not_read_from() -> None:
    """Answers that nobody reads stop the next requests: what waits for the client stays bounded
    (RELIABILITY 5.3).
    """
    script = Script()
    broker = MemoryListener(script)
    client = broker.client()
    client.transport.pauseProducing()
    for _ in range(100):
        client.transport.write(framed(FETCH + bytes(10_000)))
        broker.run()
    assert len(script.started) < 12
    (connection,) = broker.factory.connections
    assert connection.frames.pending < 20_000
    client.transport.resumeProducing()
    broker.run()
    assert len(script.started) == 100
    assert len(client.data) == 100 * 10_006


def test_many_requests_at_once_share_the_reactor() -> None:
    """Requests that take 2 ms each, 40 in one read: others are served between, order stays, and a
    connection that ends meanwhile starts no more.
    """

    class Slow(Script):
        def __call__(self, connection: Any, frame: bytes) -> Any:
            if frame[:2] == FETCH:
                broker.clock.rightNow += 0.002
            else:
                gone.transport.abortConnection()
            return super().__call__(connection, frame)

    script = Slow()
    broker = MemoryListener(script)
    many, gone, other = (broker.client() for _ in range(3))
    for each in (many, gone):
        each.transport.write(b"".join(framed(FETCH + bytes([n])) for n in range(40)))
    other.transport.write(framed(METADATA))
    broker.run()
    assert script.started.index(METADATA) <= 10  # 5 ms of each, begun with a request
    assert len(script.started) <= 41 + 10
    assert many.data == b"".join(framed(FETCH + bytes([n])) for n in range(40))
    assert not broker.clock.getDelayedCalls()


def test_malformed_input_closes_this_connection_only() -> None:
    """One broken client goes; its neighbour is served as before (docs/ARCHITECTURE.md 8)."""
    broker = MemoryListener(Script())
    broken, neighbour = broker.client(), broker.client()
    broken.transport.write(framed(b"garbage") + framed(FETCH))
    broker.run()
    assert broken.lost and broken.data == b""
    broken_again = broker.client()
    broken_again.transport.write(b"\xff\xff\xff\xff")
    neighbour.transport.write(framed(FETCH))
    broker.run()
    assert broken_again.lost and not neighbour.lost
    assert neighbour.data == framed(FETCH)
    assert broker.factory.counts.total == 1


def test_bytes_one_at_a_time() -> None:
    """A slow client is served like any other."""
    broker = MemoryListener(Script())
    client = broker.client()
    for byte in framed(FETCH + b"slow") * 2:
        client.transport.write(bytes([byte]))
        broker.run()
    assert client.data == framed(FETCH + b"slow") * 2


def test_a_lost_client_abandons_what_waits() -> None:
    """Turns hear that their client is gone; an answer that comes later goes nowhere."""
    script = Script(parked=(PRODUCE,))
    broker = MemoryListener(script)
    client = broker.client()
    client.transport.write(framed(PRODUCE))
    broker.run()
    client.transport.loseConnection()
    broker.run()
    assert script.turns[0].abandoned
    script.turns[0].finish(framed(b"late"))
    broker.run()
    assert client.data == b"" and broker.factory.counts.total == 0


def test_everybody_who_asked_is_told_once_that_a_connection_is_lost() -> None:
    """A share session and a client that pushes metrics end with the same one."""
    broker = MemoryListener(Script())
    client = broker.client()
    told: list[tuple[str, object]] = []
    (connection,) = broker.factory.connections

    def first(lost: object) -> None:
        told.append(("first", lost))

    for on_lost in (first, lambda lost: told.append(("second", lost)), first):
        connection.tell_when_lost(on_lost)
    client.transport.loseConnection()
    broker.run()
    assert told == [("first", connection), ("second", connection)]


def test_silent_connections_are_closed() -> None:
    """`connections.max.idle.ms` closes who is silent, not who waits for an answer, and leaves no
    timer behind.
    """
    script = Script(parked=(FETCH,))
    broker = MemoryListener(script, idle_ms=10_000)
    silent, waiting = broker.client(), broker.client()
    waiting.transport.write(framed(FETCH))
    for _ in range(12):
        broker.clock.advance(1)
        broker.run()
    assert silent.lost and not waiting.lost
    script.turns[0].finish(framed(b""))
    for _ in range(12):
        broker.clock.advance(1)
        broker.run()
    assert waiting.lost
    assert not broker.clock.getDelayedCalls()


def test_a_request_of_a_peer_that_hung_up_does_not_keep_its_connection() -> None:
    """`connections.max.idle.ms` applies to a request that changes something and never ends, once
    nobody can hear its answer.
    """
    script = Script(parked=(PRODUCE,))
    broker = MemoryListener(script, idle_ms=10_000)
    gone, waiting = broker.client(), broker.client()
    for each in (gone, waiting):
        each.transport.write(framed(PRODUCE))
    broker.run()
    next(iter(broker.factory.connections)).peer_hung_up()
    for _ in range(13):
        broker.clock.advance(1)
        broker.run()
    assert gone.lost and not waiting.lost
    assert script.turns[0].abandoned


def test_a_round_that_comes_late_is_nobodys_silence() -> None:
    """This process stood still: what was sent to it meanwhile is read after the timer, and
    counts.
    """
    broker = MemoryListener(Script(), idle_ms=10_000)
    speaking, silent = broker.client(), broker.client()
    for _ in range(10):
        broker.clock.advance(1)
        broker.run()
    broker.clock.callLater(1.0, speaking.transport.write, framed(FETCH))
    broker.clock.advance(30)
    broker.run()
    assert not speaking.lost and not silent.lost
    broker.clock.advance(1)
    broker.run()
    assert silent.lost and not speaking.lost


def test_connection_limits() -> None:
    """The connection above the limit is refused; a place that becomes free is given again."""
    broker = MemoryListener(Script(), maximum=2)
    first = broker.client()
    broker.client()
    assert isinstance(broker.client(), Failure)
    first.transport.loseConnection()
    broker.run()
    assert not isinstance(broker.client(), Failure)
    broker = MemoryListener(Script(), per_host=1)
    broker.client()
    assert isinstance(broker.client(), Failure)


def test_an_address_may_have_a_limit_of_its_own() -> None:
    """Others have the common one; a wrong change is one line and changes nothing."""
    name = "max.connections.per.ip.overrides"
    counts = ConnectionCounts(100, 100)
    counts.settings_changed(
        BrokerConfig({"max.connections.per.ip": "1", name: "10.0.0.1:2, [0:0::1]:0"})
    )
    for host, most in (("10.0.0.1", 2), ("10.0.0.2", 1), ("::1", 0)):
        for _ in range(most):
            assert not counts.limit_reached(host)
            counts.add(host)
        assert counts.limit_reached(host) == "max.connections.per.ip is reached"
    with capturedLogs() as events:
        counts.settings_changed(BrokerConfig({name: "10.0.0.1:x"}))
    assert [formatEvent(each) for each in events] == [
        f"setting {name}='10.0.0.1:x' is refused: it takes a list of ADDRESS:COUNT; "
        "the limits of before stay"
    ]
    assert counts.limit_reached("10.0.0.1") and not counts.limit_reached("10.0.0.2")


def test_a_storm_of_refused_connections_is_a_line_a_minute() -> None:
    """It names the limit, the last address and how many; each limit has its own."""
    counts = ConnectionCounts(3, 2, lambda: 3)
    with capturedLogs() as events:
        counts.add("a")
        counts.add("a")
        for second in range(50):
            assert counts.limit_reached("a") is not None
            counts.refused("a", counts.limit_reached("a") or "", second)
        counts.add("b")
        for second in range(50, 130):
            counts.refused("c", counts.limit_reached("c") or "", second)
        counts.refused("a", "max.connections.per.ip is reached", 130)
    assert [formatEvent(each) for each in events] == [
        "refused 1 connection(s), the last one from a: max.connections.per.ip is reached "
        "(2 are open, 2 from there)",
        "refused 1 connection(s), the last one from c: max.connections is reached "
        "(3 are open, 0 from there)",
        "refused 60 connection(s), the last one from c: max.connections is reached "
        "(3 are open, 0 from there)",
        "refused 50 connection(s), the last one from a: max.connections.per.ip is reached "
        "(3 are open, 2 from there)",
    ]


def test_a_refused_connection_is_logged() -> None:
    """By the listener that closed it."""
    broker = MemoryListener(Script(), maximum=1)
    with capturedLogs() as events:
        for _ in range(3):
            broker.client()
    lines = [formatEvent(each) for each in events]
    assert len(lines) == 1 and "max.connections is reached" in str(lines[0])


def test_who_waits_for_memory_and_goes_leaves_nothing() -> None:
    """Else whoever comes and goes while others have the memory fills it with what was read."""
    broker = MemoryListener(Script(), request_bytes=50_000)
    holder = broker.client()
    holder.transport.write((60_000).to_bytes(4, "big") + bytes(50_000))
    broker.run()
    for _ in range(3):
        client = broker.client()
        client.transport.write((90_000).to_bytes(4, "big") + bytes(40_000))
        broker.run()
        assert len(broker.factory.request_bytes.waiting) == 1
        client.transport.loseConnection()
        broker.run()
        assert not broker.factory.request_bytes.waiting
    assert broker.factory.request_bytes.used == 60_000


def test_long_requests_are_bounded_over_all_connections() -> None:
    """`queued.max.request.bytes`: the third long request waits until one of those before it is
    answered or gone; short ones come through.
    """
    script = Script(parked=(METADATA,))
    broker = MemoryListener(script, request_bytes=150_000)
    budget = broker.factory.request_bytes
    clients = [broker.client() for _ in range(5)]
    for each in clients[:4]:
        whole = framed(METADATA + bytes(99_998))
        for start in range(0, len(whole), 40_000):
            each.transport.write(whole[start : start + 40_000])
    clients[4].transport.write(framed(FETCH))
    broker.run()
    assert len(script.turns) == 2 and budget.used == 200_000 and len(budget.waiting) == 2
    assert clients[4].data == framed(FETCH)
    script.turns[0].finish(framed(b""))
    broker.run()
    assert len(script.turns) == 3 and budget.used == 200_000
    script.turns[1].connection.transport.abortConnection()
    broker.run()
    assert len(script.turns) == 4 and not budget.waiting
    for turn in script.turns[2:]:
        turn.finish(framed(b""))
    broker.run()
    assert budget.used == 0


def test_what_waits_for_replicas_has_given_its_memory_back() -> None:
    """A Produce that is in the log; one that waits before its append has its bytes still."""
    for appended in (True, False):
        script = Script(parked=(PRODUCE,), can_follow=appended)
        broker = MemoryListener(script, request_bytes=150_000)
        client, whole = broker.client(), framed(PRODUCE + bytes(99_998))
        for start in range(0, len(whole), 40_000):
            client.transport.write(whole[start : start + 40_000])
        broker.run()
        assert len(script.turns) == 1
        assert broker.factory.request_bytes.used == (0 if appended else 100_000)
        script.turns[0].finish(framed(b""))
        broker.run()
        assert broker.factory.request_bytes.used == 0


def test_a_throttled_client_keeps_no_buffer() -> None:
    """Of the long request for which it waits now: nothing else of it is read for a while."""
    script = Script()
    broker = MemoryListener(script, request_bytes=150_000)
    seen: list[Any] = []

    def dispatch(connection: Any, frame: Any) -> bytes:
        seen.append(connection)
        connection.throttle(1000)
        return framed(b"")

    broker.factory.dispatch = dispatch
    client, whole = broker.client(), framed(METADATA + bytes(99_998))
    for start in range(0, len(whole), 40_000):
        client.transport.write(whole[start : start + 40_000])
    broker.run()
    assert client.data == framed(b"") and seen[0].throttled
    assert seen[0].frames._used is None


def test_two_that_announce_much_keep_nobody_waiting() -> None:
    """What is announced is not booked: a hundred megabytes of which little has come are little."""
    script = Script()
    broker = MemoryListener(script, frame_limit=100 << 20, request_bytes=128 << 20)
    for _ in range(2):
        broker.client().transport.write((100 << 20).to_bytes(4, "big") + b"drip")
    client, whole = broker.client(), framed(FETCH + bytes(100_000))
    for start in range(0, len(whole), 40_000):
        client.transport.write(whole[start : start + 40_000])
    broker.run()
    assert len(script.started) == 1 and broker.factory.request_bytes.used <= 16


def test_a_long_request_that_stops_midway_gives_its_memory_up() -> None:
    """When others have waited for a second; who waited goes on, and a partial frame that goes is
    given back.
    """
    script = Script()
    broker = MemoryListener(script, request_bytes=50_000)
    stalled, waiting = broker.client(), broker.client()
    stalled.transport.write(framed(FETCH + bytes(90_000))[:60_000])
    broker.run()
    whole = framed(FETCH + bytes(60_000))
    with capturedLogs() as logs:
        for start in range(0, len(whole), 40_000):
            waiting.transport.write(whole[start : start + 40_000])
        broker.run()
        assert not script.started and broker.factory.request_bytes.used == 90_002
        broker.clock.advance(1)
        broker.run()
    assert stalled.lost and not waiting.lost
    assert len(script.started) == 1 and broker.factory.request_bytes.used == 0
    (line,) = [formatEvent(event) for event in logs]
    assert "so slowly that others wait for its memory" in line


def second(broker: MemoryListener, *drips: tuple[Far, bytes]) -> None:
    for client, data in drips:
        if not client.lost:
            client.transport.write(data)
    broker.run()
    broker.clock.advance(1)
    broker.run()


def test_a_request_that_drips_is_closed_and_a_slow_one_goes_on() -> None:
    """Bytes that drip are no traffic; a request of `LEAST_RATE` may take as long as it needs, and
    whole requests may come as rarely as before.
    """
    script = Script()
    broker = MemoryListener(script, idle_ms=10_000)
    dripping, short, slow, rare = (broker.client() for _ in range(4))
    for each in (dripping, slow):
        each.transport.write(framed(FETCH + bytes(LEAST_RATE * 30))[:100])
    short.transport.write(b"\0\0")
    with capturedLogs() as logs:
        for number in range(29):
            drips = [(dripping, bytes(LEAST_RATE - 1)), (slow, bytes(LEAST_RATE))]
            if number < 13:
                drips.append((short, b"\0" if number == 5 else b""))
            if number % 9 == 8:
                drips.append((rare, framed(FETCH)))
            second(broker, *drips)
            assert dripping.lost == (number >= 10), number
    assert short.lost and not slow.lost and not rare.lost
    (line,) = [formatEvent(event) for event in logs]
    assert "client=127.0.0.1" in line and f"less than {LEAST_RATE} bytes a second" in line
    second(broker, (slow, bytes(LEAST_RATE - 94)))
    assert len(script.started) == 4 and len(script.started[-1]) == LEAST_RATE * 30 + 2
    assert not slow.lost


def test_lines_of_broken_connections_are_bounded() -> None:
    """Three a minute for an address and a reason, then one that counts; an address that makes up
    reasons hides no other.
    """
    broker = MemoryListener(Script(), idle_ms=0)
    with capturedLogs() as logs:
        for number in range(200):
            for data in (framed(b"garbage"), (2**31 - 1 - number % 50).to_bytes(4, "big")):
                client = broker.client()
                client.transport.write(data)
                broker.run()
                assert client.lost
    texts = [formatEvent(event) for event in logs]
    assert sum("reason=garbage" in text for text in texts) == 3
    assert 3 < len(texts) < 70
    assert all(
        "closing the connection listener=PLAINTEXT client=127.0.0.1" in each for each in texts
    )
    with capturedLogs() as logs:
        broker.clock.advance(60)
    more = [formatEvent(event) for event in logs]
    assert 2 <= len(more) <= 21
    assert any("more in that minute" in each and each.endswith("count=197") for each in more)
    broker.factory.close_all()
    assert not broker.clock.getDelayedCalls()


def test_shares_of_descriptors() -> None:
    """Clients, the controller, logs and all else share them; segments beyond what logs may hold
    are taken from the clients, at once.
    """
    shares = DescriptorShares(256)
    held = [shares.files]
    assert (shares.controller, shares.files, shares.clients(85)) == (32, 85, 256 - 64 - 32 - 85)
    counts = ConnectionCounts(1000, 1000, lambda: shares.clients(held[0]))
    for _ in range(75):
        assert not counts.limit_reached("h")
        counts.add("h")
    assert counts.limit_reached("h")
    counts.remove("h")
    assert not counts.limit_reached("h")
    held[0] += 1
    assert counts.limit_reached("h")
    held[0] += 10_000
    assert shares.clients(held[0]) == 1 and DescriptorShares(1 << 20).clients(0) > 900_000


class Sliced:
    """Answers with a stretch of a file in memory."""

    def __init__(self, size: int) -> None:
        self.content = bytes(n * 7 % 251 for n in range(size))
        self.segment: Any = None

    def attach(self, broker: MemoryListener) -> None:
        self.segment = SegmentFile(OpenFiles(broker.files), "/log")
        self.segment.create().write_at(0, [self.content])

    def __call__(self, connection: Any, frame: bytes) -> Any:
        part = FileSlice(self.segment, 10, len(self.content) - 10)
        return [(len(part) + 1).to_bytes(4, "big") + b"h", part]


def sliced_listener(size: int, idle_ms: int = 0) -> tuple[Sliced, MemoryListener]:
    script = Sliced(size)
    broker = MemoryListener(script, idle_ms=idle_ms)
    script.attach(broker)
    return script, broker


def test_slices_are_loaded_as_the_client_reads_and_released_once() -> None:
    """An answer with a slice of 1 MiB waits as a slice; its file is referenced until the last
    byte is out, not longer.
    """
    script, broker = sliced_listener(1 << 20)
    client = broker.client()
    client.transport.pauseProducing()
    client.transport.write(framed(FETCH))
    broker.run()
    assert script.segment.references == 1
    client.transport.resumeProducing()
    broker.run()
    assert client.data == (len(script.content) - 9).to_bytes(4, "big") + b"h" + script.content[10:]
    assert script.segment.references == 0


def test_a_slow_reader_of_a_long_answer_is_not_idle() -> None:
    """It takes longer than `connections.max.idle.ms`, and goes on; who stops reading is closed."""
    script, broker = sliced_listener(4 << 20, idle_ms=10_000)
    reading, stopped = broker.client(), broker.client()
    for each in (reading, stopped):
        each.transport.pauseProducing()
        each.transport.write(framed(FETCH))
    broker.run()
    for _ in range(50):
        reading.transport.resumeProducing()
        reading.transport.pauseProducing()
        broker.run()
        for _ in range(3):
            broker.clock.advance(1)
            broker.run()
        if len(reading.data) == len(script.content) - 5:
            break
    assert broker.clock.seconds() > 30 and stopped.lost
    assert len(reading.data) == len(script.content) - 5
    assert script.segment.references == 0


def test_a_slice_of_a_truncated_file_closes_its_connection() -> None:
    """Truncation between the answer and its sending never sends other bytes; the reference is
    given back.
    """
    script, broker = sliced_listener(1 << 20)
    client = broker.client()
    client.transport.pauseProducing()
    client.transport.write(framed(FETCH))
    broker.run()
    script.segment.truncate(100)
    client.transport.resumeProducing()
    broker.run()
    assert client.lost
    assert script.segment.references == 0


def test_a_lost_client_gives_its_slices_back() -> None:
    """No reference stays behind."""
    script, broker = sliced_listener(1 << 20)
    client = broker.client()
    client.transport.pauseProducing()
    client.transport.write(framed(FETCH))
    broker.run()
    client.transport.abortConnection()
    broker.run()
    assert script.segment.references == 0


@pytest.mark.parametrize("text", ["a\nb", "a\r\x1b[31mb", "x" * 10_000])
def test_names_never_forge_log_lines(text: str) -> None:
    """What comes from outside is one printable line, bounded."""
    from twisted_broker.net.connection import one_line

    line = one_line(text)
    assert line.isprintable() and len(line) <= 2000


# quotas: a client that waits


class Throttles(Script):
    """Throttles for the seconds that a frame's last byte says, and answers at once."""

    def __call__(self, connection: Any, frame: bytes) -> Any:
        if frame[-1:] != b"\0":
            connection.throttle(frame[-1] * 1000)
        return super().__call__(connection, frame)


def test_a_client_over_its_quota_is_answered_at_once_and_served_after_its_wait() -> None:
    """KIP-219."""
    script = Throttles()
    broker = MemoryListener(script)
    client, other = broker.client(), broker.client()
    client.transport.write(framed(FETCH + b"\2") + framed(FETCH + b"\0"))
    broker.run()
    assert client.data == framed(FETCH + b"\2")
    client.transport.write(framed(PRODUCE + b"\0"))
    other.transport.write(framed(FETCH + b"\0"))
    broker.clock.advance(1.9)
    broker.run()
    assert client.data == framed(FETCH + b"\2") and other.data == framed(FETCH + b"\0")
    broker.clock.advance(0.2)
    broker.run()
    assert script.started[-2:] == [FETCH + b"\0", PRODUCE + b"\0"]
    assert client.data.endswith(framed(FETCH + b"\0") + framed(PRODUCE + b"\0"))


def test_the_longest_wait_counts() -> None:
    """Produces that were started together throttle one after the other."""
    script = Script(parked=(PRODUCE,))
    broker = MemoryListener(script)
    client = broker.client()
    client.transport.write(framed(PRODUCE) * 3 + framed(FETCH))
    broker.run()
    for turn, wait_ms in zip(script.turns, (3000, 5000, 1000), strict=True):
        turn.connection.throttle(wait_ms)
        turn.finish(framed(b"p"))
    broker.run()
    assert client.data == framed(b"p") * 3  # answers leave all the same
    broker.clock.advance(4.9)
    broker.run()
    assert FETCH not in script.started
    broker.clock.advance(0.2)
    broker.run()
    assert script.started[-1] == FETCH
    assert not broker.clock.getDelayedCalls()


def test_a_throttled_client_that_goes_leaves_no_timer() -> None:
    broker = MemoryListener(Throttles())
    client = broker.client()
    client.transport.write(framed(FETCH + b"\t"))
    broker.run()
    (connection,) = broker.factory.connections
    connection.close()
    broker.run()
    connection.throttle(5)
    assert client.lost and not broker.clock.getDelayedCalls()


def test_a_client_that_waits_for_its_quota_is_not_idle() -> None:
    """Its wait may be longer than `connections.max.idle.ms`."""
    broker = MemoryListener(Throttles(), idle_ms=10_000)
    client = broker.client()
    client.transport.write(framed(FETCH + b"\x1e"))
    for _ in range(25):
        broker.clock.advance(1)
        broker.run()
    assert not client.lost
    for _ in range(20):
        broker.clock.advance(1)
        broker.run()
    assert client.lost


# rates of new connections


def test_a_listener_may_have_a_limit_of_its_own() -> None:
    counts = ConnectionCounts(100, 100, listeners=["A", "B"])
    counts.settings_changed(
        BrokerConfig({"max.connections": "5", "listener.name.a.max.connections": "1"})
    )
    counts.add("h", "A")
    assert counts.limit_reached("h", "A") == "max.connections of the listener is reached"
    assert counts.limit_reached("h", "B") is None
    counts.remove("h", "A")
    assert counts.limit_reached("h", "A") is None


def test_a_connection_above_its_addresss_rate_is_held_and_closed_later() -> None:
    """What it sends is not read; it is in no count, and its listener does not wait for it."""
    script = Script()
    broker = MemoryListener(script)
    broker.factory.counts.rates.set_ip_rate("127.0.0.1", 0.1)
    first = broker.client()
    with capturedLogs() as events:
        held = broker.client()
    held.transport.write(framed(FETCH))
    first.transport.write(framed(FETCH + b"1"))
    broker.run()
    assert script.started == [FETCH + b"1"]
    counts = broker.factory.counts
    assert (counts.total, counts.held) == (1, 1) and broker.factory.accept_pause() == 0
    assert "connection_creation_rate" in str(formatEvent(events[0]))
    broker.clock.advance(1.01)
    broker.run()
    assert held.lost and not first.lost and counts.held == 0 and not broker.factory.held


def test_held_connections_are_bounded_and_go_with_the_listener(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_limits, "_MOST_HELD", 2)
    broker = MemoryListener(Script())
    broker.factory.counts.rates.set_ip_rate(None, 0.1)
    found = [broker.client() for _ in range(4)]
    assert [isinstance(each, Failure) for each in found] == [False, False, False, True]
    broker.factory.close_all()
    broker.run()
    assert broker.factory.counts.held == 0 and not broker.clock.getDelayedCalls()


def test_above_its_rate_a_listener_says_for_how_long_it_accepts_none() -> None:
    broker = MemoryListener(Script())
    counts = broker.factory.counts
    counts.settings_changed(BrokerConfig({"max.connection.creation.rate": "1"}))
    waits = []
    for _ in range(12):
        broker.client()
        waits.append(broker.factory.accept_pause())
    assert waits[:10] == [0] * 10 and waits[10] == waits[11] == 1
    assert broker.factory.accept_pause() == 0
