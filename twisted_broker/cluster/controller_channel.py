"""Requests to the active controller, whichever node that is.

Owns `ControllerChannel`: one connection to the leader that the observer names, created again when
the leader changes.

1. Versions are negotiated once per connection.
2. `send_until_answered` tries again, after a pause, when there is no leader, the connection is
   lost, or the other side is not the controller; until its deadline.
3. Each purpose has its own channel: a request that waits long must not delay heartbeats.
4. An error that no network causes is logged as a bug (`unexpected_errors`); the request is still
   tried again.
5. Connecting is given up after `_CONNECT_MS` and started again by the next try: after a network
   outage the kernel retries too seldom for a session of a few seconds.
6. While no leader is known nothing is sent, and what is in flight may be answered for `_LEFT_MS`:
   perhaps only the observer's connection was lost. Sent twice, a client's CreateTopics would be
   refused.

Source: Kafka's `NodeToControllerChannelManager`; KRAFT 3.1. Not here: who leads (`observer.py`).
"""

from __future__ import annotations

from typing import Any, Protocol

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import deferLater

from twisted_broker.cluster.unexpected_errors import UnexpectedErrors
from twisted_broker.interfaces import IDelayedCall, Runtime
from twisted_broker.net.client import BrokerConnection
from twisted_broker.net.connector import PLAIN, Connector
from twisted_broker.wire.errors import BrokerError, ErrorCode, error_of

# Well below the session timeout: a controller whose host is gone must not use it up.
_CONNECT_MS = 2000
_LEFT_MS = 2000
Address = tuple[str, int]


class ControllerNodeProvider(Protocol):
    """Knows the address of the active controller (None: not known now), and fires
    `leader_waiters` once when that changes.
    """

    leader_waiters: list[Deferred[None]]

    @property
    def leader_address(self) -> Address | None: ...


class RegisteredBroker(Protocol):
    """Knows this broker's epoch (-1: not registered)."""

    @property
    def broker_epoch(self) -> int: ...


DENIED_TO_NODE = (
    "the controller denies it to this broker: name the broker's principal in super.users of the "
    "controllers, or allow it ClusterAction on the cluster (and Alter, where it must ask for the "
    "cluster's id)"
)


def check_answer(code: int) -> None:
    """Raises BrokerError for an answer's error code, if it is one."""
    if code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        raise BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, DENIED_TO_NODE)
    if code:
        raise BrokerError(error_of(code))


def _fire(waiter: Deferred[None]) -> None:
    if not waiter.called:
        waiter.callback(None)


class ControllerChannel:
    """`client_id` names the purpose. Times in ms."""

    def __init__(
        self,
        runtime: Runtime,
        leader: ControllerNodeProvider,
        client_id: str,
        request_timeout_ms: int = 30_000,
        retry_ms: int = 50,
        connector: Connector = PLAIN,
    ) -> None:
        self._connector = connector
        self._runtime, self._leader, self._client_id = runtime, leader, client_id
        self._request_timeout_ms, self._retry_ms = request_timeout_ms, retry_ms
        self._connection: BrokerConnection | None = None
        self._left: BrokerConnection | None = None
        self._left_timer: IDelayedCall | None = None
        self._unexpected_errors = UnexpectedErrors(f"requests of {client_id} to the controller")
        self._closed = False

    async def send_until_answered(
        self, request: Any, version: int, timeout_ms: int | None = None
    ) -> Any:
        """The answer of the active controller; sent in the highest version known to both, `version`
        at most.

        Raises BrokerError(REQUEST_TIMED_OUT) at the deadline, UNSUPPORTED_VERSION at once. An error
        inside the answer, other than NOT_CONTROLLER for the whole of it, is the caller's.
        """
        deadline = self._runtime.now_ms() + (
            self._request_timeout_ms if timeout_ms is None else timeout_ms
        )
        while not self._closed:
            try:
                answer = await self.send_once(request, version)
                self._unexpected_errors.worked()
                return answer
            except CancelledError:
                raise
            except BrokerError as error:
                # Any other refusal is an answer.
                if error.code is not ErrorCode.NOT_CONTROLLER:
                    raise
            except Exception as error:
                self._unexpected_errors.failed(error)
            if self._runtime.now_ms() + self._retry_ms > deadline:
                break
            await self._pause_or_leader()
        raise BrokerError(ErrorCode.REQUEST_TIMED_OUT, "no active controller answered in time")

    async def send_once(self, request: Any, version: int, timeout_ms: int | None = None) -> Any:
        """One try, each answer awaited for `timeout_ms`.

        Raises BrokerError (NOT_CONTROLLER, UNSUPPORTED_VERSION), or what the connection raises.
        """
        connection = self._current()
        if connection is None:
            raise BrokerError(ErrorCode.NOT_CONTROLLER, "no active controller is known")
        # Again for each connection: another version may run behind the address by now.
        if not connection.api_versions:
            await connection.negotiate(timeout_ms=timeout_ms)
        answer = await connection.send(
            request, connection.highest_version(request.api_key, version), timeout_ms=timeout_ms
        )
        if getattr(answer, "error_code", 0) == ErrorCode.NOT_CONTROLLER:
            raise BrokerError(ErrorCode.NOT_CONTROLLER)
        return answer

    async def _pause_or_leader(self) -> None:
        """Waits for the pause between two tries, or until another leader is known."""
        waiter: Deferred[None] = Deferred()
        self._leader.leader_waiters.append(waiter)
        timer = self._runtime.clock.callLater(self._retry_ms / 1000, _fire, waiter)
        try:
            await waiter
        finally:
            if timer.active():
                timer.cancel()
            if waiter in self._leader.leader_waiters:
                self._leader.leader_waiters.remove(waiter)

    def pause(self, ms: int) -> Deferred[None]:
        paused: Deferred[None] = deferLater(self._runtime.clock, ms / 1000, lambda: None)  # type: ignore[arg-type]
        return paused

    def _current(self) -> BrokerConnection | None:
        """The connection to the present leader; None when that is not known."""
        address = self._leader.leader_address
        known, left = self._connection, self._left
        # What is in flight there fails, and is sent to the new leader.
        if left is not None and address is not None and address != (left.host, left.port):
            self._close_left()
        if known is not None and address != (known.host, known.port):
            self._connection = None
            # Not one that still connects: another program may have the port by now.
            if address is None and known.api_versions and known.in_flight:
                self._leave(known)
            else:
                known.close()
        if self._connection is None and address is not None and not self._closed:
            self._connection = BrokerConnection(
                self._runtime,
                *address,
                self._client_id,
                request_timeout_ms=self._request_timeout_ms,
                connect_timeout_ms=_CONNECT_MS,
                connector=self._connector,
            )
        return self._connection

    def _leave(self, connection: BrokerConnection) -> None:
        self._close_left()
        self._left = connection
        self._left_timer = self._runtime.clock.callLater(_LEFT_MS / 1000, self._close_left)

    def _close_left(self) -> None:
        left, self._left = self._left, None
        timer, self._left_timer = self._left_timer, None
        if timer is not None and timer.active():
            timer.cancel()
        if left is not None:
            left.close()

    def close(self) -> None:
        """Requests under way fail; nothing is sent any more."""
        self._closed = True
        self._close_left()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
