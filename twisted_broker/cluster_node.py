"""One node's process of a cluster of processes (`process_cluster.py`).

Owns what lies between such a process and its parent.

1. The first line of the standard input is the order, JSON: `settings`, `levels`, `cluster_id`,
   `require_formatted`, `reactor`. No setting is an argument that other users of the machine see.
2. Lines of the standard output are events of the log as JSON (`log_output.py`), and once, when
   clients are let in, `{"ready": ..}`: the node's part of the run file.
3. A further line, or the end of the standard input, which is the end of the parent, however it
   ended: the node stops as at SIGTERM, and waits for nobody, as the others stop as well.
4. It is a process group of its own: a terminal's Ctrl-C goes to the parent, which has an order for
   the stop.

Ring 2. Source: our own. Not here: the service (`tap.py`).
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from importlib import import_module
from typing import Any

from twisted.internet.interfaces import IReadDescriptor
from twisted.logger import globalLogBeginner
from zope.interface import implementer


def main() -> None:
    """Returns when the node has stopped."""
    os.setpgid(0, 0)
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        raise SystemExit("replog: the parent of this process ended")
    order = json.loads(line)
    import_module(order["reactor"]).install()
    from twisted.internet import reactor

    from twisted_broker.log_output import JsonLines

    turns: Any = reactor
    output = sys.stdout
    globalLogBeginner.beginLoggingTo([JsonLines(output)])

    from twisted_broker.broker_config import BrokerConfig
    from twisted_broker.tap import Options, makeService

    options = Options()
    options.broker_config = BrokerConfig(order["settings"])
    options.broker_configs = [options.broker_config]
    options.levels = order["levels"]
    options["cluster-id"] = order["cluster_id"]
    if order["require_formatted"]:
        options.check_formatted()
    service = makeService(options, partial(_report_ready, output))
    turns.addReader(_Parent(turns, service))
    turns.addSystemEventTrigger("before", "shutdown", service.stopService)
    service.startService()
    turns.run()


def _report_ready(output: Any, service: Any) -> None:
    output.write(json.dumps({"ready": service.ready_entry()}) + "\n")
    output.flush()


@implementer(IReadDescriptor)
class _Parent:
    """The pipe from the parent, in the reactor: a line or its end, and nothing after that."""

    def __init__(self, reactor: Any, service: Any) -> None:
        self._reactor, self._service = reactor, service

    def logPrefix(self) -> str:
        return "replog parent"

    def fileno(self) -> int:
        return 0

    def doRead(self) -> None:
        if os.read(0, 4096):
            self._reactor.removeReader(self)
            self._leave()
        else:
            self._gone()

    def connectionLost(self, reason: Any) -> None:
        """As epoll says it of a pipe without a writer."""
        self._gone()

    def _gone(self) -> None:
        self._reactor.removeReader(self)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        # Nobody reads them: a write would fail.
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        os.close(nowhere)
        self._leave()

    def _leave(self) -> None:
        if self._service.running:
            self._reactor.addSystemEventTrigger(
                "before", "shutdown", self._service.skip_controlled_shutdown
            )
            self._reactor.stop()
        else:
            self._service.skip_controlled_shutdown()


if __name__ == "__main__":
    main()
