"""The event loop of a simulated program: asyncio's interface on the clock of a machine.

Owns `SimulatedLoop`.

1. A turn runs what was ready when it began, in order; timers are the machine's. Nothing of a
   program runs once its machine is off: its tasks are kept, so that no `finally` of it runs.
2. Tasks and futures hash by a count: asyncio and its users iterate over sets of them.
3. Connections are the network's in memory (`connections.py`). An executor runs its call in a turn.
4. What a loop offers beyond that is refused (`controlled.py`).

Source: `asyncio.AbstractEventLoop`. Not here: time and chance beside the loop (`controlled.py`).
"""

from __future__ import annotations

import asyncio
import socket
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from itertools import count
from typing import TYPE_CHECKING, Any, NoReturn

from twisted_broker.simulation.clock import NodeClock, SimCall
from twisted_broker.testing.live_network import LiveNetwork
from twisted_broker.testing.simulated.connections import connect
from twisted_broker.testing.simulated.controlled import Controlled

# A wait of less than this in time that stands still would never end (aiokafka asks for 1e-16 s).
_LEAST_SECONDS = 1e-6
_numbers = count()


class _Future(asyncio.Future):  # type: ignore[type-arg]
    def __init__(self, *, loop: Any) -> None:
        super().__init__(loop=loop)
        self._number = next(_numbers)

    def __hash__(self) -> int:
        return self._number


class _Task(asyncio.Task):  # type: ignore[type-arg]
    def __init__(self, work: Any, **more: Any) -> None:
        self._number = next(_numbers)
        super().__init__(work, **more)

    def __hash__(self) -> int:
        return self._number


class _Timer(asyncio.TimerHandle):
    """`call`: the machine's timer."""

    call: SimCall


if TYPE_CHECKING:
    # What asyncio's own declaration says of each method is more than a simulation keeps.
    _Loop: Any = object
else:
    _Loop = asyncio.AbstractEventLoop


class SimulatedLoop(_Loop):
    """`note(text)`: what a callback raised, where nobody else hears of it."""

    def __init__(
        self,
        clock: NodeClock,
        network: LiveNetwork,
        controlled: Controlled,
        note: Callable[[str], None],
    ) -> None:
        self.clock, self.network, self.controlled = clock, network, controlled
        self.on_exit: Callable[[SystemExit], None] = lambda reason: None
        self._note = note
        self._host = network.switch_on(clock)
        self._ready: deque[asyncio.Handle] = deque()
        self._is_due = self._is_closed = False
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._handler: Callable[[Any, dict[str, Any]], object] | None = None
        self._signals: set[int] = set()  # that are handled; none ever comes

    # turns

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        self._be_due()
        return handle

    call_soon_threadsafe = call_soon

    def _be_due(self) -> None:
        if not self._is_due:
            self._is_due = True
            self.clock.callLater(0, self._turn)

    def _turn(self) -> None:
        self._is_due = False
        self.controlled.show_time()
        events._set_running_loop(self)
        try:
            for _ in range(len(self._ready)):
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
        except SystemExit as reason:
            self.on_exit(reason)
        finally:
            events._set_running_loop(None)
        if self._ready:
            self._be_due()

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        delay = max(delay, _LEAST_SECONDS)
        handle = _Timer(self.time() + delay, callback, args, self, context)
        handle.call = self.clock.callLater(delay, self._due, handle)
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_later(when - self.time(), callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: _Timer) -> None:
        if handle.call.active():
            handle.call.cancel()

    def _due(self, handle: asyncio.Handle) -> None:
        self._ready.append(handle)
        self._be_due()

    def time(self) -> float:
        return self.clock.seconds()

    # tasks and futures

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(loop=self)

    def create_task(
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Any = None
    ) -> asyncio.Task[Any]:
        task = _Task(coro, loop=self, name=name, context=context)
        self._tasks[task] = None
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)

    def run_in_executor(
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """The call is made in a turn of the loop."""
        future = self.create_future()

        def run() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:
                future.set_exception(error)

        self.call_soon(run)
        return future

    # connections

    async def create_connection(
        self,
        protocol_factory: Callable[[], Any],
        host: str | None = None,
        port: int | None = None,
        *,
        ssl: Any = None,
        **more: Any,
    ) -> tuple[Any, Any]:
        if ssl is not None:
            self.controlled.refuse("TLS is not simulated: connect to a PLAINTEXT listener")
        return await connect(self, self._host, str(host), int(port or 0), protocol_factory)

    async def getaddrinfo(self, host: Any, port: Any, **more: Any) -> list[Any]:
        if host not in self.network.names:
            raise socket.gaierror(socket.EAI_NONAME, f"{host} is no machine of the simulation")
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port))]

    # what else a running loop is asked for

    def is_running(self) -> bool:
        return not self._is_closed

    def is_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        self._is_closed = True

    def get_task_factory(self) -> None:
        """There is none."""

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        """There is nothing to see."""

    def set_exception_handler(self, handler: Any) -> None:
        self._handler = handler

    def get_exception_handler(self) -> Any:
        return self._handler

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._note(f"{context['message']}: {error!r}" if error else context["message"])

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._handler is None:
            self.default_exception_handler(context)
        else:
            self._handler(self, context)

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:
        self._signals.add(sig)

    def remove_signal_handler(self, sig: int) -> bool:
        handled = sig in self._signals
        self._signals.discard(sig)
        return handled

    async def shutdown_asyncgens(self) -> None:
        """Those of a program end with it."""

    async def shutdown_default_executor(self, timeout: Any = None) -> None:
        """There is none."""


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refused(self: SimulatedLoop, *arguments: Any, **keywords: Any) -> NoReturn:
        self.controlled.refuse(f"loop.{name}() is not simulated")
        raise NotImplementedError(name)

    return refused


for _name in (
    "add_reader",
    "add_writer",
    "connect_accepted_socket",
    "connect_read_pipe",
    "connect_write_pipe",
    "create_datagram_endpoint",
    "create_server",
    "create_unix_connection",
    "create_unix_server",
    "run_forever",
    "run_until_complete",
    "set_task_factory",
    "sendfile",
    "sock_accept",
    "sock_connect",
    "sock_recv",
    "sock_sendall",
    "start_tls",
    "subprocess_exec",
    "subprocess_shell",
):
    setattr(SimulatedLoop, _name, _refusing(_name))
