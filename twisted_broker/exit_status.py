"""The end of a process whose service cannot go on: an orderly stop, and status 1.

Ring 2. Source: `twistd`, which would leave with status 0. Not here: why (`broker_service.py`,
`process_cluster.py`).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from functools import partial
from typing import Any

from twisted.internet.error import ReactorNotRunning


def leave_with_failure(reactor: Any) -> None:
    """Stops the reactor, now or as soon as it runs; then the process leaves with status 1."""
    reactor.addSystemEventTrigger("after", "shutdown", _register)
    reactor.callWhenRunning(partial(_leave, reactor))


def _leave(reactor: Any) -> None:
    with contextlib.suppress(ReactorNotRunning):  # it is stopping already
        reactor.stop()


def _register() -> None:
    """`twistd` itself would leave with status 0, once it has removed its pid file."""
    atexit.register(_exit)


def _exit() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
