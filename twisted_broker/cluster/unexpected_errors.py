"""Failures of requests to the controller that are tried again: expected ones of the network, or a
bug.

Owns `UnexpectedErrors`: a retry without end must not hide a bug.

1. A connection that is refused, lost, late or closed here, an answer that cannot be read and a
   refusal are expected: the observer logs, once, that no controller answers.
2. Anything else is a bug of ours: a traceback is logged, once until a request succeeds.

Source: docs/ARCHITECTURE.md, 8. Not here: when to try again.
"""

from __future__ import annotations

from twisted.internet.defer import CancelledError
from twisted.internet.error import ConnectError, ConnectionClosed
from twisted.logger import Logger
from twisted.python.failure import Failure

from twisted_broker.wire.errors import BrokerError, WireError

_EXPECTED = (
    BrokerError,
    WireError,
    ConnectError,
    ConnectionClosed,
    OSError,
    CancelledError,
)  # Twisted's TimeoutError is a ConnectError
_logger = Logger()


class UnexpectedErrors:
    """`what` is what is tried again, in the plural: the subject of the line."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._is_logged = False

    def failed(self, error: Exception) -> None:
        if not self._is_logged and not isinstance(error, _EXPECTED):
            self._is_logged = True
            _logger.failure("{what} fail, retrying; this is a bug", Failure(error), what=self._what)

    def worked(self) -> None:
        self._is_logged = False
