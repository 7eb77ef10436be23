"""What the watch counts as a slow turn, how it names what ran, and what it says in a storm."""

from __future__ import annotations

import select
import time
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.task import LoopingCall
from twisted.logger import globalLogPublisher

from tests.memory_broker import MemoryBroker
from twisted_broker.api.dispatch import BoundRoute
from twisted_broker.periodic import PeriodicTask
from twisted_broker.reactor_watch import (
    BUCKETS_SECONDS,
    LINES_A_MINUTE,
    STARTING_SECONDS,
    ReactorWatch,
    ThreadUsage,
    WatchedClock,
    name_of,
)
from twisted_broker.status.metric_text import Exposition
from twisted_broker.status.metrics import reactor_turns
from twisted_broker.wire.messages.api_versions import ApiVersionsRequest


class Machine:
    """A reactor's poller, a clock and a processor, all by hand. `turn` is one turn's work."""

    def __init__(self, slow_ms: int = 50, started: bool = True) -> None:
        self.now, self.sleeps = 100.0, 0.0
        self.used, self.waited, self.collections = 7.0, 3.0, 20
        self.watch = ReactorWatch(
            slow_ms, lambda: self.now, lambda: (self.used, self.waited, self.collections)
        )
        self.reactor: Any = SimpleNamespace(_poller=SimpleNamespace(poll=self.wait))
        self.installed = self.watch.install(self.reactor)
        self.lines: list[str] = []
        self.poll()
        if started:
            self.watch.started()
            self.poll()

    def wait(self, *_: Any) -> list[str]:
        self.now += self.sleeps
        return ["events"]

    def poll(self) -> Any:
        return self.reactor._poller.poll(1, 2)

    def piece(self, what: Any, seconds: float, worked: float = 1.0, waited: float = 0.0) -> None:
        self.watch.run(partial(self.work, what, seconds, worked, waited))

    def work(self, what: Any, seconds: float, worked: float, waited: float) -> None:
        self.watch.what = what
        self.now += seconds
        self.used += seconds * worked
        self.waited += seconds * waited

    def __enter__(self) -> Machine:
        globalLogPublisher.addObserver(self._observe)
        return self

    def __exit__(self, *_: object) -> None:
        globalLogPublisher.removeObserver(self._observe)

    def _observe(self, event: dict[str, Any]) -> None:
        if event.get("log_namespace") == "replog.reactor":
            self.lines.append(event["log_format"].format(**event))


def test_a_turn_is_what_runs_between_two_polls() -> None:
    machine = Machine()
    for _ in range(3):
        assert machine.poll() == ["events"]
        machine.piece("a", 0.03)
        machine.piece("b", 0.01)
    assert machine.watch.slow_turns == 0  # 40 ms each
    machine.piece("c", 0.02)  # and 60 ms together
    machine.poll()
    assert (machine.watch.slow_turns, machine.watch.turns) == (1, 6)
    assert machine.watch.longest == pytest.approx(0.06)
    assert machine.watch.busy == pytest.approx(0.14)


def test_waiting_for_events_is_no_turn() -> None:
    machine = Machine()
    machine.sleeps = 9.0
    machine.poll()
    machine.poll()
    assert machine.watch.slow_turns == 0 and machine.watch.busy == 0


def test_the_longest_piece_is_named_and_what_the_processor_did() -> None:
    with Machine() as machine:
        machine.poll()
        machine.piece("short", 0.01)
        machine.piece("long", 0.2, worked=0.5, waited=0.25)
        machine.piece("last", 0.02)
        machine.collections += 2
        machine.poll()
    assert machine.lines == [
        "the reactor was busy for 230 ms with long (processor 130 ms, waited for it 50 ms, "
        "2 full collections)"
    ]
    assert machine.watch.longest_what == "long"


def test_many_small_pieces_are_named_by_the_last() -> None:
    with Machine() as machine:
        machine.poll()
        for number in range(20):
            machine.piece(f"n{number}", 0.005)
        machine.poll()
        machine.poll()
    assert [line.split(" (")[0] for line in machine.lines] == [
        "the reactor was busy for 100 ms with n19"
    ]


def test_the_work_of_turns_before_is_not_a_slow_turns() -> None:
    """Both readings are of some short turns ago."""
    with Machine() as machine:
        for _ in range(4):
            machine.poll()
            machine.piece("x", 0.001)
        machine.poll()
        machine.piece("a disk", 0.3, worked=0.0)
        machine.poll()
    assert machine.lines == [
        "the reactor was busy for 300 ms with a disk (processor 0 ms, waited for it 0 ms)"
    ]


