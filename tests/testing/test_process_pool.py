"""Work in processes: an item that fails costs itself only."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from itertools import islice

import pytest

from twisted_broker.simulation.process_pool import Died, run_all

# Forks: in a process that has run all unit tests a lock may be held by another thread.
pytestmark = pytest.mark.clients


def results_of(items, work, jobs=2, limit=30.0):
    with closing(run_all(items, work, jobs, limit)) as found:
        return dict(each for each in found if each is not None)


def test_each_item_has_its_result() -> None:
    assert results_of(range(20), lambda item: item * item, jobs=3) == {n: n * n for n in range(20)}
    assert results_of([], lambda item: item) == {}


def test_an_item_that_raises_or_ends_its_process_costs_itself_only() -> None:
    def work(item: int) -> int:
        if item == 2:
            raise ValueError("two")
        if item == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return item

    found = results_of(range(6), work)
    assert isinstance(found[2], Died) and "ValueError: two" in found[2].why
    assert found[3] == Died("the process ended with status -9")
    assert [found[n] for n in (0, 1, 4, 5)] == [0, 1, 4, 5]


def test_an_item_that_takes_too_long_is_ended() -> None:
    found = results_of(range(3), lambda item: time.sleep(600) if item == 1 else item, 1, 0.5)
    assert found == {0: 0, 1: Died("not finished after 0 s"), 2: 2}


def test_each_item_in_a_process_of_its_own() -> None:
    """What an item leaves behind in its process meets no other."""
    left: list[int] = []

    def work(item: int) -> list[int]:
        left.append(item)
        return left

    with closing(run_all(range(4), work, 2, 30.0, each_its_own=True)) as found:
        assert sorted(each[1] for each in found if each is not None) == [[0], [1], [2], [3]]


def test_nothing_goes_on_when_the_caller_leaves() -> None:
    """Half of the results are taken; then no process is left, whatever it was in."""

    def work(item: int) -> int:
        if item > 1:
            time.sleep(600)
        return os.getpid()

    found = run_all(range(4), work, 2, 600.0)
    pids = [each[1] for each in islice(filter(None, found), 2)]
    found.close()
    assert [pid for pid in pids if is_there(pid)] == []


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_nothing_stays_of_a_caller_that_is_killed() -> None:
    """One process waits for an item then, the other is at work. Both hold the end of the pipe that
    is read here.
    """
    program = """
import time
from twisted_broker.simulation.process_pool import run_all
def items():
    yield 0
    yield 2
    print("the first waits", flush=True)
    time.sleep(600)
for _ in run_all(items(), time.sleep, 2, 600.0): pass
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as caller:
        try:
            assert caller.stdout is not None and caller.stdout.readline() == b"the first waits\n"
        finally:
            caller.kill()
        assert caller.communicate(timeout=60) == (b"", None)
