"""A broker's registration with the controller: requested until it is granted, and again when the
controller has lost it.

Owns `Registration`, the broker's side: what it sends, when it tries again, and what it logs about a
refusal. The controller's side, which grants it, is `broker_registry.register`.

1. A broker that starts waits until the session of the broker registered under its id is over:
   mostly that is its own earlier incarnation, which died.
2. A broker that runs and finds itself unknown (UnregisterBroker, a controller that lost its log)
   registers again at once, under the same incarnation. If another incarnation lives under its id
   then, this broker must end: two brokers of one id would answer for each other.
3. A refusal that may pass is logged once for each reason, not at each try. A broker that is denied
   tries less and less often, up to a session's length apart (`denials.py`).

Source: Kafka's `BrokerLifecycleManager` (which does not register again); KRAFT 3.4; `RL 8.2`. Not
here: heartbeats (`broker_lifecycle_manager.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from twisted.logger import Logger

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.cluster.controller_channel import ControllerChannel, check_answer
from twisted_broker.cluster.denials import Denials
from twisted_broker.cluster.observer import MetadataObserver
from twisted_broker.image.entries import Endpoint, FeatureRange
from twisted_broker.interfaces import Runtime
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages import broker_lifecycle as broker_lifecycle_messages

_logger = Logger()
_RETRY_MS = 100
# A retry cannot change these, only the operator can.
_FATAL_ERRORS = frozenset(
    {
        ErrorCode.INCONSISTENT_CLUSTER_ID,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.INVALID_REGISTRATION,
    }
)


class Registration:
    """Of one node, over `channel`; `observer` knows who is registered."""

    def __init__(
        self,
        runtime: Runtime,
        config: BrokerConfig,
        observer: MetadataObserver,
        channel: ControllerChannel,
    ) -> None:
        self._runtime, self._config, self._observer, self._channel = (
            runtime,
            config,
            observer,
            channel,
        )
        self._request = broker_lifecycle_messages.BrokerRegistrationRequest()
        self._logged_code: ErrorCode | None = None
        self._denials = Denials(most_ms=config.integer("broker.session.timeout.ms"))

    def describe(
        self,
        cluster_id: str,
        incarnation_id: bytes,
        listeners: Sequence[Endpoint],
        features: Mapping[str, FeatureRange],
        directories: Sequence[bytes],
        previous_broker_epoch: int,
    ) -> None:
        """What is registered.

        `previous_broker_epoch`: from the clean-shutdown file, -1 after an unclean stop.
        """
        self._request = broker_lifecycle_messages.BrokerRegistrationRequest(
            broker_id=self._config.node_id,
            cluster_id=cluster_id,
            incarnation_id=incarnation_id,
            features=[
                broker_lifecycle_messages.BrokerRegistrationRequestFeature(
                    name=name,
                    min_supported_version=r.min_version,
                    max_supported_version=r.max_version,
                )
                for name, r in features.items()
            ],
            rack=self._config.text("broker.rack"),
            log_dirs=sorted(directories),
            previous_broker_epoch=previous_broker_epoch,
        )
        self.set_listeners(listeners)

    @property
    def listeners(self) -> list[Endpoint]:
        """As the next request names them."""
        return [
            Endpoint(each.name, each.host, each.port, each.security_protocol)
            for each in self._request.listeners
        ]

    def set_listeners(self, listeners: Sequence[Endpoint]) -> None:
        """Of the next request."""
        self._request.listeners = [
            broker_lifecycle_messages.BrokerRegistrationRequestListener(
                name=e.name, host=e.host, port=e.port, security_protocol=e.security_protocol
            )
            for e in listeners
        ]

    async def first(self) -> int:
        """The broker epoch, within `initial.broker.registration.timeout.ms`.

        Raises BrokerError: one of `_FATAL_ERRORS`, or not in time.
        """
        deadline = self._runtime.now_ms() + self._config.integer(
            "initial.broker.registration.timeout.ms"
        )
        while True:
            try:
                return await self._register(max(deadline - self._runtime.now_ms(), 1))
            except BrokerError as error:
                left_ms = deadline - self._runtime.now_ms()
                if error.code in _FATAL_ERRORS or left_ms <= _RETRY_MS:
                    raise self._with_remedy(error) from error
                self._log_refusal(error)
                pause_ms = self._denials.pause_ms(error, _RETRY_MS)
                await self._channel.pause(min(pause_ms, left_ms - _RETRY_MS))

    async def again(self) -> int:
        """The new broker epoch of a broker that runs.

        Raises BrokerError: one of `_FATAL_ERRORS`, or another process has the node id.
        """
        # Not the clean shutdown's: this process has written since.
        self._request.previous_broker_epoch = -1
        while True:
            try:
                return await self._register(None)
            except BrokerError as error:
                if (
                    error.code in _FATAL_ERRORS
                    or error.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
                ):
                    raise self._with_remedy(error) from error
                self._log_refusal(error)
                await self._channel.pause(self._denials.pause_ms(error, _RETRY_MS))

    async def _register(self, timeout_ms: int | None) -> int:
        response = await self._channel.send_until_answered(self._request, 4, timeout_ms)
        check_answer(response.error_code)
        self._logged_code = None
        self._denials.succeeded()
        epoch: int = response.broker_epoch
        return epoch

    def _log_refusal(self, error: BrokerError) -> None:
        if error.code is not self._logged_code:
            self._logged_code = error.code
            _logger.info(
                "the controller refuses the registration, retrying: {error}",
                error=self._with_remedy(error),
            )

    def _with_remedy(self, error: BrokerError) -> BrokerError:
        """The error with its cause and its remedy, where the code alone does not say."""
        node_id = self._config.node_id
        if error.code is ErrorCode.INVALID_REGISTRATION:
            words = (
                f"the log directories of node {node_id} carry ids that another broker has "
                "registered (are they copies?): give this node directories of its own (log.dirs)"
            )
            return BrokerError(error.code, words)
        if error.code is ErrorCode.UNSUPPORTED_VERSION:
            return BrokerError(
                error.code,
                (
                    f"the cluster's finalised features include {self._beyond_us()}: downgrade "
                    "them with kafka-features, or start a newer broker"
                ),
            )
        if error.code is not ErrorCode.DUPLICATE_BROKER_REGISTRATION:
            return error
        known = self._observer.image.brokers.get(node_id)
        where = (
            ""
            if known is None
            else " at " + ", ".join(f"{each.host}:{each.port}" for each in known.listeners.values())
        )
        return BrokerError(
            error.code,
            (
                f"node id {node_id} belongs to a running broker{where}: stop that broker, or "
                "give this one another node.id"
            ),
        )

    def _beyond_us(self) -> str:
        """The finalised levels that are outside of this broker's ranges."""
        ranges = {each.name: each for each in self._request.features}
        found = []
        for name, level in sorted(self._observer.image.features.items()):
            own = ranges.get(
                name, broker_lifecycle_messages.BrokerRegistrationRequestFeature(name=name)
            )
            if not own.min_supported_version <= level <= own.max_supported_version:
                found.append(
                    f"{name}={level} (here {own.min_supported_version} to "
                    f"{own.max_supported_version})"
                )
        return ", ".join(found) or "a feature that this broker does not support"
