"""What goes wrong with a question to the controller, and is tried again: the network's ways, or a
bug.

Owns `UnexpectedErrors`: who tries again for ever tells of what no network does.

1. A connection that is refused, lost, late or closed here, an answer that cannot be read and a
   refusal are expected: the observer tells, once, that the controller is away.
2. Anything else is a bug of ours: a traceback, once until it works again.

Source: docs/ARCHITECTURE.md, 8. Leaves out: when to try again.
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
_log = Logger()


class UnexpectedErrors:
    """`what` is what is tried again, in the plural: the subject of the line."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._told = False

    def failed(self, error: Exception) -> None:
        if not self._told and not isinstance(error, _EXPECTED):
            self._told = True
            _log.failure("{what} fail, trying on; this is a bug", Failure(error), what=self._what)

    def worked(self) -> None:
        self._told = False
