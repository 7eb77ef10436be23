"""When a node tries again after a peer has denied it a request.

Owns `Denials`: a denial lasts until an operator has done something, so the node tries less and less
often.

1. The pause doubles with each denial, from the usual one up to `MOST_MS` or the caller's limit. A
   success ends that. Other errors keep their usual pause: they pass by themselves, and clients
   wait.
2. One line names the reason and the remedy, until a request succeeds.

Source: Kafka's `ExponentialBackoff` in `BrokerLifecycleManager`, `AssignmentsManager` and
`NetworkClient` (the latter after a failed authentication). Not here: the words
(`controller_channel.check_answer`).
"""

from __future__ import annotations

from twisted.logger import Logger

from twisted_broker.net.connector import PeerRefused
from twisted_broker.wire.errors import BrokerError, ErrorCode

_logger = Logger()
MOST_MS = 2_000


def is_denial(error: BaseException) -> bool:
    """Whether an operator must do something first."""
    if isinstance(error, BrokerError):
        return error.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return isinstance(error, PeerRefused)


class Denials:
    """`what` is denied, in the plural: the subject of the line; "" where the caller has a line."""

    __slots__ = ("_count", "_most_ms", "_what")

    def __init__(self, what: str = "", most_ms: int = MOST_MS) -> None:
        self._what, self._most_ms = what, most_ms
        self._count = 0

    def pause_ms(self, error: BaseException, usual_ms: int) -> int:
        """After this error, before the next try."""
        if not is_denial(error):
            return usual_ms
        if not self._count and self._what:
            _logger.warn(
                "{what} are refused, retrying: {error}",
                what=self._what,
                error=error,
            )
        pause = min(usual_ms << min(self._count, 20), max(self._most_ms, usual_ms))
        self._count += 1
        return pause

    def succeeded(self) -> None:
        self._count = 0
