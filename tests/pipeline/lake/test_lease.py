"""The writer's lease between hosts, on a store with conditional creation, in virtual time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from replog_pipeline.errors import PipelineError
from replog_pipeline.lake.lease import FOLDER, LEASE_SECONDS, LOOK_SECONDS, RENEW_SECONDS, Lease


class Store:
    """One table's objects, a clock, and what happens at its times."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.now = 0.0
        self.events: list[tuple[float, Callable[[], None]]] = []

    def names(self, folder: str = "") -> list[str]:
        return sorted(each.rpartition("/")[2] for each in self.objects if each.startswith(folder))

    def read(self, name: str) -> bytes:
        return self.objects[name]

    def create(self, name: str, content: bytes) -> bool:
        is_new = name not in self.objects
        self.objects.setdefault(name, content)
        return is_new

    def remove(self, name: str) -> None:
        self.objects.pop(name, None)

    def path(self, name: str = "") -> str:
        return "s3a://lake/t"

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        due = [each for each in self.events if each[0] <= self.now]
        self.events = [each for each in self.events if each[0] > self.now]
        for _, event in due:
            event()

    def lease(self, host: str) -> Lease:
        return Lease(self, host, lambda: self.now, self.sleep)


@pytest.fixture
def store() -> Store:
    return Store()


def test_a_writer_that_lives_refuses_another_host_and_its_end_lets_it_in(store: Store) -> None:
    one, other = store.lease("one"), store.lease("other")
    one.take()
    store.events = [(RENEW_SECONDS, one.renew)]
    with pytest.raises(PipelineError, match="another machine's archive writes to s3a://lake/t"):
        other.take()
    assert store.now <= RENEW_SECONDS + LOOK_SECONDS
    one.check()
    one.release()
    before = store.now
    other.take()
    assert store.now == before and len(store.names(FOLDER)) == 1


def test_a_writer_that_died_is_waited_out_and_learns_of_it_if_it_comes_back(store: Store) -> None:
    one, other = store.lease("one"), store.lease("other")
    one.take()
    other.take()
    assert store.now >= LEASE_SECONDS
    for _ in range(3):  # also after the number that it would create is gone again
        other.renew()
    with pytest.raises(PipelineError, match="held up so long"):
        one.check()
    one.renew()
    assert one.is_lost
    one.release()
    other.renew()
    other.check()


def test_the_same_host_does_not_wait(store: Store) -> None:
    """It has the lock of the host's file, so the holder is dead."""
    store.lease("one").take()
    store.lease("one").take()
    assert store.now == 0


def test_of_two_that_wait_one_takes_it(store: Store) -> None:
    store.lease("dead").take()
    one, other = store.lease("one"), store.lease("other")
    store.events = [(LEASE_SECONDS, one.take)]
    with pytest.raises(PipelineError, match="another machine"):
        other.take()
    one.check()


def test_a_writer_that_cannot_renew_stops(store: Store) -> None:
    one = store.lease("one")
    one.take()
    store.now += LEASE_SECONDS / 2 + 1
    with pytest.raises(PipelineError, match="start the archive again"):
        one.check()