def test_a_storm_is_a_few_lines_and_their_sum() -> None:
    with Machine() as machine:
        for _ in range(LINES_A_MINUTE + 25):
            machine.poll()
            machine.piece("x", 0.06)
        machine.poll()
        machine.now += 61
        machine.poll()
    slow = LINES_A_MINUTE + 25 + 1  # the 61 seconds are a turn, too
    assert machine.watch.slow_turns == slow
    assert len(machine.lines) == LINES_A_MINUTE + 2
    assert machine.lines[LINES_A_MINUTE] == (
        "in the minute since, the reactor was busy for more than 50 ms another 25 times, for at "
        "most 60 ms"
    )


def test_the_end_of_a_storm_is_said_without_another_slow_turn() -> None:
    with Machine() as machine:
        for _ in range(LINES_A_MINUTE + 5):
            machine.poll()
            machine.piece("x", 0.06)
        for _ in range(1600):
            machine.poll()
            machine.piece("y", 0.04)
    assert machine.lines[LINES_A_MINUTE:] == [
        "in the minute since, the reactor was busy for more than 50 ms another 5 times, for at "
        "most 60 ms"
    ]


def test_a_start_is_slow_only_when_it_is_very_slow() -> None:
    machine = Machine(started=False)
    for seconds in (STARTING_SECONDS - 0.1, STARTING_SECONDS + 0.1, 0.1):
        machine.poll()
        machine.piece("imports", seconds)
    machine.watch.started()  # in the turn in which they are done
    machine.poll()
    assert machine.watch.slow_turns == 1
    assert machine.watch.longest_what == "the start: imports"
    machine.piece("work", STARTING_SECONDS + 0.2)
    machine.poll()
    assert machine.watch.slow_turns == 2 and machine.watch.longest_what == "work"


def test_nothing_is_watched_without_a_limit_or_a_poller() -> None:
    assert not Machine(slow_ms=0).installed
    watch = ReactorWatch(50)
    assert not watch.install(SimpleNamespace()) and watch.numbers() is None
    assert Machine().watch.numbers() is not None


@pytest.mark.parametrize("poller", ["epoll", "poll"])
def test_a_real_reactors_timers_and_threads_are_seen(poller: str) -> None:
    if not hasattr(select, poller):
        pytest.skip(f"no {poller} here")
    module = import_module(f"twisted.internet.{poller}reactor")
    reactor: Any = (module.EPollReactor if poller == "epoll" else module.PollReactor)()
    watch = ReactorWatch(20)
    assert watch.install(reactor)
    watch.started()
    clock = WatchedClock(reactor, watch)

    def sleeps() -> None:
        time.sleep(0.03)

    reactor.iterate(0)
    reactor.iterate(0)
    clock.callLater(0, sleeps)
    until = time.monotonic() + 10
    while not watch.slow_turns and time.monotonic() < until:
        reactor.iterate(0.001)
    assert watch.longest_what.endswith("sleeps") and watch.longest >= 0.03


def test_usage_tells_work_from_sleep() -> None:
    usage = ThreadUsage()
    before = usage()
    time.sleep(0.05)
    slept = usage()
    until = time.thread_time() + 0.05
    while time.thread_time() < until:
        pass
    worked = usage()
    assert slept[0] - before[0] < 0.04 < worked[0] - slept[0]
    assert worked[1] >= slept[1] >= before[1] >= 0


def test_names() -> None:
    broker = MemoryBroker()
    task = PeriodicTask(broker.clock, lambda: None, "retention")
    loop = LoopingCall(task._run)
    assert name_of(loop) == name_of(partial(loop)) == name_of(task._run) == "retention"
    assert name_of("text") == "text"
    assert name_of(broker.stop) == "MemoryBroker.stop"
    assert name_of(None) == "something unmarked"
    assert "work" in name_of(Machine().work)

    def steps() -> Any:
        yield

    assert name_of(steps()).endswith("steps")


def test_a_request_is_marked_by_its_api() -> None:
    broker = MemoryBroker().start()
    broker.ask(ApiVersionsRequest(client_software_name="x", client_software_version="1"), 3)
    marked = broker.runtime.marks.what
    if isinstance(marked, BoundRoute):  # nothing else ran since
        assert name_of(marked) == "ApiVersions v3"
    broker.stop()


def test_the_numbers_are_in_the_metrics() -> None:
    machine = Machine()
    for seconds in (0.06, 0.15, 7.0):
        machine.poll()
        machine.piece("x", seconds)
    machine.poll()
    numbers = machine.watch.numbers()
    assert numbers is not None
    out = Exposition()
    reactor_turns(out, numbers)
    text = b"".join(out.text()).decode()
    assert "replog_reactor_turns_total 6\n" in text
    assert "replog_reactor_longest_turn_seconds 7.0" in text
    assert 'replog_reactor_slow_turn_seconds_bucket{le="0.1"} 1\n' in text
    assert f'replog_reactor_slow_turn_seconds_bucket{{le="{BUCKETS_SECONDS[-1]}"}} 2\n' in text
    assert 'replog_reactor_slow_turn_seconds_bucket{le="+Inf"} 3\n' in text
    assert "replog_reactor_slow_turn_seconds_count 3\n" in text
