"""Every port in one place: time, network, disk, randomness.

Owns the four ports through which the program reaches the world, and the `Runtime` that carries
them. Rings 0 and 1 know these types and nothing beneath them, so the very same code runs on a
reactor and in a deterministic simulation.

1. Time is two readings. `IClock.seconds()` is monotonic and drives every timer; `wall_ms()` stamps
   records and decides retention. A step of the wall clock moves no timer.
2. A file is read and written by position; nothing is durable before `sync`, and a created or
   renamed name is not durable before `sync_directory`.
3. Slow disk work goes through `IDiskWorker`; its results come back on the reactor's thread, in
   order of submission.
4. All randomness is one seeded generator (`random.Random` in production and in simulation).

Source: docs/ARCHITECTURE.md 3; Twisted's `IReactorTime`.
"""

from __future__ import annotations

from collections.abc import Callable, MutableSequence, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview


class TopicPartition(NamedTuple):
    """A partition's name; `str()` gives the name of its directory."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class IRandom(Protocol):
    """The part of `random.Random` that we use."""

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int: ...

    def getrandbits(self, k: int, /) -> int: ...

    def randbytes(self, n: int) -> bytes: ...

    def choice(self, seq: Sequence[T]) -> T: ...

    def shuffle(self, x: MutableSequence[Any]) -> None: ...


class IDelayedCall(Protocol):
    """A timer that was set; the part of Twisted's `IDelayedCall` that we use."""

    def cancel(self) -> None: ...

    def active(self) -> bool: ...

    def reset(self, seconds_from_now: float) -> None: ...


