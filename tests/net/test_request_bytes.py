"""What `net/request_bytes.py` promises."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.task import Clock

from twisted_broker.net.request_bytes import Booking, RequestBytes

MIB = 1 << 20
LIMIT = 16 * MIB


class Client:
    """A request that comes `pace` bytes a second, or stops; growing as a frame does."""

    def __init__(self, pool: RequestBytes, size: int, pace: int = 0) -> None:
        self.booking = Booking(pool, size, self)
        self.arrived, self.pace = 0, pace
        self.ended = self.throttled = self.waits = self.done = False

    def bytes_arrived(self) -> int | None:
        return None if self.throttled else self.arrived

    def room_given(self) -> None:
        self.waits = False

    def too_slow(self) -> None:
        self.ended = True
        self.booking.release()

    def comes(self, count: int) -> None:
        """Until it waits, or all of it is here."""
        while count > 0 and not self.waits and not self.ended and not self.done:
            booking = self.booking
            room = booking.held - self.arrived
            if not room:
                more = min(booking.size - self.arrived, max(self.arrived, 65_536), MIB)
                self.waits = not booking.take(more)
                continue
            taken = min(count, room)
            self.arrived += taken
            count -= taken
            if self.arrived == booking.size:
                self.done = True
                booking.arrived()


class Clients:
    def __init__(self, limit: int = LIMIT) -> None:
        self.clock = Clock()
        self.pool = RequestBytes(limit, self.clock)
        self.clients: list[Client] = []

    def client(self, size: int, first: int = 0, pace: int = 0) -> Client:
        made = Client(self.pool, size, pace)
        self.clients.append(made)
        made.comes(first)
        return made

    def seconds(self, count: int) -> None:
        for _ in range(count * 10):
            for each in self.clients:
                each.comes(each.pace // 10)
            self.clock.advance(0.1)


def test_what_is_announced_books_nothing() -> None:
    clients = Clients()
    for _ in range(1000):
        clients.client(100 * MIB, 4)
    assert clients.pool.used <= 1000 * 65_536 // 4 * 4
    clients = Clients()
    assert clients.client(100 * MIB).booking.held == 0 == clients.pool.used


def test_a_drip_makes_room_within_two_seconds() -> None:
    """Sixteen that have filled the memory, and drip or wait for more: some end, not all."""
    clients = Clients()
    drips = [clients.client(100 * MIB, MIB, 110_000) for _ in range(16)]
    clients.seconds(1)
    assert clients.pool.used >= LIMIT and any(each.waits for each in drips)
    honest = clients.client(100_000, 100_000, 1_000_000)
    assert honest.waits
    clients.seconds(2)
    assert honest.done and 1 <= sum(each.ended for each in drips) <= 9


def test_the_least_progress_goes_first() -> None:
    """In shares of the lengths: a short one on a slow line is nearer to its end than a long one
    that brings as much; who would be done within ten seconds stays.
    """
    clients = Clients(64 * MIB)
    slow = clients.client(200_000, 50_000, 15_000)
    steady = clients.client(100 * MIB, 8 * MIB, 5 * MIB)
    hog = clients.client(100 * MIB, 46 * MIB, 110_000)
    quick = clients.client(3 * MIB, MIB // 2, 500_000)
    clients.seconds(2)
    others = [clients.client(100_000, 100_000, 1_000_000) for _ in range(2)]
    assert all(each.waits for each in others)
    clients.seconds(2)
    assert hog.ended and all(each.done for each in others)
    assert not slow.ended and not steady.ended and not quick.ended


def test_requests_that_are_served_make_nobody_end() -> None:
    """They hold more than half: what comes slowly is not what the others wait for."""
    clients = Clients()
    served = [clients.client(MIB, MIB) for _ in range(12)]
    slow = clients.client(100 * MIB, 4 * MIB, 1000)
    waiting = clients.client(100_000, 100_000, 1_000_000)
    clients.seconds(5)
    assert all(each.done for each in served) and waiting.waits and not slow.ended
    for each in served[:2]:
        each.booking.release()
    clients.seconds(1)
    assert waiting.done


def test_who_is_throttled_is_not_slow() -> None:
    clients = Clients()
    throttled, drip = (clients.client(100 * MIB, 8 * MIB) for _ in range(2))
    throttled.throttled = True
    waiting = clients.client(100_000, 100_000, 1_000_000)
    clients.seconds(3)
    assert waiting.done and drip.ended and not throttled.ended


def test_a_check_that_comes_late_ends_nobody() -> None:
    """This process was stopped: what was sent meanwhile is read first."""
    clients = Clients()
    coming = clients.client(100 * MIB, LIMIT)
    waiting = clients.client(100_000, 100_000, 1_000_000)
    clients.clock.advance(60)
    assert not coming.ended
    clients.clock.advance(1)
    clients.seconds(1)
    assert coming.ended and waiting.done


def test_memory_is_given_in_the_order_of_asking() -> None:
    clients = Clients()
    first = clients.client(LIMIT, LIMIT)
    waiting = [clients.client(100_000, 100_000) for _ in range(3)]
    waiting[1].booking.release()  # it went
    clients.pool.limit = 1
    first.booking.release()
    assert [each.waits for each in waiting] == [False, True, True]
    waiting[0].booking.release()
    assert not waiting[2].waits


def test_one_that_has_begun_exceeds_the_limit_until_it_is_answered() -> None:
    """Else those that are half here would wait for each other for ever."""
    clients = Clients()
    halves = [clients.client(12 * MIB, 8 * MIB) for _ in range(2)]
    for each in halves:
        each.comes(12 * MIB)
    assert [each.done for each in halves] == [True, False]
    assert clients.pool.used <= LIMIT + 12 * MIB
    third = clients.client(100_000, 10_000)
    assert third.waits and halves[1].waits
    halves[0].booking.release()
    assert not halves[1].waits
    halves[1].comes(12 * MIB)
    assert halves[1].done


actions = st.lists(
    st.tuples(st.sampled_from(["new", "more", "answer", "go", "second"]), st.integers(0, 7)),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(actions)
def test_nothing_leaks_and_nobody_waits_for_ever(steps: list[tuple[str, int]]) -> None:
    """Whatever comes in whatever order: what is held is what the requests hold, at most one frame
    beyond the limit; and when all that come go on, all of them end.
    """
    clients = Clients(4 * MIB)
    longest = 3 * MIB
    live: list[Client] = []
    for what, number in steps:
        if what == "new":
            live.append(clients.client(longest - number * 300_000, number * 200_000))
        elif what == "second":
            clients.clock.advance(1.0)
        elif live:
            one = live[number % len(live)]
            if what == "more":
                one.comes(700_000)
            elif what == "go" or one.done:
                one.booking.release()
                live.remove(one)
        live = [each for each in live if not each.ended]
        assert clients.pool.used == sum(each.booking.held for each in live)
        assert clients.pool.used <= 4 * MIB + longest + MIB
    for _ in range(200):
        for each in [*live]:
            each.comes(700_000)
            if each.done or each.ended:
                each.booking.release()
                live.remove(each)
        clients.clock.advance(0.1)
    assert not live and clients.pool.used == 0 and not clients.pool.waiting
