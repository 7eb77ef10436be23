"""A standby registers with the active controller.

Owns when that is due, and the request.

1. It is due while the image does not have this process's registration, and metadata.version knows
   such records: at the start, and again when a record shows another process of this id.
2. One request is under way; after a refusal the pause is 100 ms, twice the last one each time, two
   minutes at most.

State: one task while it is due; a restart begins anew, with another incarnation id. Source: Kafka's
`ControllerRegistrationManager`; QU 2.21 to 2.23. Not here: the active controller's own registration
(`controller.py`), which writes it.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import CancelledError, Deferred, ensureDeferred

from twisted_broker.cluster.controller_channel import Address, ControllerChannel, check_answer
from twisted_broker.cluster.records import CONTROLLER_LEVEL
from twisted_broker.cluster.unexpected_errors import UnexpectedErrors
from twisted_broker.image.entries import ControllerRegistration
from twisted_broker.image.metadata_image import MetadataImage
from twisted_broker.interfaces import IRandom
from twisted_broker.raft.messages import Answer
from twisted_broker.wire.messages.broker_lifecycle import (
    BrokerRegistrationRequestFeature,
    BrokerRegistrationRequestListener,
    ControllerRegistrationRequest,
)

_ANSWER_MS = 5_000
_FIRST_PAUSE_MS, _MOST_PAUSE_MS = 100, 120_000
_JITTER = (98, 103)  # percent, the end excluded


class ActiveController:
    """`ControllerNodeProvider`: the one that leads the log, as this voter knows it."""

    def __init__(self, node_id: int, leader: Callable[[], Answer]) -> None:
        self._node_id, self._leader = node_id, leader
        self.leader_waiters: list[Deferred[None]] = []

    @property
    def leader_address(self) -> Address | None:
        """None where this node leads, or nobody is known to."""
        found = self._leader()
        return None if found.leader_id in (-1, self._node_id) else found.leader_address


class ControllerRegistrationManager:
    """`own()`: what is registered; `image()`: the standby's; `is_standby()`: whether another one
    leads, as far as this node knows.
    """

    def __init__(
        self,
        channel: ControllerChannel,
        random: IRandom,
        own: Callable[[], ControllerRegistration],
        image: Callable[[], MetadataImage],
        is_standby: Callable[[], bool],
    ) -> None:
        self._channel, self._random = channel, random
        self._own, self._image, self._is_standby = own, image, is_standby
        self._running: Deferred[None] | None = None
        self._unexpected = UnexpectedErrors("registrations with the active controller")

    def changed(self) -> None:
        """Another image, or another leader."""
        if self._running is None and self._is_due():
            self._running = ensureDeferred(self._register())
            self._running.addBoth(self._ended)

    def _ended(self, result: object) -> object:
        self._running = None
        return result

    def close(self) -> None:
        """It registers no more."""
        self._channel.close()
        if self._running is not None:
            self._running.cancel()

    def _is_due(self) -> bool:
        image = self._image()
        if not self._is_standby() or image.metadata_version < CONTROLLER_LEVEL:
            return False
        own = self._own()
        known = image.controllers.get(own.id)
        return known is None or known.incarnation_id != own.incarnation_id

    async def _register(self) -> None:
        pause_ms = _FIRST_PAUSE_MS
        try:
            while self._is_due():
                wait_ms = pause_ms
                try:
                    answer = await self._channel.send_once(_request(self._own()), 0, _ANSWER_MS)
                    check_answer(answer.error_code)
                    self._unexpected.worked()
                    wait_ms = _ANSWER_MS  # until the image has it
                except CancelledError:
                    raise
                except Exception as error:
                    self._unexpected.failed(error)
                    pause_ms = min(2 * pause_ms, _MOST_PAUSE_MS)
                await self._channel.pause(wait_ms * self._random.randrange(*_JITTER) // 100)
        except CancelledError:
            return


def _request(own: ControllerRegistration) -> ControllerRegistrationRequest:
    return ControllerRegistrationRequest(
        controller_id=own.id,
        incarnation_id=own.incarnation_id,
        listeners=[
            BrokerRegistrationRequestListener(
                name=each.name,
                host=each.host,
                port=each.port,
                security_protocol=each.security_protocol,
            )
            for each in own.listeners.values()
        ],
        features=[
            BrokerRegistrationRequestFeature(
                name=name,
                min_supported_version=supported.min_version,
                max_supported_version=supported.max_version,
            )
            for name, supported in own.features.items()
        ],
    )