class IClock(Protocol):
    """Monotonic time and timers: Twisted's `IReactorTime`, met by the reactor and by
    `task.Clock`.
    """

    def seconds(self) -> float: ...

    def callLater(
        self, delay: float, call: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> IDelayedCall: ...


class IFile(Protocol):
    """One open file, read and written by position. Failures are `OSError`."""

    path: str

    def fileno(self) -> int:
        """The descriptor for `sendfile`, or -1 where there is none (memory, simulation)."""
        ...

    def size(self) -> int: ...

    def read_at(self, position: int, length: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the file."""
        ...

    def read_into(self, position: int, buffer: bytearray | memoryview) -> int:
        """Fills `buffer` from `position`; returns the bytes read."""
        ...

    def is_resident(self, position: int, length: int) -> bool:
        """Whether a read of these bytes waits for no disk, as far as that can be known cheaply:
        True where the system cannot say.
        """
        ...

    def read_resident(self, position: int, length: int) -> Buffer | None:
        """As `read_at`; None when that would wait for a disk."""
        ...

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        """Writes all buffers one after another; returns their total length.

        A short write is completed or raises.
        """
        ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None: ...

    def close(self) -> None: ...


class IFileSystem(Protocol):
    """The disk. Paths are absolute strings with `/`; listings are sorted."""

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> IFile:
        """Opens for reading and writing; `FileNotFoundError` unless it exists or `create`."""
        ...

    def exists(self, path: str) -> bool: ...

    def is_directory(self, path: str) -> bool: ...

    def is_file(self, path: str) -> bool:
        """Whether it is a regular file: to open a FIFO waits for whoever writes it."""
        ...

    def size(self, path: str) -> int: ...

    def modified_ms(self, path: str) -> int: ...

    def set_modified_ms(self, path: str, wall_ms: int) -> None: ...

    def listdir(self, path: str) -> list[str]: ...

    def make_directories(self, path: str) -> None: ...

    def rename(self, source: str, target: str) -> None:
        """Atomic; replaces an existing file."""
        ...

    def remove(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None: ...

    def sync_directory(self, path: str) -> None: ...

    def free_bytes(self, path: str) -> tuple[int, int]:
        """(total, usable) bytes of the volume that holds `path`."""
        ...

    def lock(self, path: str) -> Callable[[], None]:
        """Takes the advisory lock of the file at `path` and returns its release;
        `BlockingIOError` when it is held.
        """
        ...


class IDiskWorker(Protocol):
    """Runs slow disk calls away from the reactor, one after another, one worker per log
    directory.
    """

    def submit(
        self, job: Callable[[], T], done: Callable[[T | None, BaseException | None], None]
    ) -> None:
        """Runs `job`; later calls `done(result, None)` or `done(None, error)` on the reactor's
        thread. After `stop` the job is not run, and the error is `log.errors.WorkerStopped`.
        """
        ...

    def side_by_side(self, jobs: Sequence[Callable[[], object]]) -> None:
        """Within a job: runs all of these, at once or in turn, and raises the first error when
        all have ended.
        """
        ...

    def stop(self) -> None: ...


class ICleanerWorker(Protocol):
    """Runs rounds of the log cleaner away from the reactor, one after another."""

    def submit(
        self,
        plan: Any,
        bytes_per_second: float,
        done: Callable[[Any, BaseException | None], None],
    ) -> None:
        """Runs the round of this `CleaningPlan`; later calls `done(CleaningResult, None)` or
        `done(None, error)` on the reactor's thread.
        """
        ...

    def end(self) -> None:
        """Ends the round that was submitted last, if it still runs: an InterruptedError is reported
        for it.
        """
        ...

    def stop(self) -> None:
        """Ends a round that runs; nothing is reported for it."""
        ...


class INetwork(Protocol):
    """Listening and connecting, by Twisted's factories and protocols, and sending a stretch of a
    file.
    """

    def listen(self, host: str, port: int, factory: Any) -> Any:
        """A Deferred of an `IListeningPort`; `port` 0 picks a free one."""
        ...

    def connect(self, host: str, port: int, factory: Any, timeout: float) -> Any:
        """A Deferred of the connected protocol."""
        ...

    def send_slice(self, transport: Any, file: IFile, position: int, length: int) -> int:
        """Sends what the socket takes at once; returns the bytes sent (0: full).

        Only for a transport with an empty queue.
        """
        ...


class TurnNumbers(NamedTuple):
    """Of the reactor's turns since the start. `buckets`: (bound in seconds, slow turns of at most
    that), growing.
    """

    turns: int
    busy_seconds: float
    longest_seconds: float
    slow: int
    slow_seconds: float
    buckets: list[tuple[float, int]]


class Health(NamedTuple):
    """What a node says of itself. `fatal`: why it cannot go on; `not_ready`: why it does not serve;
    empty where it does. `offline_directories`: path and error of each log directory that failed.
    """

    node_id: int
    roles: tuple[str, ...]
    fatal: str
    not_ready: str
    offline_directories: tuple[tuple[str, str], ...] = ()


class Marks:
    """What this turn of the reactor works on: whoever begins a piece of work sets `what`.

    `reactor_watch.py` names it when the turn was slow; a store is all that it costs otherwise.
    """

    __slots__ = ("what",)

    def __init__(self) -> None:
        self.what: Any = None

    def numbers(self) -> TurnNumbers | None:
        """None where nobody watches."""
        return None


@dataclass(slots=True)
class Runtime:
    """The world as one broker sees it. `disk(directory)` makes the worker of a log directory."""

    clock: IClock
    wall_ms: Callable[[], int]
    network: INetwork
    files: IFileSystem
    disk: Callable[[str], IDiskWorker]
    random: IRandom
    marks: Marks = field(default_factory=Marks)
    cleaner: Callable[[], ICleanerWorker] | None = None
    """makes a worker that cleans logs; None: that is done on a disk worker, piece by piece"""
    key_files: IFileSystem | None = None
    """where key stores lie; None: in `files`"""

    def now_ms(self) -> int:
        """Monotonic milliseconds, for intervals and for time as an argument."""
        return int(self.clock.seconds() * 1000)
